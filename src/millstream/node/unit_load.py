"""The load of one unit: its tuples by slot, the share of each slot in its cost, its largest keys.

Everything is computed on the columns of its blocks; no key is decoded but a few large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.wire.load_report import MOST_KEYS
from millstream.work.block_tuples import by_slot, largest_keys, tuples_before

Figures = npt.NDArray[np.float64]


@dataclass(frozen=True)
class UnitLoad:
    """The tuples of each slot, and its part of the unit's seconds; slot, key, tuples of keys."""

    tuples: Figures
    shares: Figures
    largest: list[tuple[int, Any, int]]


def unit_load(
    job: JobVertex, slots: range, blocks: Sequence[pa.RecordBatch], hot_share: float
) -> UnitLoad:
    """Measure a unit; keys with less than a share of its tuples may be left out.

    A slot costs by its tuples, and by its keys.
    """
    before = [tuples_before(job, block) for block in blocks]
    rows, tuples = np.zeros(len(slots)), np.zeros(len(slots))
    for block, before_rows in zip(blocks, before, strict=True):
        found, of_rows, of_tuples = by_slot(block, before_rows)
        rows[found - slots.start] += of_rows
        tuples[found - slots.start] += of_tuples
    # A key with a large share lies in a slot with a large share.
    hot = np.flatnonzero(tuples >= max(hot_share * float(tuples.sum()), 1.0)) + slots.start
    largest = [
        key
        for block, before_rows in zip(blocks, before, strict=True)
        if len(hot)
        for key in largest_keys(block, before_rows, hot, MOST_KEYS)
    ]
    return UnitLoad(tuples, _shares(tuples + rows), largest)


def _shares(weights: Figures) -> Figures:
    """The part of each slot; equal parts if there are no rows."""
    total = float(weights.sum())
    return weights / total if total > 0 else np.full(len(weights), 1 / max(1, len(weights)))

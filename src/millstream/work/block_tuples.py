"""How many tuples the rows of a block stand for, and which of its keys have the most.

Tuples are counted as they reach the node, after the combine: an accumulator is one tuple. Only the
lengths of lists are read, no values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.flow.reducers import AggregateReducer, ArrowReducer, CombiningReducer
from millstream.flow.vertices import JobVertex
from millstream.ring.keys import decode_keys
from millstream.state.blocks import KEY, SLOT
from millstream.state.values import is_pickled
from millstream.work.keyed_values import group
from millstream.work.packers.value_lists import VALUES

Numbers = npt.NDArray[Any]
_SAMPLE = 1_024


def tuples_before(job: JobVertex, block: pa.RecordBatch) -> Numbers | None:
    """How many tuples come before each row of a block and, last, how many there are in all.

    None if every row is one tuple. Pickled lists are not opened: they count as many tuples as there
    are rows, by their bytes.
    """
    if isinstance(job.reducer, AggregateReducer | CombiningReducer | ArrowReducer):
        return None
    field, column = block.schema.field(VALUES), block.column(VALUES)
    if pa.types.is_list(column.type):
        offsets: Numbers = column.offsets.to_numpy()
        return offsets
    numbers = pc.binary_length(column) if is_pickled(field) else column  # else: how often it occurs
    before = np.zeros(len(column) + 1, np.int64)
    np.cumsum(numbers.to_numpy(), out=before[1:])
    return before * (len(column) / max(1, before[-1])) if is_pickled(field) else before


def by_slot(block: pa.RecordBatch, before: Numbers | None) -> tuple[Numbers, Numbers, Numbers]:
    """The slots that a block has rows of, and the rows and the tuples of each."""
    column = block.column(SLOT).to_numpy()
    # Rows are ordered by slot. To look for the ends of slots is much quicker than to count rows.
    ends = np.flatnonzero(column[1:] != column[:-1]) + 1
    cuts = np.concatenate([[0], ends, [len(column)]]) if len(column) else np.zeros(1, np.int64)
    rows = np.diff(cuts)
    return column[cuts[:-1]], rows, rows if before is None else np.diff(before[cuts])


def largest_keys(
    block: pa.RecordBatch, before: Numbers | None, slots: Numbers, most: int
) -> list[tuple[int, Any, int]]:
    """The keys with the most tuples in some slots: the slot, the key and its tuples.

    If every row is one tuple, a sample of many rows is counted.
    """
    keys, column = block.column(KEY), block.column(SLOT).to_numpy()
    if before is None:
        rows, every = _rows_in(column, slots, _SAMPLE)
        groups, distinct = group(keys.take(pa.array(rows)))
        counts = np.bincount(groups, minlength=len(distinct)) * every
        first = np.zeros(len(distinct), np.int64)
        first[groups[::-1]] = rows[::-1]
        rows = first
    else:
        rows, _ = _rows_in(column, slots, len(column))
        counts = np.rint(before[rows + 1] - before[rows]).astype(np.int64)
    if len(rows) > most:
        chosen = np.argpartition(counts, -most)[-most:]
        rows, counts = rows[chosen], counts[chosen]
    found = decode_keys(keys.take(pa.array(rows)))
    return list(zip(column[rows].tolist(), found, counts.tolist(), strict=True))


def _rows_in(column: Numbers, slots: Numbers, most: int) -> tuple[Numbers, int]:
    """The rows of some slots, or every n-th if there are too many; and n."""
    starts, stops = (np.searchsorted(column, slots, side) for side in ("left", "right"))
    ends = np.cumsum(stops - starts)
    total = int(ends[-1]) if len(ends) else 0
    every = max(1, -(-total // max(1, most)))
    at = np.arange(0, total, every)
    return at + (stops - ends)[np.searchsorted(ends, at, "right")], every

"""Sets of slots as masks, one bit for each slot."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

SlotMask: TypeAlias = npt.NDArray[np.bool_]
"""One bit per slot."""
SlotCounts: TypeAlias = npt.NDArray[np.int64]
"""A number for each of some slots, in slot order."""


def mask_of(slots: range, size: int) -> SlotMask:
    """The mask of one run of slots, of the given size."""
    mask = np.zeros(size, dtype=bool)
    mask[slots.start : slots.stop] = True
    return mask


def runs_of(mask: SlotMask, slots: range | None = None) -> Iterator[range]:
    """The runs of set flags, within a range of slots if one is given."""
    within = range(len(mask)) if slots is None else slots
    part = mask[within.start : within.stop]
    if part.all():
        if len(part):
            yield within
        return
    edges = np.flatnonzero(np.diff(part, prepend=False, append=False))
    for start, stop in edges.reshape(-1, 2).tolist():
        yield range(within.start + start, within.start + stop)


def equal_runs(slots: range, *values: npt.NDArray[Any]) -> Iterator[range]:
    """Cut slots into runs in which none of these arrays, with a value per slot, changes."""
    changes = np.any([each[1:] != each[:-1] for each in values], axis=0)
    cuts = np.flatnonzero(changes) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(slots)]):
        yield range(slots.start + start, slots.start + stop)


def any_in_row(flags: npt.NDArray[np.bool_]) -> SlotMask:
    """The rows of a narrow table in which any flag is set; numpy's own is slow for short rows."""
    found = np.zeros(len(flags), np.bool_)
    for column in flags.T:
        found |= column
    return found


def expanded(
    starts: npt.NDArray[np.integer[Any]], stops: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int64]:
    """All members of some ranges, one range after the other."""
    lengths = np.asarray(stops - starts, np.int64)
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.repeat(starts - before, lengths) + np.arange(int(lengths.sum())))


def overlap(one: range, other: range) -> bool:
    """Whether two runs have slots in common."""
    return one.start < other.stop and other.start < one.stop


def common(one: range, other: range) -> range:
    """The slots that two runs have in common; an empty run if there are none."""
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))

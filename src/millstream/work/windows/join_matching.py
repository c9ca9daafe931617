"""The search for pairs of values of both sides of a join that match in time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from millstream.flow.windows import TimeWindow, WithinWindow
from millstream.state.aggregates.grouping import Ints

JoinWindow = TimeWindow | WithinWindow
AT_ONCE = 1 << 16


class Index:
    """An index of the rows of one side by key and time."""

    def __init__(self, ids: Ints, times: Ints) -> None:
        self._times, ranks = np.unique(times, return_inverse=True)
        self._ids, numbers = np.unique(ids, return_inverse=True)
        # Key and time in one number; ranks of times, because times could be too large.
        self._width = len(self._times) + 1
        codes = numbers * self._width + ranks
        self._order = np.argsort(codes, kind="stable")
        self._codes = codes[self._order]

    def spans(self, window: JoinWindow, ids: Ints, times: Ints) -> tuple[Ints, Ints]:
        """For each of some rows of the other side, the range of index positions that match it."""
        numbers = np.searchsorted(self._ids, ids)
        known = np.zeros(len(ids), bool)
        inside = numbers < len(self._ids)
        known[inside] = self._ids[numbers[inside]] == ids[inside]
        first = np.searchsorted(self._times, window.first_match(times), "left")
        last = np.searchsorted(self._times, window.last_match(times), "right")
        start = np.searchsorted(self._codes, numbers * self._width + first)
        stop = np.searchsorted(self._codes, numbers * self._width + last)
        return np.where(known, start, 0), np.where(known, stop, 0)

    def pairs(self, start: Ints, stop: Ints) -> Iterator[tuple[Ints, Ints]]:
        """The pairs of such ranges, in batches: the row of the other side, and the row here."""
        counts = stop - start
        before = np.cumsum(counts)
        at = 0
        while at < len(counts):
            reached = before[at - 1] if at else 0
            until = max(at + 1, int(np.searchsorted(before, reached + AT_ONCE, "right")))
            some = counts[at:until]
            rows = np.repeat(np.arange(at, until), some)
            within = np.arange(len(rows)) - np.repeat(np.cumsum(some) - some, some)
            yield rows, self._order[np.repeat(start[at:until], some) + within]
            at = until

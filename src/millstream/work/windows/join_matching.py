"""Which values of two sides of a join meet: arithmetic on times, and the search for pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from millstream.flow.windows import TimeWindow, Window, WithinWindow
from millstream.times import BEGINNING, END

Ints = npt.NDArray[np.int64]
AT_ONCE = 1 << 16


class Pairing(Protocol):
    """From which time to which others are that meet a value; both go up with its own."""

    def first(self, times: Ints) -> Ints:
        """The earliest time that meets each of these."""

    def last(self, times: Ints) -> Ints:
        """The latest time that meets each of these."""

    def open_from(self, watermark: int) -> int:
        """The earliest time that may still meet values which come after a watermark."""


class PairsWithin:
    """Times that differ by a length at most."""

    def __init__(self, window: WithinWindow) -> None:
        self._length = window.length

    def first(self, times: Ints) -> Ints:
        return times - self._length

    def last(self, times: Ints) -> Ints:
        return times + self._length

    def open_from(self, watermark: int) -> int:
        return watermark - self._length


class PairsInWindow:
    """Times that lie in one window."""

    def __init__(self, window: TimeWindow) -> None:
        self._size, self._slide = window.size, window.slide

    def first(self, times: Ints) -> Ints:
        return (times - self._size) // self._slide * self._slide + self._slide

    def last(self, times: Ints) -> Ints:
        return times // self._slide * self._slide + self._size - 1

    def open_from(self, watermark: int) -> int:
        return (watermark - self._size) // self._slide * self._slide + self._slide


def pairing_of(window: Window) -> Pairing:
    """The pairing that a join's window stands for."""
    if isinstance(window, WithinWindow):
        return PairsWithin(window)
    assert isinstance(window, TimeWindow)
    return PairsInWindow(window)


def open_from(pairing: Pairing, watermark: int) -> int:
    """The earliest time that is not done with; where nothing or all is closed, no arithmetic."""
    return watermark if watermark in (BEGINNING, END) else pairing.open_from(watermark)


class Index:
    """Rows of one side by key and time, for the search of those that meet others."""

    def __init__(self, ids: Ints, times: Ints) -> None:
        self._times, ranks = np.unique(times, return_inverse=True)
        self._ids, numbers = np.unique(ids, return_inverse=True)
        # A key and a time in one number. Ranks instead of times, as these could be too large.
        self._width = len(self._times) + 1
        codes = numbers * self._width + ranks
        self._order = np.argsort(codes, kind="stable")
        self._codes = codes[self._order]

    def spans(self, pairing: Pairing, ids: Ints, times: Ints) -> tuple[Ints, Ints]:
        """For each of some rows of the other side, between which places those lie that it meets."""
        numbers = np.searchsorted(self._ids, ids)
        known = np.zeros(len(ids), bool)
        inside = numbers < len(self._ids)
        known[inside] = self._ids[numbers[inside]] == ids[inside]
        first = np.searchsorted(self._times, pairing.first(times), "left")
        last = np.searchsorted(self._times, pairing.last(times), "right")
        start = np.searchsorted(self._codes, numbers * self._width + first)
        stop = np.searchsorted(self._codes, numbers * self._width + last)
        return np.where(known, start, 0), np.where(known, stop, 0)

    def pairs(self, start: Ints, stop: Ints) -> Iterator[tuple[Ints, Ints]]:
        """The pairs that spans stand for, some at a time: which row, and which row here."""
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

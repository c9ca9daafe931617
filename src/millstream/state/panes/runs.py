"""Raw rows of panes merged into few tables, so that a look-up does not search one per epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import is_
from typing import Generic, TypeVar

import numpy as np

from millstream.state.panes.state import PaneState
from millstream.state.panes.tables import Algebra, Table, ordered

A = TypeVar("A")


@dataclass
class _Pane(Generic[A]):
    """The tables of a pane that were merged, and the resulting runs."""

    seen: list[Table[A]] = field(default_factory=list)
    runs: list[Table[A]] = field(default_factory=list)


class Runs(Generic[A]):
    """For each pane, runs of its raw rows, each more than twice as long as the next.

    They are made from the state on demand. Tables are immutable, so those that are still in the
    state need not be merged again.
    """

    def __init__(self, state: PaneState[A], algebra: Algebra[A]) -> None:
        self._state = state
        self._algebra = algebra
        self._panes: dict[int, _Pane[A]] = {}

    def of(self, start: int) -> list[Table[A]]:
        """Tables that together have all raw rows of a pane, of all slots."""
        tables = self._state.all_raw(start)
        known = self._panes.get(start)
        if known is None or len(known.seen) > len(tables) or not _begins(tables, known.seen):
            known = self._panes[start] = _Pane()
        for table in tables[len(known.seen) :]:
            known.seen.append(table)
            known.runs.append(table)
            while len(known.runs) > 1 and len(known.runs[-2]) <= 2 * len(known.runs[-1]):
                known.runs[-2:] = [self._merged(*known.runs[-2:])]
        return known.runs

    def forget_gone(self) -> None:
        """Drop the runs of panes that the state no longer has."""
        for start in self._panes.keys() - self._state.starts:
            del self._panes[start]

    def _merged(self, one: Table[A], other: Table[A]) -> Table[A]:
        rows = self._algebra.concat([one.rows, other.rows])
        return ordered(self._algebra, np.concatenate([one.ids, other.ids]), rows)


def _begins(tables: list[Table[A]], seen: list[Table[A]]) -> bool:
    return all(map(is_, tables, seen))

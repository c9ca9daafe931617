"""Loose rows of panes in few tables, so that looking for keys does not cost a search per epoch."""

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
    """The tables of a pane that were seen, and what was made of them."""

    seen: list[Table[A]] = field(default_factory=list)
    runs: list[Table[A]] = field(default_factory=list)


class Runs(Generic[A]):
    """For each pane, runs of its loose rows, each more than twice as long as the next.

    They are made of the state when they are asked for. Tables never change, so that those which
    are still there need not be looked at again.
    """

    def __init__(self, state: PaneState[A], algebra: Algebra[A]) -> None:
        self._state = state
        self._algebra = algebra
        self._panes: dict[int, _Pane[A]] = {}

    def of(self, start: int) -> list[Table[A]]:
        """Tables that together have all loose rows of a pane, of whatever slots."""
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

"""Sliding windows by two stacks: each pane is merged a fixed number of times, whatever the size.

The *front* is the merge of the panes from the window's start up to a split, with the changes that
removing each of these panes makes. The *back* is the merge of the panes from the split up to the
window's end. A window is front and back. When it has slid past the split, all its panes become the
front at once. Panes are tables over many keys; of each pane only its keys are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from millstream.state.panes.keys import Ids
from millstream.state.panes.tables import Algebra, Table, join, only, overlaid, without

A = TypeVar("A")
Panes = Callable[[int, int], Sequence[tuple[int, Table[A]]]]
"""The panes that start in [from, to) and have rows, in order."""


@dataclass(frozen=True)
class _Undo(Generic[A]):
    """The change of the front when its first pane is removed: the previous rows of these keys."""

    pane: int
    ids: Ids
    before: Table[A] | None


@dataclass(frozen=True)
class Slider(Generic[A]):
    """The two stacks of one window, immutable; sliding returns new ones.

    The front has the panes of [start, split), the back those of [split, through).
    """

    start: int
    split: int
    through: int
    front: Table[A] | None = None
    undo: tuple[_Undo[A], ...] = ()
    back: Table[A] | None = None

    def slide(self, algebra: Algebra[A], start: int, end: int, panes: Panes[A]) -> Slider[A]:
        """The stacks of the window [start, end), which comes after the last one."""
        if start >= self.split:
            return flipped(algebra, start, end, panes)
        new = self.without_before(algebra, start)
        fresh = [table for _, table in panes(self.through, end)]
        return replace(new, back=join(algebra, [new.back, *fresh]), through=end)

    def without_before(self, algebra: Algebra[A], start: int) -> Slider[A]:
        """Without the panes of the front that lie before the start of a window."""
        gone = 0
        front = self.front
        while gone < len(self.undo) and self.undo[gone].pane < start:
            step = self.undo[gone]
            front = without(algebra, front, step.ids)
            front = overlaid(algebra, front, step.before)
            gone += 1
        return replace(self, start=max(self.start, start), front=front, undo=self.undo[gone:])

    def window(self, algebra: Algebra[A]) -> Table[A] | None:
        """The merge of all panes of the window."""
        return join(algebra, [self.front, self.back])

    def amended(self, algebra: Algebra[A], changed: dict[int, Ids], panes: Panes[A]) -> Slider[A]:
        """The stacks after some keys of panes that are in them have changed."""
        in_front = any(self.start <= pane < self.split for pane in changed)
        front = self
        if in_front:
            rebuilt = flipped(algebra, self.start, self.split, panes)
            front = replace(self, front=rebuilt.front, undo=rebuilt.undo)
        late = [ids for pane, ids in changed.items() if self.split <= pane < self.through]
        if not late:
            return front
        ids = np.unique(np.concatenate(late))
        again = join(
            algebra,
            [only(algebra, table, ids) for _, table in panes(self.split, self.through)],
        )
        return replace(front, back=overlaid(algebra, front.back, again))


def flipped(algebra: Algebra[A], start: int, end: int, panes: Panes[A]) -> Slider[A]:
    """The stacks of a window of which every pane is in the front."""
    front: Table[A] | None = None
    undo: list[_Undo[A]] = []
    for pane, table in reversed(panes(start, end)):
        before = only(algebra, front, table.ids)
        undo.append(_Undo(pane, table.ids, before))
        merged = join(algebra, [table, before])
        assert merged is not None
        front = overlaid(algebra, front, merged)
    return Slider(start, end, end, front, tuple(reversed(undo)))

"""Sliding windows by two stacks: each pane is merged a fixed number of times, however long windows.

The *front* is what panes from the window's start up to a split give together, and for each of
these panes it is known what the front becomes without it. The *back* is what the panes from the
split up to the window's end give together. A window is front and back. When it has slid past the
split, all its panes become the front at once. Panes are tables over many keys; of each pane only
the keys that it has are touched.
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
    """How the front changes when its first pane goes: these keys, to what they were before it."""

    pane: int
    ids: Ids
    before: Table[A] | None


@dataclass(frozen=True)
class Slider(Generic[A]):
    """The two stacks of one window; sliding gives a new one and leaves this as it is.

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
        """What all panes of the window give together."""
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

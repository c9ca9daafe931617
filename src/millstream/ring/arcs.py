"""The arcs of a ring while they are redrawn: runs of slots in a chain, cut and given to nodes.

Nodes are numbers here. Which slots go where is decided in :mod:`millstream.ring.balance`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

END = -1
"""What lies before the first and behind the last run."""

_GONE = -1


class Arcs:
    """Runs of slots, none of which wraps, with their owners and the load of each node.

    A run is known by a number. It keeps it when it grows and loses it when it is absorbed by the
    run before it, so that two runs in a row never have the same owner. Number 0 is always first.
    """

    def __init__(
        self, owners: npt.NDArray[np.int32], weights: npt.NDArray[np.float64], nodes: int
    ) -> None:
        starts = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist()]
        self.start: list[int] = starts
        self.stop: list[int] = [*starts[1:], len(owners)]
        self.owner: list[int] = owners[starts].tolist()
        self.before: list[int] = [END, *range(len(starts) - 1)]
        self.after: list[int] = [*range(1, len(starts)), END]
        self.load: list[float] = np.bincount(owners, weights, nodes).tolist()
        self._sums: list[float] = [0.0, *np.cumsum(weights).tolist()]
        # Sums of floats differ in their last digits by their order.
        self._blur = 1e-9 * self._sums[-1]

    def __iter__(self) -> Iterator[int]:
        """The runs in order, as they are at the beginning."""
        runs, run = [], 0
        while run != END:
            runs.append(run)
            run = self.after[run]
        return iter(runs)

    def is_run(self, run: int) -> bool:
        """Whether the run has not been absorbed."""
        return self.owner[run] != _GONE

    def weight(self, run: int) -> float:
        """The weight of a run."""
        return self._sums[self.stop[run]] - self._sums[self.start[run]]

    def head(self, run: int, weight: float) -> int:
        """How many slots from its start on weigh no more than this."""
        start, stop = self.start[run], self.stop[run]
        limit = self._sums[start] + weight + self._blur
        return bisect_right(self._sums, limit, start, stop + 1) - 1 - start

    def tail(self, run: int, weight: float) -> int:
        """How many slots up to its end weigh no more than this."""
        start, stop = self.start[run], self.stop[run]
        limit = self._sums[stop] - weight - self._blur
        return stop - bisect_left(self._sums, limit, start, stop + 1)

    def cut(self, run: int, at: int) -> int:
        """Cut a run at a slot, unless it starts or ends there; return the part from there on."""
        if at in (self.start[run], self.stop[run]):
            return run if at == self.start[run] else self.after[run]
        part = len(self.start)
        self.start.append(at)
        self.stop.append(self.stop[run])
        self.owner.append(self.owner[run])
        self.before.append(run)
        self.after.append(self.after[run])
        self.stop[run] = at
        if self.after[run] != END:
            self.before[self.after[run]] = part
        self.after[run] = part
        return part

    def give(self, run: int, node: int) -> int:
        """Give a run to a node; return the run of the node that contains it now."""
        weight = self.weight(run)
        self.load[self.owner[run]] -= weight
        self.load[node] += weight
        self.owner[run] = node
        after, before = self.after[run], self.before[run]
        if after != END and self.owner[after] == node:
            self._absorb(run, after)
        if before != END and self.owner[before] == node:
            self._absorb(before, run)
            return before
        return run

    def give_slots(self, run: int, slots: range, node: int) -> int:
        """Give a part of a run to a node; return the run of the node that contains it now."""
        part = self.cut(run, slots.start)
        self.cut(part, slots.stop)
        return self.give(part, node)

    def owners(self) -> npt.NDArray[np.int32]:
        """The owner of each slot."""
        runs = list(self)
        lengths = [self.stop[run] - self.start[run] for run in runs]
        return np.repeat(np.array([self.owner[run] for run in runs], np.int32), lengths)

    def _absorb(self, run: int, after: int) -> None:
        self.stop[run] = self.stop[after]
        self.after[run] = self.after[after]
        if self.after[after] != END:
            self.before[self.after[after]] = run
        self.owner[after] = _GONE

"""Balance: the ring in which every node has a fair share of the load.

Slots move only from nodes with too much, or that leave, to nodes with too little. They move in
runs, and from the edges of arcs, so that arcs stay few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millstream.errors import ConfigError
from millstream.ring.masks import SlotMask
from millstream.ring.ring import NodeId, Ring

Weights: TypeAlias = npt.NDArray[np.float64]
"""The load of each slot."""
_FLOOR = 0.02  # of the mean: slots without load are spread, too
TOLERANCE = 0.05


def rebalanced(
    ring: Ring,
    weights: Weights,
    nodes: Sequence[NodeId],
    *,
    capacities: Mapping[NodeId, float] | None = None,
    in_sync: Callable[[NodeId], SlotMask] | None = None,
    tolerance: float = TOLERANCE,
) -> Ring:
    """Return the ring in which each of the nodes has about its share of the weight.

    Nodes that are not in the ring join, those of the ring that are not given leave. Shares are in
    proportion to ``capacities``, by default equal; nobody is made to give or take what is within
    the ``tolerance``. Where several nodes could take slots, one that has them ``in_sync`` does.
    """
    if len(weights) != ring.slots or not nodes or len(set(nodes)) != len(nodes):
        raise ConfigError(f"give {ring.slots} weights and at least one node, each once")
    balance = _Balance(ring, weights, nodes, capacities or {}, in_sync, tolerance)
    balance.empty_leavers()
    balance.fill_receivers()
    return Ring.of_table(ring.version + 1, balance.names, balance.owners)


class _Balance:
    """The owners while slots are moved, and what each node has."""

    def __init__(
        self,
        ring: Ring,
        weights: Weights,
        nodes: Sequence[NodeId],
        capacities: Mapping[NodeId, float],
        in_sync: Callable[[NodeId], SlotMask] | None,
        tolerance: float,
    ) -> None:
        self.names = [*nodes, *(node for node in ring.nodes if node not in set(nodes))]
        number = {node: at for at, node in enumerate(self.names)}
        self.owners = np.array([number[node] for node in ring.nodes], np.int32)[ring.table]
        mean = float(weights.mean())
        weights = weights + _FLOOR * mean if mean > 0 else np.ones(ring.slots)
        self._sums = np.concatenate([[0.0], np.cumsum(weights)])
        self._loads = np.bincount(self.owners, weights, minlength=len(self.names))
        speeds = np.array([max(capacities.get(node, 1.0), 0.0) for node in nodes])
        if not speeds.any():
            speeds[:] = 1.0
        leaving = np.zeros(len(self.names) - len(nodes))
        self._shares = np.concatenate([speeds / speeds.sum(), leaving]) * self._sums[-1]
        self._least = self._shares * (1 - tolerance)
        self._staying = len(nodes)
        self._in_sync = in_sync
        self._held: dict[int, SlotMask] = {}

    def empty_leavers(self) -> None:
        """Give all slots of nodes that leave to others."""
        for leaver in range(self._staying, len(self.names)):
            while len(slots := np.flatnonzero(self.owners == leaver)):
                to = self._receiver(slots)
                # At least one slot, even if nobody is below its share.
                room = max(self._shares[to] - self._loads[to], 0.0)
                piece = self._piece(slots, to, room)
                self._give(piece if len(piece) else slots[:1], leaver, to)

    def _receiver(self, slots: npt.NDArray[np.intp]) -> int:
        """Who takes slots: who has most room, or has them in sync and about as much."""
        room = (self._shares - self._loads)[: self._staying]
        best = int(room.argmax())
        able = np.flatnonzero(room >= room[best] / 2) if room[best] > 0 else np.array([best])
        return int(max(able.tolist(), key=lambda at: (self._holds(at, slots), room[at])))

    def fill_receivers(self) -> None:
        """Move slots from those with most to those with too little, until all have enough."""
        stuck: set[int] = set()
        while True:
            room = np.where(self._loads < self._least, self._shares - self._loads, -np.inf)[
                : self._staying
            ]
            room[list(stuck)] = -np.inf
            to = int(room.argmax())
            if room[to] == -np.inf:
                return
            if not self._fill(to, float(room[to])):
                stuck.add(to)  # what others could give would leave them with too little

    def _fill(self, to: int, wanted: float) -> bool:
        """Move one run of slots to a node; return whether there was one."""
        spare = (self._loads - self._least)[: self._staying]
        spare[to] = -np.inf
        donors = np.argsort(-spare)[:8].tolist()
        mine = [d for d in donors if spare[d] > 0]
        mine.sort(key=lambda d: -self._holds(to, np.flatnonzero(self.owners == d)))
        over = [d for d in mine if self._loads[d] > self._shares[d]]
        for donor in [*over, *(d for d in mine if d not in over)]:
            above = self._loads[donor] - self._shares[donor]
            amount = min(wanted, above if donor in over else float(spare[donor]))
            piece = self._piece(np.flatnonzero(self.owners == donor), to, amount)
            if len(piece):
                self._give(piece, donor, to)
                return True
        return False

    def _piece(self, slots: npt.NDArray[np.intp], to: int, most: float) -> npt.NDArray[np.intp]:
        """The best part of some slots of at most a weight: long, and beside what ``to`` has."""
        cuts = np.flatnonzero(np.diff(slots) != 1) + 1
        best, chosen = (False, False, 0.0), slots[:0]
        for run in np.split(slots, cuts):
            start, stop = int(run[0]), int(run[-1]) + 1
            most_of_it = min(most, self._sums[stop] - self._sums[start])
            last = int(np.searchsorted(self._sums, self._sums[start] + most_of_it, "right")) - 1
            first = int(np.searchsorted(self._sums, self._sums[stop] - most_of_it, "left"))
            for low, high in ((start, min(last, stop)), (max(first, start), stop)):
                weight = float(self._sums[high] - self._sums[low])
                beside = self._owner(low - 1) == to or self._owner(high) == to
                value = (high > low and beside, high - low == stop - start, weight)
                if high > low and value > best:
                    best, chosen = value, np.arange(low, high)
        return chosen

    def _owner(self, slot: int) -> int:
        return int(self.owners[slot % len(self.owners)])

    def _give(self, slots: npt.NDArray[np.intp], source: int, to: int) -> None:
        weight = float((self._sums[slots + 1] - self._sums[slots]).sum())
        self.owners[slots] = to
        self._loads[source] -= weight
        self._loads[to] += weight

    def _holds(self, node: int, slots: npt.NDArray[np.intp]) -> int:
        """How many of some slots a node has in sync."""
        if self._in_sync is None or not len(slots):
            return 0
        if node not in self._held:
            self._held[node] = self._in_sync(self.names[node])
        return int(self._held[node][slots].sum())

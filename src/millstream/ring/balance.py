"""Target rings: each node owns its share of the load, and few slots move to get there.

Pure functions. When slots move, and how their state gets there, is decided by the coordinator; the
copies are chosen in :mod:`millstream.ring.replicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heapreplace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millstream.errors import ConfigError
from millstream.ring.arcs import Arcs
from millstream.ring.masks import SlotMask, equal_runs
from millstream.ring.ring import NodeId, Ring, RingError
from millstream.ring.transfers import InSync, Transfers

Weights: TypeAlias = npt.NDArray[np.float64]
"""The load of each slot, in any unit."""

# The weight of an empty slot, as a part of the mean: empty slots are spread, too.
_EMPTY_SLOT = 0.01

# Sums of floats differ in their last digits by their order.
_BLUR = 1e-9


@dataclass(frozen=True)
class Move:
    """Slots that change owner, in runs."""

    source: NodeId
    target: NodeId
    runs: tuple[range, ...]


def pending(before: Ring, after: Ring) -> list[Move]:
    """List the slots that change owner: one move per pair of nodes, in order of its first slot."""
    if before.slots != after.slots:
        what = f"the rings have {before.slots} and {after.slots} slots"
        raise RingError(what, "compare rings of the same workflow")
    # Number the nodes of both rings alike, so that tables can be compared as arrays.
    numbers = {
        node: index for index, node in enumerate(dict.fromkeys([*before.nodes, *after.nodes]))
    }
    nodes = list(numbers)
    old = np.array([numbers[node] for node in before.nodes])[before.table]
    new = np.array([numbers[node] for node in after.nodes])[after.table]
    moves: dict[tuple[int, int], list[range]] = {}
    for run in equal_runs(range(before.slots), old, new):
        source, target = int(old[run.start]), int(new[run.start])
        if source != target:
            moves.setdefault((source, target), []).append(run)
    return [
        Move(nodes[source], nodes[target], tuple(runs)) for (source, target), runs in moves.items()
    ]


def rebalanced(
    ring: Ring,
    weights: Weights,
    nodes: Sequence[NodeId] | None = None,
    *,
    capacities: Mapping[NodeId, float] | None = None,
    in_sync: Callable[[NodeId], SlotMask] | None = None,
    tolerance: float = 0.05,
) -> Ring:
    """Return the next ring, in which each node has its share of the weight.

    ``nodes`` are those of the next ring: others leave, and new ones join. Shares are by capacity,
    which is 1 for nodes that are not named. Slots move from nodes that leave or are above their
    share to nodes below it. A node within ``tolerance`` of its share, plus the weight of one slot,
    takes part only if it is needed by another that is not. A slot that is heavier than the largest
    share gets its owner to itself. Among receivers, those that have a slot ``in_sync`` are
    preferred.
    """
    staying = list(ring.nodes if nodes is None else nodes)
    given = capacities or {}
    _check(ring, weights, staying, given, tolerance)
    present = set(staying)
    everyone = list(dict.fromkeys([*ring.nodes, *staying]))
    parts = [float(given.get(node, 1.0)) if node in present else 0.0 for node in everyone]
    none = np.zeros(ring.slots, np.bool_)

    @cache
    def held(node: int) -> SlotMask:
        return in_sync(everyone[node]) if in_sync else none

    balance = _Balance(ring.table, _floored(weights), parts, held, tolerance)
    return Ring.of_table(ring.version + 1, everyone, balance.settle())


class _Balance:
    """The load and the share of each node while slots move; nodes are numbers."""

    def __init__(
        self,
        owners: npt.NDArray[np.int32],
        weights: Weights,
        capacities: Sequence[float],
        in_sync: InSync,
        tolerance: float,
    ) -> None:
        """Nodes without capacity leave."""
        self._weights, self._in_sync = weights, in_sync
        self._arcs = arcs = Arcs(owners, weights, len(capacities))
        self._staying = [node for node, part in enumerate(capacities) if part > 0]
        self._leaving = [node for node, part in enumerate(capacities) if part == 0]
        self._share = shares = self._shares(owners, capacities)
        slot = float(weights.mean())
        margins = [tolerance * share + slot if share else 0.0 for share in shares]
        self._high = [share + margin for share, margin in zip(shares, margins, strict=True)]
        self._low = [share - margin for share, margin in zip(shares, margins, strict=True)]
        for node, share in enumerate(shares):
            if share >= slot:  # there are not more nodes than slots: nobody is left without any
                self._low[node] = max(self._low[node], slot / 2)
        self._slack = [margin / 2 for margin in margins]
        self._transfers = Transfers(arcs, self._slack, self._low, in_sync)

    def _shares(self, owners: npt.NDArray[np.int32], capacities: Sequence[float]) -> list[float]:
        """The load that each node should have; slots heavier than any share get a node each."""
        arcs, weights = self._arcs, self._weights
        shares = [0.0] * len(capacities)
        free = set(self._staying)
        left, total = float(weights.sum()), sum(capacities)
        largest = np.argsort(-weights, kind="stable")[: len(free) - 1]
        for slot, weight in zip(largest.tolist(), weights[largest].tolist(), strict=True):
            if weight <= left / total * max(capacities[node] for node in free):
                break
            node = int(owners[slot])
            if node not in free:
                node = min(free, key=lambda n: (not self._in_sync(n)[slot], arcs.load[n], n))
                run = next(run for run in arcs if arcs.start[run] <= slot < arcs.stop[run])
                arcs.give_slots(run, range(slot, slot + 1), node)
            shares[node] = weight
            free.remove(node)
            left -= weight
            total -= capacities[node]
        for node in free:
            shares[node] = left / total * capacities[node]
        return shares

    def settle(self) -> npt.NDArray[np.int32]:
        """Move slots until each node is within tolerance, as far as can be; return the owners."""
        self._transfer()
        if self._place_rest():
            self._transfer()
        return self._even_out(self._arcs.owners())

    def _transfer(self) -> None:
        """Move runs from nodes above to nodes below their share, if either is out of tolerance."""
        load, share, is_moved = self._arcs.load, self._share, True
        while is_moved:
            is_moved = self._fill(self._givers(), self._takers())
            under = [node for node in self._staying if load[node] < share[node] * (1 - _BLUR)]
            is_moved |= self._fill(self._givers(), under)
            over = [node for node in self._staying if load[node] > share[node] * (1 + _BLUR)]
            is_moved |= self._fill(over, self._takers())

    def _givers(self) -> list[int]:
        load = self._arcs.load
        over = [node for node in self._staying if load[node] > self._high[node]]
        # No slot is lighter than an empty one; less is what is left of a sum of floats.
        return [*(node for node in self._leaving if load[node] > _EMPTY_SLOT / 2), *over]

    def _takers(self) -> list[int]:
        return [node for node in self._staying if self._arcs.load[node] < self._low[node]]

    def _fill(self, donors: list[int], receivers: list[int]) -> bool:
        load, share, slack = self._arcs.load, self._share, self._slack
        # One that is needed gives or takes a little more than its share rather than single slots.
        floors = {node: min(share[node], load[node] - slack[node]) for node in donors}
        ceilings = {node: max(share[node], load[node] + slack[node]) for node in receivers}
        return self._transfers.fill(floors, ceilings)

    def _place_rest(self) -> bool:
        """Give slots of leaving nodes that fit nowhere to the nodes that are farthest below."""
        arcs, share, leaving = self._arcs, self._share, set(self._leaving)
        rooms = [(arcs.load[node] - share[node], node) for node in self._staying]
        heapify(rooms)
        rest = [run for run in arcs if arcs.owner[run] in leaving]
        for run in rest:
            start, stop = arcs.start[run], arcs.stop[run]
            while start < stop:
                excess, node = rooms[0]
                count = min(max(1, arcs.head(run, -excess)), stop - start)
                taken = arcs.give_slots(run, range(start, start + count), node)
                heapreplace(rooms, (arcs.load[node] - share[node], node))
                start += count
                run = arcs.after[taken]
        return bool(rest)

    def _even_out(self, owners: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Move single slots, perhaps heavy ones, as long as some node is out of tolerance."""
        excess = np.array(self._arcs.load) - np.array(self._share)
        while (found := self._next_slot(owners, excess)) is not None:
            slot, node = found
            excess[owners[slot]] -= self._weights[slot]
            excess[node] += self._weights[slot]
            owners[slot] = node
        return owners

    def _next_slot(
        self, owners: npt.NDArray[np.int32], excess: npt.NDArray[np.float64]
    ) -> tuple[int, int] | None:
        """A slot and a node that should take it, if any."""
        order = sorted(self._staying, key=lambda node: (-excess[node], node))
        taker = order[-1]
        is_short = self._share[taker] + excess[taker] < self._low[taker]
        for donor in order:
            is_over = self._share[donor] + excess[donor] > self._high[donor]
            if excess[donor] <= 0 or not (is_over or is_short):
                break
            slot = self._best_slot(owners, donor, float(excess[donor]), float(-excess[taker]))
            if slot is not None:
                return slot, taker
        return None

    def _best_slot(
        self, owners: npt.NDArray[np.int32], donor: int, over: float, under: float
    ) -> int | None:
        """The slot that brings a node above and one below their shares nearest to them, if any."""
        slots = np.flatnonzero(owners == donor)
        weights = self._weights[slots]
        distance = np.maximum(np.abs(over - weights), np.abs(under - weights))
        best = int(distance.argmin())
        return int(slots[best]) if distance[best] < max(over, under) * (1 - _BLUR) else None


def _floored(weights: Weights) -> Weights:
    mean = float(weights.mean())
    if mean == 0:
        return np.ones_like(weights)
    return weights / mean + _EMPTY_SLOT


def _check(
    ring: Ring,
    weights: Weights,
    nodes: Sequence[NodeId],
    capacities: Mapping[NodeId, float],
    tolerance: float,
) -> None:
    if weights.shape != (ring.slots,):
        raise ConfigError(f"there must be {ring.slots} weights, got {weights.shape}")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ConfigError("weights must be finite and at least 0")
    if not nodes or len(set(nodes)) != len(nodes):
        raise ConfigError(f"nodes must differ, and be at least one, got {list(nodes)}")
    poor = {node: part for node, part in capacities.items() if not 0 < part < float("inf")}
    if poor:
        raise ConfigError(f"capacities must be finite and above 0, got {poor}")
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance must be from 0 to below 1, got {tolerance}")

"""The ring policy: loaded nodes hand slots to their clockwise neighbours (Floe, section VI).

A node is overloaded if both its queue and its CPU are over their high thresholds. It asks its
clockwise neighbour, which holds its copies, to take half of the difference; a neighbour without
room asks the next one first. If the whole neighbourhood is loaded, a node is added; a node that is
idle next to an idle neighbour is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.elastic.node_table import (
    WORTH_IT,
    Flags,
    NodeTable,
    check_between,
    check_thresholds,
    names,
    node_table,
    percent,
)
from millstream.elastic.slot_shares import (
    OwnedSlots,
    Transfer,
    Values,
    after,
    recut,
    runs,
    unevenness,
    weights_of,
)
from millstream.errors import ConfigError
from millstream.ring.ring import Ring


@dataclass(frozen=True, kw_only=True)
class RingOptions:
    """The thresholds of the ring policy.

    CPU is in parts of a core; a queue is the mean number of feeds that wait for a node or are
    being reduced. ``reach`` is how many neighbours with room are asked. ``max_imbalance`` is the
    load, relative to the mean, from which a node hands slots on although it is not overloaded:
    an epoch takes as long as its slowest node. Nodes below ``min_cpu`` never do.
    """

    cpu_high: float = 0.7
    cpu_low: float = 0.25
    queue_high: float = 0.5
    queue_low: float = 0.25
    max_imbalance: float = 1.2
    min_cpu: float = 0.1
    reach: int = 8

    def __post_init__(self) -> None:
        check_thresholds(self.cpu_low, self.cpu_high)
        check_between("queue_high", self.queue_high, 0, 1e6)
        check_between("queue_low", self.queue_low, 0, self.queue_high)
        check_between("max_imbalance", self.max_imbalance, 1.05, 1e6)
        check_between("min_cpu", self.min_cpu, 0, 64)
        if type(self.reach) is not int or self.reach < 1:
            raise ConfigError(f"reach must be an integer of at least 1, got {self.reach!r}")

    @property
    def settled(self) -> float:
        """The load, relative to the mean, that neighbours aim for: half of what is tolerated."""
        return 1 + (self.max_imbalance - 1) / 2


@dataclass(frozen=True)
class RingPolicy:
    """Floe's: ask the clockwise neighbours, then scale out; scale in where two are idle."""

    options: RingOptions = field(default_factory=RingOptions)
    name: ClassVar[str] = "ring"

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        if not history:
            return []
        load = history[-1]
        table = node_table(load, ring)
        high = (table.cpu >= self.options.cpu_high) & (table.feeds >= self.options.queue_high)
        uneven = table.uneven(self.options.max_imbalance, self.options.min_cpu)
        moves: list[Transfer] = []
        crowds: list[int] = []
        owned, weights = OwnedSlots(ring), weights_of(load)
        for chain in _neighbourhoods(table, high | uneven, self.options):
            cpu = table.cpu[chain]
            crowded = bool(high[chain].any()) and float(cpu.mean()) >= self.options.cpu_high
            if crowded and limits.addable(ring, 1):
                crowds += chain
            elif len(chain) > 1:
                moves += _evened(chain, table.seconds, owned, weights)
        actions: list[Action] = [
            *self._moves(moves, table),
            *self._added(crowds, high, table, ring, limits),
        ]
        if actions or high.any():
            return actions
        return self._removed(table, ring, limits)

    def _moves(self, transfers: list[Transfer], table: NodeTable) -> list[Action]:
        predicted = {"imbalance": unevenness(after(table.seconds, transfers))}
        return [
            MoveSlots(
                slots=runs(each.slots),
                source=table.nodes[each.source],
                to=table.nodes[each.target],
                reason=_why_moved(each, table),
                predicted=predicted,
            )
            for each in transfers
        ]

    def _added(
        self, crowds: list[int], high: Flags, table: NodeTable, ring: Ring, limits: Limits
    ) -> list[Action]:
        if not crowds:
            return []
        overloaded = sorted(
            (node for node in crowds if high[node]), key=lambda n: -table.seconds[n]
        )
        missing = table.missing(crowds, len(overloaded), self.options.cpu_high)
        count = limits.addable(ring, missing)
        relieved = overloaded[:count]
        nodes = tuple(table.nodes[node] for node in relieved)
        busiest = relieved[0]
        reason = (
            f"{names(nodes)} and the neighbours are loaded: {nodes[0]} used "
            f"{percent(table.cpu[busiest])} of a core with {table.feeds[busiest]:.1f} feeds at it, "
            f"and all of them {percent(float(table.cpu[crowds].mean()))} on average "
            f"(threshold {percent(self.options.cpu_high)})"
        )
        grown = len(table.nodes) + count
        predicted = {"nodes": grown, "mean_cpu": float(np.nansum(table.cpu)) / grown}
        return [AddNodes(count=count, relieve=nodes, reason=reason, predicted=predicted)]

    def _removed(self, table: NodeTable, ring: Ring, limits: Limits) -> list[Action]:
        most = limits.removable(ring)
        idle = (table.cpu <= self.options.cpu_low) & (table.feeds <= self.options.queue_low)
        pairs = np.flatnonzero(idle & np.roll(idle, -1))
        if most == 0 or len(pairs) == 0 or len(table.nodes) < 2:
            return []
        together = table.cpu + np.roll(table.cpu, -1)
        chosen: list[int] = []
        taken: set[int] = set()
        for node in pairs[np.argsort(together[pairs], kind="stable")].tolist():
            neighbour = (node + 1) % len(table.nodes)
            if len(chosen) < most and not taken.intersection((node, neighbour)):
                chosen.append(node)
                taken.update((node, neighbour))
        nodes = tuple(table.nodes[node] for node in chosen)
        first, second = chosen[0], (chosen[0] + 1) % len(table.nodes)
        left = len(table.nodes) - len(nodes)
        reason = (
            f"{names(nodes)} and the clockwise neighbours are idle: {table.nodes[first]} used "
            f"{percent(table.cpu[first])} of a core and {table.nodes[second]} "
            f"{percent(table.cpu[second])} (threshold {percent(self.options.cpu_low)})"
        )
        predicted = {"nodes": left, "mean_cpu": float(np.nansum(table.cpu)) / left}
        return [RemoveNodes(nodes=nodes, reason=reason, predicted=predicted)]


def _neighbourhoods(table: NodeTable, loaded: Flags, options: RingOptions) -> list[list[int]]:
    """For each run of loaded nodes, these and the neighbours that together can be evened out.

    Every shorter chain has a higher mean, so slots only ever go clockwise.
    """
    count = len(table.nodes)
    usable = ~np.isnan(table.cpu)
    # Where a run of loaded nodes begins; then the others, should such a chain not include them.
    first = np.flatnonzero(loaded & ~np.roll(loaded, 1)).tolist()
    every = np.flatnonzero(loaded)
    starts = first + every[np.argsort(-table.seconds[every], kind="stable")].tolist()
    goal = options.settled * float(table.seconds.mean())
    used: set[int] = set()
    chains: list[list[int]] = []
    for start in dict.fromkeys(starts):
        if start in used:
            continue
        chain, total, asked = [start], float(table.seconds[start]), 0
        best, lowest = 1, total
        while len(chain) < count and asked < options.reach and lowest > goal:
            node = (chain[-1] + 1) % count
            if node in used or not usable[node]:
                break
            chain.append(node)
            total += float(table.seconds[node])
            asked += not loaded[node]
            if total / len(chain) < lowest:
                best, lowest = len(chain), total / len(chain)
        chains.append(chain[:best])
        used.update(chain[:best])
    return chains


def _evened(chain: list[int], seconds: Values, owned: OwnedSlots, values: Values) -> list[Transfer]:
    pieces = [owned.clockwise(node) for node in chain]
    if not seconds[chain].sum() > 0:
        return []
    cut = recut(pieces, values)
    found = [
        Transfer(each.slots, chain[each.source], chain[each.target], each.amount) for each in cut
    ]
    relieved = after(seconds, found)[chain].max()
    return found if relieved <= WORTH_IT * seconds[chain].max() else []


def _why_moved(transfer: Transfer, table: NodeTable) -> str:
    source, target = transfer.source, transfer.target
    mean = float(table.seconds.mean())
    return (
        f"{table.nodes[source]} carries {table.seconds[source]:.3g} s per epoch, "
        f"{table.seconds[source] / mean:.2f} times the mean, with "
        f"{percent(table.cpu[source])} of a core and {table.feeds[source]:.1f} feeds at it: "
        f"{len(transfer.slots)} slots with {transfer.amount:.3g} s go clockwise to "
        f"{table.nodes[target]}, which carries {table.seconds[target]:.3g} s"
    )

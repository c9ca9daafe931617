"""The bottleneck policy: split the nodes whose CPU stays over a threshold (SEEP, section 5.1).

A node is a bottleneck if CPU was over the threshold in a number of consecutive reports. Half of
its load goes to a node that has room for it, or else to a new one. A node that stays under the low
threshold is removed if the others have room for its load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

import numpy as np

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.elastic.node_table import (
    HEADROOM,
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
    after,
    portion,
    runs,
    unevenness,
    weights_of,
)
from millstream.errors import ConfigError
from millstream.ring.ring import Ring


@dataclass(frozen=True, kw_only=True)
class BottleneckOptions:
    """The thresholds of the bottleneck policy.

    CPU is in parts of a core. ``reports`` consecutive reports, ``every`` apart, must agree.
    ``max_imbalance`` is the load, relative to the mean, from which a node is split although its CPU
    is not over the threshold: an epoch takes as long as its slowest node. Nodes below ``min_cpu``
    never are.
    """

    cpu_high: float = 0.7
    cpu_low: float = 0.25
    reports: int = 2
    every: timedelta = timedelta(seconds=5)
    max_imbalance: float = 1.2
    min_cpu: float = 0.1

    def __post_init__(self) -> None:
        check_thresholds(self.cpu_low, self.cpu_high)
        check_between("max_imbalance", self.max_imbalance, 1.05, 1e6)
        check_between("min_cpu", self.min_cpu, 0, 64)
        if type(self.reports) is not int or self.reports < 1:
            raise ConfigError(f"reports must be an integer of at least 1, got {self.reports!r}")
        if not isinstance(self.every, timedelta) or self.every < timedelta(0):
            raise ConfigError(f"every must be a timedelta of at least 0, got {self.every!r}")


@dataclass(frozen=True)
class BottleneckPolicy:
    """SEEP's: split a node whose CPU stays high; remove nodes whose CPU stays low."""

    options: BottleneckOptions = field(default_factory=BottleneckOptions)
    name: ClassVar[str] = "bottleneck"

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        options = self.options
        loads = _reports(history, options)
        if len(loads) < options.reports:
            return []
        tables = [node_table(load, ring) for load in loads]
        high = _always([table.cpu > options.cpu_high for table in tables])
        low = _always([table.cpu < options.cpu_low for table in tables])
        uneven = _always([each.uneven(options.max_imbalance, options.min_cpu) for each in tables])
        table = tables[0]
        split = _Split(table, loads[0], ring, limits, options.cpu_high)
        for node in np.argsort(-table.seconds, kind="stable").tolist():
            if high[node] or uneven[node]:
                split.relieve(node, overloaded=bool(high[node]))
        actions = [*self._moves(split, table), *self._added(split, table)]
        if actions or high.any():
            return actions
        return self._removed(low, table, ring, limits)

    def _moves(self, split: _Split, table: NodeTable) -> list[Action]:
        predicted = {"imbalance": unevenness(after(table.seconds, split.transfers))}
        return [
            MoveSlots(
                slots=runs(each.slots),
                source=table.nodes[each.source],
                to=table.nodes[each.target],
                reason=(
                    f"{table.nodes[each.source]} used {percent(table.cpu[each.source])} of a core "
                    f"and carries {table.seconds[each.source]:.3g} s per epoch, as in "
                    f"{self.options.reports} reports: {len(each.slots)} slots with "
                    f"{each.amount:.3g} s go to {table.nodes[each.target]}, which carries "
                    f"{table.seconds[each.target]:.3g} s"
                ),
                predicted=predicted,
            )
            for each in split.transfers
        ]

    def _added(self, split: _Split, table: NodeTable) -> list[Action]:
        if not split.unrelieved:
            return []
        nodes = tuple(table.nodes[node] for node in split.unrelieved)
        first = split.unrelieved[0]
        reason = (
            f"{names(nodes)} used more than {percent(self.options.cpu_high)} of a core in "
            f"{self.options.reports} reports ({nodes[0]}: {percent(table.cpu[first])}), and no "
            "node has room for half of the load"
        )
        grown = len(table.nodes) + split.added
        predicted = {"nodes": grown, "mean_cpu": float(np.nansum(table.cpu)) / grown}
        return [AddNodes(count=split.added, relieve=nodes, reason=reason, predicted=predicted)]

    def _removed(self, low: Flags, table: NodeTable, ring: Ring, limits: Limits) -> list[Action]:
        idlest = np.flatnonzero(low)
        idlest = idlest[np.argsort(table.cpu[idlest], kind="stable")]
        total, staying = float(np.nansum(table.cpu)), len(table.nodes)
        # The others must stay well below the high threshold with the load of those that leave.
        needed = int(np.ceil(total / (HEADROOM * self.options.cpu_high)))
        count = min(len(idlest), limits.removable(ring), staying - max(1, needed))
        if count <= 0:
            return []
        nodes = tuple(table.nodes[node] for node in idlest[:count].tolist())
        cpu = total / (staying - count)
        reason = (
            f"{names(nodes)} used less than {percent(self.options.cpu_low)} of a core in "
            f"{self.options.reports} reports ({nodes[0]}: {percent(table.cpu[idlest[0]])}); the "
            f"{staying - count} nodes that stay will use {percent(cpu)} on average"
        )
        predicted = {"nodes": staying - count, "mean_cpu": cpu}
        return [RemoveNodes(nodes=nodes, reason=reason, predicted=predicted)]


def _reports(history: Sequence[Load], options: BottleneckOptions) -> list[Load]:
    """The newest load and those before it, ``every`` apart, newest first."""
    found: list[Load] = []
    for load in reversed(history):
        if not found or found[-1].time - load.time >= options.every.total_seconds():
            found.append(load)
        if len(found) == options.reports:
            break
    return found


def _always(flags: Sequence[Flags]) -> Flags:
    always: Flags = np.logical_and.reduce(flags)
    return always


class _Split:
    """Finds a receiver for half of the load of each node that is to be relieved."""

    def __init__(
        self, table: NodeTable, load: Load, ring: Ring, limits: Limits, cpu_high: float
    ) -> None:
        self.transfers: list[Transfer] = []
        self.unrelieved: list[int] = []
        self._table, self._values, self._cpu_high = table, weights_of(load), cpu_high
        self._owned = OwnedSlots(ring)
        everyone = list(range(len(table.nodes)))
        self._addable = limits.addable(ring, table.missing(everyone, len(everyone), cpu_high))
        able = np.flatnonzero(~np.isnan(table.cpu))
        # The least loaded first; each receives once, and so from a node with more load than all
        # that received before it: nobody receives and gives.
        self._receivers = deque(able[np.argsort(table.seconds[able], kind="stable")].tolist())

    def relieve(self, node: int, *, overloaded: bool) -> None:
        """Move half of the difference to the least loaded node, or ask for a new one."""
        found = self._transfer(node)
        lacking = overloaded and (found is None or not self._has_room(found))
        if lacking and len(self.unrelieved) < self._addable and self._is_divisible(node):
            self.unrelieved.append(node)
        elif found is not None:
            self.transfers.append(found)
            self._receivers.popleft()

    @property
    def added(self) -> int:
        """How many nodes are asked for: one for each that is split, more under pressure."""
        return self._addable if self._table.pressure > 1 else len(self.unrelieved)

    def _transfer(self, node: int) -> Transfer | None:
        if not self._receivers:
            return None
        seconds, receiver = self._table.seconds, self._receivers[0]
        wanted = float(seconds[node] - seconds[receiver]) / 2
        slots = portion(self._owned.of(node), self._values, wanted)
        amount = float(self._values[slots].sum())
        busier = max(seconds[node] - amount, seconds[receiver] + amount)
        if len(slots) == 0 or busier > WORTH_IT * seconds[node]:
            return None
        return Transfer(slots, node, receiver, amount)

    def _is_divisible(self, node: int) -> bool:
        """Whether a new node could take a good part; not if one slot has nearly all the load."""
        slots, seconds = self._owned.of(node), self._table.seconds[node]
        part = self._values[portion(slots, self._values, seconds / 2)].sum()
        return bool(part >= (1 - WORTH_IT) * seconds)

    def _has_room(self, transfer: Transfer) -> bool:
        table = self._table
        per_second = table.cpu[transfer.source] / table.seconds[transfer.source]
        return bool(table.cpu[transfer.target] + transfer.amount * per_second < self._cpu_high)

"""The latency policy: slots go from the slowest nodes to the fastest (C-MR, section 4.7.6).

The node with the lowest latency is paired with that of the highest, the second lowest with the
second highest, and so on. In each pair slots move only if the predicted mean latency falls. With a
target the policy also adds and removes nodes, which C-MR leaves to its caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

import numpy as np

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.elastic.node_table import check_between, names
from millstream.elastic.slot_shares import (
    OwnedSlots,
    Slots,
    Transfer,
    Values,
    after,
    per_node,
    portion,
    runs,
)
from millstream.elastic.wait_queue import WaitQueues, wait_queues
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring


@dataclass(frozen=True, kw_only=True)
class LatencyOptions:
    """What the latency policy aims for.

    Slots move between two nodes if their mean latency is predicted to fall by at least the part
    ``min_gain``. Nodes are added while the mean latency of the run would be over ``target`` even
    if balanced, and removed while it would stay under ``low`` times the target without them.
    Without a target the number of nodes does not change.
    """

    min_gain: float = 0.01
    target: timedelta | None = None
    low: float = 0.5

    def __post_init__(self) -> None:
        check_between("min_gain", self.min_gain, 0.001, 1)
        check_between("low", self.low, 0, 0.9)
        if self.target is not None and (
            not isinstance(self.target, timedelta) or self.target <= timedelta(0)
        ):
            raise ConfigError(f"target must be a timedelta of more than 0, got {self.target!r}")


@dataclass(frozen=True)
class LatencyPolicy:
    """C-MR's: balance latency, not load, so that faster nodes carry more."""

    options: LatencyOptions = field(default_factory=LatencyOptions)
    name: ClassVar[str] = "latency"

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        if not history:
            return []
        load = history[-1]
        known = [index for index, node in enumerate(ring.nodes) if node in load.nodes]
        nodes = [ring.nodes[index] for index in known]
        queues = wait_queues(load, nodes)
        if queues is None:
            return []
        tuples = per_node(load.tuples, ring)[known]
        owned = OwnedSlots(ring)
        slots = [owned.of(index) for index in known]
        transfers = _transfers(queues, tuples, load.tuples, slots, self.options.min_gain)
        if transfers:
            expected = queues.mean_latency(after(tuples, transfers))
            return _moves(transfers, nodes, queues, tuples, expected)
        return self._scaled(queues, tuples, load.demand, nodes, ring, limits)

    def _scaled(
        self,
        queues: WaitQueues,
        tuples: Values,
        demand: float,
        nodes: list[NodeId],
        ring: Ring,
        limits: Limits,
    ) -> list[Action]:
        if self.options.target is None:
            return []
        target = self.options.target.total_seconds()
        total = float(tuples.sum()) * demand
        if queues.at_best(total) > target:
            addable = limits.addable(ring, len(nodes))
            return _added(queues, tuples, demand, target, nodes, addable)
        if limits.removable(ring) == 0 or len(nodes) < 2:
            return []
        slowest = int(np.argmax(queues.costs))
        expected = queues.without(slowest).at_best(total)
        if expected > self.options.low * target:
            return []
        reason = (
            f"without {nodes[slowest]}, the slowest node, mean latency will be {_ms(expected)}, "
            f"and the target is {_ms(target)}"
        )
        predicted = {"nodes": len(ring.nodes) - 1, "latency": expected}
        return [RemoveNodes(nodes=(nodes[slowest],), reason=reason, predicted=predicted)]


def _transfers(
    queues: WaitQueues,
    tuples: Values,
    values: Values,
    owned: Sequence[Slots],
    min_gain: float,
) -> list[Transfer]:
    """Pair the best receivers with the worst donors; what moves in each pair, if it pays."""
    order = np.argsort(queues.latencies(tuples), kind="stable").tolist()
    found: list[Transfer] = []
    for receiver, donor in zip(order, reversed(order[(len(order) + 1) // 2 :]), strict=False):
        wanted = queues.best_transfer(donor, receiver, tuples)
        slots = portion(owned[donor], values, wanted)
        moved = float(values[slots].sum())
        if len(slots) and queues.gain(donor, receiver, tuples, moved) >= min_gain:
            found.append(Transfer(slots, donor, receiver, moved))
    return found


def _moves(
    transfers: Sequence[Transfer],
    nodes: Sequence[NodeId],
    queues: WaitQueues,
    tuples: Values,
    expected: float,
) -> list[Action]:
    latencies, before = queues.latencies(tuples), queues.mean_latency(tuples)
    return [
        MoveSlots(
            slots=runs(each.slots),
            source=nodes[each.source],
            to=nodes[each.target],
            reason=(
                f"a tuple takes {_ms(latencies[each.source])} on {nodes[each.source]} and "
                f"{_ms(latencies[each.target])} on {nodes[each.target]}: with "
                f"{len(each.slots)} slots moved, mean latency of the run falls from "
                f"{_ms(before)} to {_ms(expected)}"
            ),
            predicted={"latency": expected},
        )
        for each in transfers
    ]


def _added(
    queues: WaitQueues,
    tuples: Values,
    demand: float,
    target: float,
    nodes: list[NodeId],
    addable: int,
) -> list[Action]:
    total = float(tuples.sum()) * demand
    missing = float((total / target - (1 / queues.costs).sum()) * queues.costs.mean())
    count = min(int(np.ceil(missing)), addable)
    if count == 0:
        return []
    now, expected = queues.at_best(total), queues.with_average(count).at_best(total)
    worst = np.argsort(-queues.latencies(tuples), kind="stable")[:count]
    relieve = tuple(nodes[node] for node in worst.tolist())
    reason = (
        f"balanced over {len(nodes)} nodes, mean latency is {_ms(now)}, over the target of "
        f"{_ms(target)}; the highest is that of {names(relieve)}"
    )
    predicted = {"nodes": len(nodes) + count, "latency": expected}
    return [AddNodes(count=count, relieve=relieve, reason=reason, predicted=predicted)]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"

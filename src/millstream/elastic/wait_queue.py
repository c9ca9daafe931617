"""The wait-queue model: the latency of tuples on each node, given how many it gets (C-MR, 4.7).

The latency of a tuple on a node is the time to process it, and the time it waits for every other
tuple of the node (equation 4.1). Moving load changes the second term in proportion (4.2 to 4.4).
C-MR sums over the operators of a host; here all jobs share one ring, and a slot that moves takes
all of them with it, so that the work of a node is one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from millstream.elastic.load import Load, NodeLoad
from millstream.elastic.slot_shares import Values
from millstream.ring.ring import NodeId

# Below these a node's figures say nothing about its speed.
_FEWEST = 0.001
_SHORTEST = 1e-9


@dataclass(frozen=True)
class WaitQueues:
    """What a tuple costs on each node: the time to process it.

    An epoch ends when all of its feeds are reduced, so a tuple waits for every other one that its
    node gets in the epoch, and C-MR's wait for a tuple (W) is the time to process it (P). Not the
    queue that nodes report: that is the waits of all feeds, and grows with their number.
    """

    costs: Values

    def latencies(self, tuples: Values) -> Values:
        """The mean latency on each node, given its tuples per epoch (4.1, and 4.2 after a move)."""
        return self.costs * (1 + tuples)

    def mean_latency(self, tuples: Values) -> float:
        """The mean latency of all tuples."""
        total = float(tuples.sum())
        return float((self.latencies(tuples) * tuples).sum()) / total if total > 0 else 0.0

    def best_transfer(self, donor: int, receiver: int, tuples: Values) -> float:
        """How many tuples must move for the least mean latency of the two; negative: the other way.

        The right side of 4.5 is a parabola in the tuples that move; this is its vertex.
        """
        of_donor, of_receiver = self.costs[donor], self.costs[receiver]
        pull = of_donor * (2 * tuples[donor] + 1) - of_receiver * (2 * tuples[receiver] + 1)
        both = 2 * (of_donor + of_receiver)
        return float(pull / both) if both > 0 else 0.0

    def gain(self, donor: int, receiver: int, tuples: Values, moved: float) -> float:
        """By which part the mean latency of two nodes falls if tuples move between them (4.5)."""
        pair = [donor, receiver]
        queues = WaitQueues(self.costs[pair])
        before = queues.mean_latency(tuples[pair])
        later = queues.mean_latency(tuples[pair] + np.array([-moved, moved]))
        return 1 - later / before if before > 0 else 0.0

    def at_best(self, tuples: float) -> float:
        """The latency if tuples were spread over the nodes in the best way, which is by speed."""
        return tuples / float((1 / self.costs).sum())

    def without(self, node: int) -> WaitQueues:
        """The model without a node."""
        return WaitQueues(np.delete(self.costs, node))

    def with_average(self, count: int) -> WaitQueues:
        """The model with more nodes, each an average one."""
        return WaitQueues(np.append(self.costs, np.full(count, self.costs.mean())))


def wait_queues(load: Load, nodes: Sequence[NodeId]) -> WaitQueues | None:
    """Return the model of these nodes; None if none has reduced anything yet.

    A node without figures of its own is taken for an average one of its kind, or of all if there
    is no other of its kind.
    """
    own = {name: cost for name, node in load.nodes.items() if (cost := _cost(node)) is not None}
    if not own or not nodes:
        return None
    kinds: dict[str, list[float]] = {}
    for name, cost in own.items():
        kinds.setdefault(load.nodes[name].kind, []).append(cost)
    averages = {kind: fmean(costs) for kind, costs in kinds.items()}
    anyone = fmean(own.values())

    def cost_of(name: NodeId) -> float:
        kind = load.nodes[name].kind if name in load.nodes else None
        return own.get(name) or averages.get(kind or "", anyone)

    return WaitQueues(np.array([cost_of(name) for name in nodes]))


def mean_latency(load: Load) -> float:
    """The mean latency of the tuples of an epoch, as measured."""
    measured = [node for node in load.nodes.values() if _cost(node) is not None]
    queues = wait_queues(load, [node.node for node in measured])
    if queues is None:
        return 0.0
    return queues.mean_latency(np.array([node.tuples for node in measured]))


def _cost(node: NodeLoad) -> float | None:
    if node.tuples < _FEWEST or node.reduce_seconds < _SHORTEST:
        return None
    return node.reduce_seconds / node.tuples

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
    """What a tuple costs on each node.

    ``processing`` is the time to process a tuple (P in C-MR); ``wait`` is how long a tuple waits
    for each tuple that the node gets in an epoch (W).
    """

    processing: Values
    wait: Values

    def latencies(self, tuples: Values) -> Values:
        """The mean latency on each node, given its tuples per epoch (4.1, and 4.2 after a move)."""
        return self.processing + self.wait * tuples

    def mean_latency(self, tuples: Values) -> float:
        """The mean latency of all tuples."""
        total = float(tuples.sum())
        return float((self.latencies(tuples) * tuples).sum()) / total if total > 0 else 0.0

    def best_transfer(self, donor: int, receiver: int, tuples: Values) -> float:
        """How many tuples must move for the least mean latency of the two; negative: the other way.

        The right side of 4.5 is a parabola in the tuples that move; this is its vertex.
        """
        pull = 2 * (self.wait[donor] * tuples[donor] - self.wait[receiver] * tuples[receiver])
        pull += self.processing[donor] - self.processing[receiver]
        both = 2 * (self.wait[donor] + self.wait[receiver])
        return float(pull / both) if both > 0 else 0.0

    def gain(self, donor: int, receiver: int, tuples: Values, moved: float) -> float:
        """By which part the mean latency of two nodes falls if tuples move between them (4.5)."""
        pair = [donor, receiver]
        queues = WaitQueues(self.processing[pair], self.wait[pair])
        before = queues.mean_latency(tuples[pair])
        later = queues.mean_latency(tuples[pair] + np.array([-moved, moved]))
        return 1 - later / before if before > 0 else 0.0

    def at_best(self, tuples: float) -> float:
        """The latency if tuples were spread over the nodes in the best way, which is by speed."""
        return tuples / float((1 / self.wait).sum())

    def without(self, node: int) -> WaitQueues:
        """The model without a node."""
        return WaitQueues(np.delete(self.processing, node), np.delete(self.wait, node))

    def with_average(self, count: int) -> WaitQueues:
        """The model with more nodes, each an average one."""
        more = np.full(count, 1.0)
        return WaitQueues(
            np.concatenate([self.processing, more * self.processing.mean()]),
            np.concatenate([self.wait, more * self.wait.mean()]),
        )


def wait_queues(load: Load, nodes: Sequence[NodeId]) -> WaitQueues | None:
    """Return the model of these nodes; None if none has reduced anything yet.

    A node without figures of its own is taken for an average one of its kind, or of all if there
    is no other of its kind.
    """
    own = {name: costs for name, node in load.nodes.items() if (costs := _costs(node)) is not None}
    if not own or not nodes:
        return None
    kinds: dict[str, list[tuple[float, float]]] = {}
    for name, costs in own.items():
        kinds.setdefault(load.nodes[name].kind, []).append(costs)
    averages = {kind: _average(costs) for kind, costs in kinds.items()}
    anyone = _average(list(own.values()))

    def costs_of(name: NodeId) -> tuple[float, float]:
        kind = load.nodes[name].kind if name in load.nodes else None
        return own.get(name) or averages.get(kind or "", anyone)

    processing, wait = zip(*map(costs_of, nodes), strict=True)
    return WaitQueues(np.array(processing), np.array(wait))


def mean_latency(load: Load) -> float:
    """The mean latency of the tuples of an epoch, as measured."""
    measured = [node for node in load.nodes.values() if _costs(node) is not None]
    queues = wait_queues(load, [node.node for node in measured])
    if queues is None:
        return 0.0
    return queues.mean_latency(np.array([node.tuples for node in measured]))


def _costs(node: NodeLoad) -> tuple[float, float] | None:
    if node.tuples < _FEWEST or node.reduce_seconds < _SHORTEST:
        return None
    # Results leave a node when a feed is reduced, so a tuple waits for all others as well.
    waited = node.queue + node.reduce_seconds
    return node.reduce_seconds / node.tuples, waited / node.tuples


def _average(costs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return fmean(each[0] for each in costs), fmean(each[1] for each in costs)

"""How nodes are spread over Spark's executors, and which give way. No I/O, no clock.

When nodes are started and released is decided in :mod:`millstream.elastic.pool_state`.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.ring.ring import NodeId

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Executor:
    """A living executor of Spark, by its id."""

    name: str
    host: str
    cores: int

    def capacity(self, nodes_per_core: float) -> int:
        """How many nodes it can hold, at least one."""
        return max(1, math.ceil(self.cores * nodes_per_core - _ROUNDING))


@dataclass(frozen=True, kw_only=True)
class PoolMember:
    """A member of the run, as the pool sees it; one that is ``leaving`` gives up its slots."""

    node: NodeId
    executor: str
    standby: bool = False
    leaving: bool = False


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """How many nodes to start: ``total`` of them, at most ``limits`` on each executor."""

    total: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)

    def claimed_by(self, executor: str) -> LaunchPlan | None:
        """What remains when an executor starts one of the nodes; None if none is to start there."""
        limit = self.limits.get(executor, 0)
        if self.total < 1 or limit < 1:
            return None
        return LaunchPlan(total=self.total - 1, limits={**self.limits, executor: limit - 1})


def spread(
    count: int,
    executors: Iterable[Executor],
    nodes: Mapping[str, int],
    room: Mapping[str, int],
    preferred: Iterable[str] = (),
) -> dict[str, int]:
    """How many of ``count`` nodes to start on each executor, at most its ``room``.

    First one for each time that an executor is ``preferred``; then always on the executor that has
    the fewest nodes, among those on the host with the fewest. Less than ``count`` if there is not
    enough room.
    """
    living = {executor.name: executor for executor in executors}
    launches: Counter[str] = Counter()
    for name in preferred:
        if name in living and launches.total() < count and launches[name] < room.get(name, 0):
            launches[name] += 1
    hosts: Counter[str] = Counter()
    for name, executor in living.items():
        hosts[executor.host] += nodes.get(name, 0) + launches[name]

    def load(name: str) -> tuple[int, int, str]:
        return nodes.get(name, 0) + launches[name], hosts[living[name].host], name

    queue = [load(name) for name in living]
    heapq.heapify(queue)
    while queue and launches.total() < count:
        known = heapq.heappop(queue)
        name = known[-1]
        if launches[name] >= room.get(name, 0):
            continue
        if known != load(name):  # another executor of its host got a node
            heapq.heappush(queue, load(name))
            continue
        launches[name] += 1
        hosts[living[name].host] += 1
        heapq.heappush(queue, load(name))
    return {name: number for name, number in launches.items() if number}


def superfluous(members: Sequence[PoolMember], target: int, standby: int) -> tuple[NodeId, ...]:
    """The members on standby that are too many, beside ``target`` active ones and ``standby``.

    Those go first whose executors have the fewest nodes, so that these can be released. Active
    members that are too many are none of the pool's business.
    """
    staying = [member for member in members if not member.leaving]
    waiting = [member for member in staying if member.standby]
    active = len(staying) - len(waiting)
    surplus = len(waiting) - max(0, target - active) - standby
    nodes = Counter(member.executor for member in members)
    waiting.sort(key=lambda member: (nodes[member.executor], member.executor, member.node))
    return tuple(member.node for member in waiting[: max(0, surplus)])

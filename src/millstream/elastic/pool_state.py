"""What the pool of nodes does at each tick: a state machine without I/O and without a clock.

It is shown the members, the executors and the nodes that are starting, and returns what to do, so
that there are ``target`` nodes and some on standby. Which members are active, and which of them
leave, is decided elsewhere. Where nodes are started is computed in
:mod:`millstream.elastic.pool_plan`, how many executors are needed in
:mod:`millstream.elastic.executor_demand`; :mod:`millstream.spark.node_pool` drives this machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millstream.elastic.executor_demand import ExecutorDemand
from millstream.elastic.pool_events import PoolEvent
from millstream.elastic.pool_options import ExecutorSupply, PoolOptions
from millstream.elastic.pool_plan import (
    Executor,
    LaunchPlan,
    PoolMember,
    spread,
    superfluous,
)
from millstream.ring.ring import NodeId

_PICKY_TRIES = 3
_STORM_SECONDS = 60.0
_STORM_LOSSES = 3  # for each node that there should be


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """What the pool sees at a tick; ``target`` is how many members shall be active.

    ``starting`` are nodes that were launched and have not joined, by executor; ``tries`` is how
    many launch jobs in a row have not reached the executors they were meant for.
    """

    now: float
    target: int
    members: Sequence[PoolMember]
    dead: Collection[NodeId]
    executors: Sequence[Executor]
    starting: Mapping[str, int] = field(default_factory=dict)
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolActions:
    """What to do now: start nodes, ``drain`` those that are too many, change the executors.

    Executors are released first; then ``request`` is how many there shall be.
    """

    launches: LaunchPlan = field(default_factory=LaunchPlan)
    drain: tuple[NodeId, ...] = ()
    request: int | None = None
    release: tuple[str, ...] = ()
    events: tuple[PoolEvent, ...] = ()


@dataclass(frozen=True)
class _Lost:
    node: NodeId
    executor: str
    at: float


class PoolState:
    """Decides what the pool does."""

    def __init__(self, options: PoolOptions, target: int, members: Iterable[PoolMember]) -> None:
        self._options = options
        self._target = target
        self._members = {member.node: member for member in members}
        self._lost: list[_Lost] = []  # and not replaced
        self._dead: frozenset[NodeId] = frozenset()
        self._losses: list[float] = []
        self._was_paused = False
        self._demand = ExecutorDemand(options)
        self._per_executor = 1
        self._events: list[PoolEvent] = []

    def tick(self, view: PoolView) -> PoolActions:
        """What to do now."""
        view = replace(view, executors=self._demand.usable(view.executors, view.now))
        self._compare(view)
        living = {executor.name for executor in view.executors}
        # What was starting on an executor that has died since does not come any more.
        starting = Counter({name: n for name, n in view.starting.items() if name in living})
        nodes = Counter(member.executor for member in view.members) + starting
        missing = self._missing(view, starting.total())
        room = self._room(view, nodes, missing)
        short = missing - sum(room.values())
        request = self._demand.request(view.executors, short, self._per_executor, view.now)
        if self._options.overcommit and self._demand.is_denied:
            room = dict.fromkeys(living, missing)
        launches = self._launches(view, nodes, room, missing)
        expected = nodes + Counter(launches.limits)
        release, rest = self._demand.release(view.executors, expected, view.now)
        return PoolActions(
            launches=launches,
            drain=superfluous(view.members, view.target, self._options.standby),
            request=request if rest is None else rest,
            release=release,
            events=self._take_events(),
        )

    def _take_events(self) -> tuple[PoolEvent, ...]:
        events = (*self._events, *self._demand.events)
        self._events, self._demand.events = [], []
        return events

    # -- members -------------------------------------------------------------------------

    def _compare(self, view: PoolView) -> None:
        """Note who joined, died and left since the last tick."""
        before, self._members = self._members, {member.node: member for member in view.members}
        for node, member in before.items():
            if node in self._members:
                continue
            if member.leaving or node not in view.dead:
                self._demand.vacate(member.executor, view.now)
            else:
                self._lost.append(_Lost(node, member.executor, view.now))
        # Also those that joined and died since the last tick.
        self._losses += [view.now for node in view.dead if node not in self._dead]
        self._dead = frozenset(view.dead)
        for node, member in self._members.items():
            if node not in before:
                self._note_joined(member, view.now)

    def _note_joined(self, member: PoolMember, now: float) -> None:
        if not self._lost or self._options.replace_after is None:
            return
        executor = member.executor
        lost = next((lost for lost in self._lost if lost.executor == executor), self._lost[0])
        self._lost.remove(lost)
        seconds = now - lost.at
        text = (
            f"node {member.node[:8]} on executor {executor} replaces node {lost.node[:8]}, which "
            f"died {seconds:.1f} s ago"
        )
        facts = {"node": member.node, "executor": executor, "lost": lost.node, "seconds": seconds}
        self._events.append(PoolEvent("replaced", text, facts))

    def _missing(self, view: PoolView, starting: int) -> int:
        """How many nodes to start."""
        replaces = self._options.replace_after is not None
        if view.target > self._target and not replaces:
            self._lost.clear()  # whoever asks for more nodes wants so many
        self._target = view.target
        staying = sum(not member.leaving for member in view.members)
        wanted = view.target + self._options.standby - (0 if replaces else len(self._lost))
        if replaces and staying >= wanted:
            self._lost.clear()
        return 0 if self._is_paused(view.now, wanted) else max(0, wanted - staying - starting)

    def _is_paused(self, now: float, wanted: int) -> bool:
        """Whether nodes die so fast that replacing them would only go on forever."""
        self._losses = [at for at in self._losses if now - at < _STORM_SECONDS]
        before, self._was_paused = self._was_paused, len(self._losses) > _STORM_LOSSES * wanted
        if self._was_paused and not before:
            text = (
                f"{len(self._losses)} nodes died within {_STORM_SECONDS:.0f} s, and are not "
                "replaced until that ends; see the executors' stderr for what ends them"
            )
            facts = {"losses": len(self._losses)}
            self._events.append(PoolEvent("replacement-paused", text, facts))
        return self._was_paused

    # -- launches ------------------------------------------------------------------------

    def _room(self, view: PoolView, nodes: Counter[str], missing: int) -> dict[str, int]:
        """How many nodes can be started on each executor."""
        if self._options.supply is ExecutorSupply.LOCAL:
            return {executor.name: missing for executor in view.executors}
        capacity = {
            executor.name: executor.capacity(self._options.nodes_per_core)
            for executor in view.executors
        }
        self._per_executor = max(capacity.values(), default=self._per_executor)
        held = Counter(member.executor for member in view.members)
        held.update(lost.executor for lost in self._lost)  # what it held, it can hold again
        return {
            name: max(0, max(limit, held[name]) - nodes[name]) for name, limit in capacity.items()
        }

    def _launches(
        self, view: PoolView, nodes: Mapping[str, int], room: Mapping[str, int], missing: int
    ) -> LaunchPlan:
        total = min(missing, sum(room.values()))
        if total == 0:
            return LaunchPlan()
        if view.tries >= _PICKY_TRIES or self._is_urgent(view.now):
            return LaunchPlan(total=total, limits={n: limit for n, limit in room.items() if limit})
        preferred = [lost.executor for lost in self._lost]
        return LaunchPlan(total=total, limits=spread(total, view.executors, nodes, room, preferred))

    def _is_urgent(self, now: float) -> bool:
        """Whether a replacement must take any executor to be there in time."""
        after = self._options.replace_after
        return after is not None and any(
            now - lost.at > after.total_seconds() / 2 for lost in self._lost
        )

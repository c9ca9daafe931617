"""What the pool of nodes does at each tick: a state machine without I/O and without a clock.

It is shown the members, the executors and the nodes that are starting, and returns what to do, so
that there are ``target`` nodes and some on standby. Which members are active, and which of them
leave, is decided elsewhere. Where nodes are started is computed in
:mod:`millstream.elastic.pool_plan`; :mod:`millstream.spark.node_pool` drives this machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Literal

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

EventKind = Literal[
    "replaced",
    "replacement-paused",
    "not-started",
    "launch-failed",
    "executors-requested",
    "executors-granted",
    "executors-not-granted",
    "executors-released",
]


@dataclass(frozen=True)
class PoolEvent:
    """Something that happened in the pool: its kind, a sentence, and the facts behind it."""

    kind: EventKind
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class ExecutorSupply(Enum):
    """Whether the cluster manager grants executors."""

    LOCAL = "local"
    """There is one executor; any number of nodes are processes below it."""
    FIXED = "fixed"
    """Executors are replaced when they die, but their number does not change."""
    ELASTIC = "elastic"
    """Executors can be requested and released."""


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """What the pool keeps alive, and what it may do for it.

    A node that died is replaced within ``replace_after`` (never, if None) as long as an executor
    has room: ``nodes_per_core`` nodes for each core. If executors are missing for ``grant_within``,
    they are taken as not granted: with ``overcommit`` the nodes are then started on the executors
    that are there. An executor whose nodes left is released after ``release_after``.
    """

    supply: ExecutorSupply
    standby: int = 0
    replace_after: timedelta | None = timedelta(seconds=5)
    nodes_per_core: float = 1.0
    overcommit: bool = False
    grant_within: timedelta = timedelta(seconds=30)
    release_after: timedelta = timedelta(seconds=10)


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


@dataclass
class _Shortage:
    """Nodes do not fit on the executors, since when, and what was done about it."""

    since: float
    requested: int | None = None
    before: int = 0
    reported: bool = False


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
        self._vacated: dict[str, float] = {}
        self._shortage: _Shortage | None = None
        self._aim = 0  # how many executors Spark tries to keep
        self._per_executor = 1
        self._events: list[PoolEvent] = []

    def tick(self, view: PoolView) -> PoolActions:
        """What to do now."""
        self._compare(view)
        living = {executor.name for executor in view.executors}
        # What was starting on an executor that has died since does not come any more.
        starting = Counter({name: n for name, n in view.starting.items() if name in living})
        nodes = Counter(member.executor for member in view.members) + starting
        missing = self._missing(view, starting.total())
        room = self._room(view, nodes, missing)
        request = self._supply(view, missing - sum(room.values()))
        if self._may_overcommit:
            room = dict.fromkeys(living, missing)
        launches = self._launches(view, nodes, room, missing)
        release = self._release(view, nodes + Counter(launches.limits))
        if release:
            request = self._aim
        events, self._events = tuple(self._events), []
        return PoolActions(
            launches=launches,
            drain=superfluous(view.members, view.target, self._options.standby),
            request=request,
            release=release,
            events=events,
        )

    # -- members -------------------------------------------------------------------------

    def _compare(self, view: PoolView) -> None:
        """Note who joined, died and left since the last tick."""
        before, self._members = self._members, {member.node: member for member in view.members}
        for node, member in before.items():
            if node in self._members:
                continue
            if member.leaving or node not in view.dead:
                self._vacated.setdefault(member.executor, view.now)
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
        self._event(
            "replaced",
            f"node {member.node[:8]} on executor {executor} replaces node {lost.node[:8]}, which "
            f"died {seconds:.1f} s ago",
            {"node": member.node, "executor": executor, "lost": lost.node, "seconds": seconds},
        )

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
            self._event(
                "replacement-paused",
                f"{len(self._losses)} nodes died within {_STORM_SECONDS:.0f} s, and are not "
                "replaced until that ends; see the executors' stderr for what ends them",
                {"losses": len(self._losses)},
            )
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

    # -- executors -----------------------------------------------------------------------

    @property
    def _may_overcommit(self) -> bool:
        """Whether nodes are started although there is no room for them."""
        shortage = self._shortage
        return self._options.overcommit and shortage is not None and shortage.reported

    def _supply(self, view: PoolView, short: int) -> int | None:
        """Keep track of nodes that do not fit; return how many executors to ask for."""
        there = len(view.executors)
        self._aim = max(self._aim, there)
        if short <= 0:
            return self._end_shortage(there)
        shortage = self._shortage = self._shortage or _Shortage(view.now)
        needed = there + math.ceil(short / self._per_executor)
        # Spark replaces executors that died; it is asked only for more than it has in mind.
        if self._options.supply is ExecutorSupply.ELASTIC and needed > self._aim:
            if shortage.requested is None:
                shortage.before = self._aim
            shortage.requested = self._aim = needed
            shortage.since, shortage.reported = view.now, False
            facts = {"executors": there, "requested": needed, "short": short}
            text = (
                f"asked Spark for {needed} executors instead of {there}: {short} nodes do not fit"
            )
            self._event("executors-requested", text, facts)
            return needed
        waited = view.now - shortage.since
        if waited >= self._options.grant_within.total_seconds() and not shortage.reported:
            shortage.reported = True
            then = (
                "they are started on the executors that are there"
                if self._options.overcommit
                else "the run continues with fewer nodes until there are more executors"
            )
            self._event(
                "executors-not-granted",
                f"{short} nodes have no room on {there} executors since {waited:.0f} s; {then}",
                {"executors": there, "needed": needed, "short": short, "waited": waited},
            )
        return None

    def _end_shortage(self, there: int) -> int | None:
        """All nodes fit: note what was granted, withdraw what is not needed any more."""
        shortage, self._shortage = self._shortage, None
        if shortage is None or shortage.requested is None:
            return None
        if there >= shortage.requested:
            facts = {"executors": there}
            self._event("executors-granted", f"there are {there} executors now", facts)
            return None
        self._aim = max(shortage.before, there)
        return self._aim

    def _release(self, view: PoolView, nodes: Counter[str]) -> tuple[str, ...]:
        """The executors to release: their nodes left, and none are to come."""
        living = {executor.name for executor in view.executors}
        self._vacated = {
            name: since
            for name, since in self._vacated.items()
            if name in living and nodes[name] == 0
        }
        if self._options.supply is not ExecutorSupply.ELASTIC or self._shortage is not None:
            return ()
        grace = self._options.release_after.total_seconds()
        release = tuple(name for name, since in self._vacated.items() if view.now - since >= grace)
        if release:
            for name in release:
                del self._vacated[name]
            self._aim -= len(release)
            names = ", ".join(release)
            text = f"released executor {names}, whose nodes left"
            self._event("executors-released", text, {"executors": release})
        return release

    def _event(self, kind: EventKind, text: str, facts: Mapping[str, Any]) -> None:
        self._events.append(PoolEvent(kind, text, facts))

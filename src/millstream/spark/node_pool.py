"""The pool: keeps the nodes of a run alive, on the executors that Spark has.

A thread shows :class:`~millstream.elastic.pool_state.PoolState` what there is, twice a second, and
does what it decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Protocol

from pyspark import InheritableThread, SparkContext

from millstream.coordinator.launch_tickets import LaunchTickets, Ticket
from millstream.coordinator.roster import Roster
from millstream.coordinator.scaling import Scaling
from millstream.elastic.events import EventLog
from millstream.elastic.pool_events import PoolEvent
from millstream.elastic.pool_options import PoolOptions
from millstream.elastic.pool_plan import Executor, LaunchPlan, PoolMember
from millstream.elastic.pool_state import PoolState, PoolView
from millstream.log_context import inheriting
from millstream.spark.executors import Executors
from millstream.spark.node_launch import LaunchJobs, NodeTemplate
from millstream.wire.net import Net

log = logging.getLogger("millstream")

_EVERY = 0.5
_TASKS_PER_CORE = 2
_CLOSE_TIMEOUT = 5.0


class PooledRun(Protocol):
    """The run as the pool sees it; implemented by the coordinator."""

    @property
    def net(self) -> Net: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def scaling(self) -> Scaling: ...

    @property
    def launches(self) -> LaunchTickets: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def is_over(self) -> bool: ...


class ExecutorControl(Protocol):
    """Spark's executors; see :class:`millstream.spark.executors.Executors`."""

    def living(self) -> Sequence[Executor]: ...

    def request(self, total: int) -> None: ...

    def release(self, names: Sequence[str]) -> None: ...


class Launcher(Protocol):
    """Starts nodes; see :class:`millstream.spark.node_launch.LaunchJobs`."""

    @property
    def is_busy(self) -> bool: ...

    def begin(self, tasks: int) -> None: ...

    def failure(self) -> Exception | None: ...

    def close(self) -> None: ...


class NodePool:
    """Starts the nodes of a run, and replaces those that died."""

    def __init__(
        self,
        run: PooledRun,
        executors: ExecutorControl,
        launcher: Launcher,
        options: PoolOptions,
    ) -> None:
        """The run has begun: its members are the first nodes."""
        self._run = run
        self._executors = executors
        self._launcher = launcher
        self._state = PoolState(options, run.roster.target, self._members())
        self._tries = 0
        self._launching = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Tick in the background until the run is over."""
        # A thread that closes its connection to the JVM when it ends.
        work = inheriting(self._loop)
        self._thread = InheritableThread(target=work, name="millstream-pool", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start no more nodes."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)
        self._run.launches.allow(LaunchPlan())
        self._launcher.close()

    def _loop(self) -> None:
        failed = False
        while not self._run.is_over and not self._closed.wait(_EVERY):
            try:
                self.tick()
                failed = False
            except Exception as problem:  # among others, of a JVM that has ended
                if not failed and not self._closed.is_set():
                    log.warning("the pool of nodes failed, and will retry: %s", problem)
                failed = True

    def tick(self) -> None:
        """Look at what there is, and do what is to be done."""
        self._report_launches()
        # Tickets before members: a node that joins in between is counted twice, not missed.
        tickets = self._run.launches.view()
        executors = self._executors.living()
        actions = self._state.tick(
            PoolView(
                now=self._run.net.now(),
                target=self._run.roster.target,
                members=self._members(),
                dead=frozenset(self._run.roster.dead_nodes),
                executors=executors,
                starting=tickets.starting,
                tries=self._tries,
            )
        )
        self._emit(actions.events)
        self._run.launches.allow(actions.launches, tickets)
        if actions.release:
            self._executors.release(actions.release)
        if actions.request is not None:
            self._executors.request(actions.request)
        if actions.drain:
            self._run.scaling.dismiss(actions.drain)
        if actions.launches.total and not self._launcher.is_busy and not self._closed.is_set():
            self._launching = True
            cores = sum(executor.cores for executor in executors)
            self._launcher.begin(max(1, _TASKS_PER_CORE * cores))

    def _members(self) -> list[PoolMember]:
        roster = self._run.roster
        standby, leaving = frozenset(roster.standby), frozenset(roster.leaving)
        return [
            PoolMember(
                node=node,
                executor=domain.executor,
                standby=node in standby,
                leaving=node in leaving,
            )
            for node, domain in list(roster.domains.items())
        ]

    def _report_launches(self) -> None:
        """Note how the launch job ended, and which nodes never came."""
        if self._launching and not self._launcher.is_busy:
            self._launching = False
            unclaimed = self._run.launches.view().unclaimed
            self._tries = self._tries + 1 if unclaimed else 0
            problem = self._launcher.failure()
            if problem is not None:
                text = f"a Spark job that starts nodes failed: {str(problem)[:500]}"
                self._emit([PoolEvent("launch-failed", text, {"unclaimed": unclaimed})])
        self._emit(_not_started(ticket) for ticket in self._run.launches.remove_expired())

    def _emit(self, events: Iterable[PoolEvent]) -> None:
        for event in events:
            log.info("%s", event.text)
            self._run.events.add(event.kind, event.text, event.facts)


def pool_of(
    run: PooledRun,
    context: SparkContext,
    template: NodeTemplate,
    *,
    standby: int,
    replace_after: timedelta | None,
) -> NodePool:
    """The pool of a run that has begun on a session."""
    executors = Executors(context)
    cores = sum(executor.cores for executor in executors.living())
    options = PoolOptions(
        supply=executors.supply,
        standby=standby,
        replace_after=replace_after,
        # A user who wanted more nodes than cores at the start goes on with that.
        nodes_per_core=max(1.0, run.roster.target / max(1, cores)),
    )
    return NodePool(run, executors, LaunchJobs(context, template), options)


def _not_started(ticket: Ticket) -> PoolEvent:
    return PoolEvent(
        "not-started",
        f"a node that was started on executor {ticket.executor} on {ticket.host} has not joined "
        "in time; see the executor's stderr",
        {"executor": ticket.executor, "host": ticket.host},
    )

"""The handle of a workflow that runs: its status, progress and state, and how it ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.coordinator.service import Coordinator
from millstream.coordinator.state_reader import StateReader
from millstream.elastic.events import Event
from millstream.elastic.load import Load
from millstream.errors import ConfigError
from millstream.flow.graph_html import graph_html
from millstream.flow.plan import Plan
from millstream.flow.vertices import FusedVertex, JobVertex
from millstream.log_context import inheriting
from millstream.markup import block, unfolding
from millstream.observe.display import Display
from millstream.observe.progress import Progress
from millstream.observe.source_backlog import SourceBacklog
from millstream.ring.drawing import draw
from millstream.spark.dashboard_option import Dashboard
from millstream.spark.engine import Engine, EpochFailedError
from millstream.spark.gateway import BROKEN, Gateway
from millstream.spark.job_state import JobState
from millstream.spark.status import Phase, Status
from millstream.times import END, since_epoch

_POLL = 0.1


class Run:
    """A running workflow. Leaving the ``with`` block stops it."""

    def __init__(
        self,
        plan: Plan,
        coordinator: Coordinator,
        engine: Engine,
        query: StreamingQuery,
        progress: Progress,
        display: Display,
        cleanup: contextlib.ExitStack,
        gateway: Gateway,
        spark: SparkSession,
        backlog: Callable[[], Sequence[SourceBacklog]] = tuple,
    ) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._engine = engine
        self._query = query
        self._progress = progress
        self._display = display
        self._cleanup = cleanup
        self._gateway = gateway
        self._spark = spark
        self._backlog = backlog
        self.dashboard: Dashboard | None = None
        self._stopped = False
        self._raised = False
        self._lock = threading.RLock()

    @property
    def progress(self) -> Progress:
        """Reports of committed epochs, with rates and latencies."""
        return self._progress

    def status(self) -> Status:
        """Where the run is now."""
        now, load = self._coordinator.overview(), self._coordinator.load.newest()
        return Status(
            self._plan.name,
            self.phase(),
            now.committed,
            now.placement.version,
            now.nodes(),
            list(now.lost),
            draw(now.placement, now.domains),
            now.incarnation,
            now.durable,
            list(now.slow),
            list(now.waits),
            list(now.fenced_alive),
            now.target,
            now.pending,
            self._progress.totals,
            self._progress.last,
            {} if load is None else load.nodes,
            list(self._backlog()),
        )

    def _repr_html_(self) -> str:
        """The status and the graph, for notebooks."""
        graph = graph_html(self._plan)
        return block(self.status().html, unfolding("Graph", graph))

    def phase(self) -> Phase:
        """Whether it runs, or how it ended."""
        if self._failure() is not None:
            return "failed"
        if self._stopped:
            return "stopped"
        return "running" if self._is_active() else "finished"

    def _is_active(self) -> bool:
        """Whether Spark runs the query, or an epoch; if Spark was lost, the run has failed."""
        try:
            return bool(self._query.isActive) or not self._engine.is_idle
        except BROKEN as problem:
            self._engine.fail(problem)
            return False

    def state(self, job: str) -> JobState:
        """The committed state of a job."""
        for at, vertex in self._plan.jobs:
            if vertex.name == job:
                reader = StateReader(self._coordinator, self._gateway.explaining)
                return JobState(reader, at, self._spark)
        for at, fused in self._plan.of_kind(FusedVertex):
            if fused.name == job:
                leader = self._plan.vertices[self._plan.inputs[at][0]]
                assert isinstance(leader, JobVertex)
                raise ConfigError(
                    f"job {job!r} has no state of its own: {leader.name!r} reads the same values, "
                    f"and reduces the windows of both; read state({leader.name!r}), or define "
                    f"{job!r} with share=False"
                )
        names = ", ".join(vertex.name for _, vertex in self._plan.jobs)
        raise ConfigError(f"there is no job {job!r}; the jobs are {names}")

    def dashboard_link(self, *, viewer: bool = False) -> str:
        """A link that opens the dashboard in a browser, once, within five minutes.

        It allows to change the run, unless it is for a ``viewer``.
        """
        if self.dashboard is None:
            raise ConfigError(
                "this run has no dashboard: pip install 'millstream[dashboard]', and start it "
                "without dashboard=False"
            )
        return self.dashboard.login_link("viewer" if viewer else "operator")

    # -- elasticity ----------------------------------------------------------------------

    def scale(self, nodes: int) -> None:
        """Change the number of nodes while the workflow runs.

        Nodes are started, or give up their slots and leave, in the background; slots change owner
        between two epochs. ``await_moves`` waits until that is done.
        """
        self._coordinator.control.scale(nodes)

    def rebalance(self) -> None:
        """Move slots so that every node has a fair share of the load."""
        self._coordinator.control.rebalance()

    def move(self, slots: Iterable[int], to: str) -> None:
        """Make a node, named by its id or the beginning of it, the owner of slots."""
        self._coordinator.control.move(slots, to)

    def drain(self, node: str) -> None:
        """Let a node, named by its id or the beginning of it, give up its slots and leave."""
        self._coordinator.control.drain(node)

    def load(self) -> Load | None:
        """The load of nodes and slots after the newest epoch; None before the first."""
        return self._coordinator.load.newest()

    def events(self) -> list[Event]:
        """What happened to nodes and slots, and why; the newest thousand, oldest first.

        The time of an event is in seconds since 1970.
        """
        return self._coordinator.control.events().by_clock(time.time())

    def await_moves(self, timeout: timedelta) -> bool:
        """Wait until no slot is pending and all nodes are there; False if that takes longer."""
        deadline = time.monotonic() + timeout.total_seconds()
        while time.monotonic() < deadline:
            if self._coordinator.overview().is_settled:
                return True
            if not self._is_active():
                return False
            time.sleep(_POLL)
        return False

    def advance(self, to: datetime | None = None) -> None:
        """Advance the watermark at least to a time with the next epoch; None closes all windows.

        For input that marks when it is complete. Older values are late afterwards. Timers in event
        time up to the watermark fire; with None, all that wait.
        """
        if not any(job.reads_event_time for _, job in self._plan.jobs):
            raise ConfigError(
                "advance() is for workflows with windows or timers, and this one has none"
            )
        if to is not None and (not isinstance(to, datetime) or to.tzinfo is None):
            raise ConfigError(
                f"advance() takes a datetime with a time zone (or None), got {to!r}; pass for "
                "example tzinfo=datetime.UTC"
            )
        self._coordinator.advance(END if to is None else since_epoch(to))

    def await_termination(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end of bounded input (or a stop); True if the run has ended.

        Raises what made the run fail. State stays readable until ``stop``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        while self._is_active():
            if deadline is not None and time.monotonic() > deadline:
                return False
            with contextlib.suppress(Exception):  # the failure is raised below, typed
                self._query.awaitTermination(_POLL)  # type: ignore[arg-type]
        self._raise_failure()
        self._finish()
        self._raise_failure()
        return True

    def _finish(self) -> None:
        """Wait until the last epochs are in the store; if that fails, the run has failed."""
        try:
            self._coordinator.finish()
        except Exception as problem:
            self._engine.fail(problem)

    def _failure(self) -> BaseException | None:
        if self._engine.error is None and self._coordinator.state_lost is not None:
            self._engine.fail(self._coordinator.state_lost)
        if self._engine.error is not None or self._is_active() or self._engine.stopping.is_set():
            return self._engine.error
        try:
            problem = self._query.exception()
        except BROKEN as broken:
            self._engine.fail(broken)
            return self._engine.error
        if problem is not None:
            self._engine.fail(EpochFailedError(f"Spark ended the query: {problem}"))
        return self._engine.error

    def _raise_failure(self) -> None:
        failure = self._failure()
        if failure is not None:
            with self._lock:
                self._raised = True
                self._end()
            raise failure

    def stop(self) -> None:
        """Finish the epoch under way, then end the run and its nodes.

        From a sink's function or a listener it returns at once; the run ends after the epoch.
        """
        if self._engine.is_own_thread:
            threading.Thread(target=inheriting(self.stop), name="millstream-stop").start()
            return
        with self._lock:
            if self._is_active():
                self._stopped = True
                self._engine.stop(self._query)
            self._finish()
            self._end()

    def _end(self) -> None:
        with self._coordinator.log_context.entered():
            self._display.close(self._progress.totals)
            self._cleanup.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failure = self._failure()
        self.stop()
        failure = failure or self._engine.error
        if failure is not None and problem is None and not self._raised:
            raise failure

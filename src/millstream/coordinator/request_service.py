"""Serves the requests of nodes and of Spark's tasks to the coordinator."""

from __future__ import annotations

from typing import Protocol, TypeVar

from millstream.coordinator.fencing import Fencing
from millstream.coordinator.launch_tickets import LaunchTickets
from millstream.coordinator.run_context import RunContext
from millstream.coordinator.scaling import Member, Scaling
from millstream.coordinator.task_failures import TaskFailures
from millstream.errors import MillstreamError
from millstream.ring.ring import NodeId
from millstream.wire.epoch_record import EpochRecord, FetchRecord, RecordUpdate, ReportFailure
from millstream.wire.membership import (
    Assign,
    ClaimLaunch,
    EnterStartBarrier,
    FencedError,
    FetchAssignment,
    Heartbeat,
    Join,
    ReportSlow,
    ReportUnreachable,
)
from millstream.wire.persistence import FetchRestorePlan, RestorePlan
from millstream.wire.request import Dispatcher, Request

A = TypeVar("A")


class StaleTaskError(MillstreamError):
    """A task belongs to an epoch or try that is over."""


class ServedRun(RunContext, Protocol):
    """The run as its nodes and tasks reach it."""

    @property
    def has_begun(self) -> bool: ...

    @property
    def scaling(self) -> Scaling: ...

    def assignment(self) -> Assign: ...

    def restore_plan(self) -> RestorePlan: ...


class RequestService:
    """Answers nodes and tasks."""

    def __init__(self, run: ServedRun, fencing: Fencing, failures: TaskFailures) -> None:
        self._run = run
        self._fencing = fencing
        self._at_barrier: set[NodeId] = set()
        self._lock = run.net.lock()
        self._joining = run.net.lock()
        self.launches = launches = LaunchTickets(run.net)
        self._dispatch = Dispatcher(
            "the coordinator",
            Heartbeat.served_by(lambda request: self._require_member(request.node)),
            FetchAssignment.served_by(self._assignment),
            FetchRestorePlan.served_by(self._restore_plan),
            FetchRecord.served_by(self._record),
            ReportUnreachable.served_by(self._unreachable),
            ReportSlow.served_by(self._slow),
            ReportFailure.served_by(lambda request: failures.add(request, run.ledger)),
            EnterStartBarrier.served_by(self._enter_barrier),
            ClaimLaunch.served_by(launches.claim),
            Join.served_by(self._join),
        )

    def answer(self, request: Request[A]) -> A:
        """Serve a request of a node or of a task."""
        return self._dispatch(request)

    def _assignment(self, request: FetchAssignment) -> Assign:
        self._require_member(request.node)
        return self._run.assignment()

    def _restore_plan(self, request: FetchRestorePlan) -> RestorePlan:
        self._require_member(request.node)
        return self._run.restore_plan()

    def _record(self, request: FetchRecord) -> EpochRecord | RecordUpdate:
        if self._fencing.state_lost is not None:
            raise self._fencing.state_lost
        record = self._run.ledger.record
        if record is None or record.at != (request.epoch, request.try_):
            raise StaleTaskError(
                f"epoch {request.epoch}, try {request.try_} is over: the DataFrame given to a sink "
                "can be read only until the sink's function returns"
            )
        return record.update if request.known == record.routing else record

    def _unreachable(self, request: ReportUnreachable) -> None:
        self._reject_fenced(request.reporter)
        self._fencing.investigate(request.node, request.reporter, request.rounds)

    def _slow(self, request: ReportSlow) -> None:
        self._reject_fenced(request.reporter)
        if request.node in self._run.roster.domains:
            self._run.waits.slow(request.node, request.reason)

    def _enter_barrier(self, request: EnterStartBarrier) -> int:
        with self._lock:
            self._at_barrier.add(request.node)
            return len(self._at_barrier)

    def _join(self, request: Join) -> Assign:
        """Make a node a member; one whose first answer was lost gets the assignment again."""
        node = request.node
        self._reject_fenced(node)
        with self._joining:  # a node may be waiting here twice
            if self._run.is_over or not self._run.has_begun:
                raise FencedError("the run has ended, or has not begun")
            if node in self._run.roster.domains:
                return self._run.assignment()
            self.launches.check(request.ticket)
            try:
                member = Member(node, request.address, request.domain, request.pid)
                self._run.scaling.join(member)
            finally:
                # Not before: the pool sees a starting node, or a member, or for a moment both.
                self.launches.spend(request.ticket)
            return self._run.assignment()

    def _require_member(self, node: NodeId) -> None:
        """Raise for a node that is not part of the run, which then ends itself."""
        if not self._run.has_begun or node in self._run.roster.domains:
            return  # nearly always: nodes send thousands of heartbeats
        self._reject_fenced(node)
        # Spark ran the task that started it twice, and the other node was registered.
        raise FencedError(f"node {node} is not part of the run")

    def _reject_fenced(self, reporter: str | None) -> None:
        """Raise for a node that was fenced; the reporter may be a task."""
        if reporter is not None and self._run.has_begun and reporter in self._run.roster.dead_nodes:
            self._fencing.note_alive(NodeId(reporter))
            raise FencedError(f"node {reporter} was declared dead; its slots were reassigned")

"""The coordinator: epochs, receipts, commits, and what happens when nodes fail.

It lives in the Spark driver. It alone mints ring versions and fixes epoch records. Which nodes are
declared dead is decided by its part :class:`~millstream.coordinator.fencing.Fencing`. Like the
nodes it does all I/O through :class:`~millstream.wire.net.Net`, so that the simulator runs the same
code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TypeVar

from millstream.checkpoints.chain import CommitUnknownError
from millstream.checkpoints.manifest import Staged
from millstream.coordinator.autoscaler import Autoscaler
from millstream.coordinator.commit_modes import CommitMode, EpochCommits, InMemoryCommits
from millstream.coordinator.control_service import ControlService
from millstream.coordinator.failure_evidence import Patience
from millstream.coordinator.fencing import Fencing
from millstream.coordinator.interval_commits import IntervalCommits, Publish, Triggers
from millstream.coordinator.journal import Journal
from millstream.coordinator.launch_tickets import LaunchTickets
from millstream.coordinator.ledger import Ledger, PreparedEpoch
from millstream.coordinator.load_monitor import LoadMonitor
from millstream.coordinator.overview import Overview
from millstream.coordinator.receipt_collector import ReceiptCollector
from millstream.coordinator.request_service import RequestService
from millstream.coordinator.rereplication import Rereplication
from millstream.coordinator.roster import Roster, StateLostError
from millstream.coordinator.rpc import NodeRpc
from millstream.coordinator.scaling import Member, Scaling
from millstream.coordinator.task_failures import TaskFailures
from millstream.coordinator.wait_log import WaitLog
from millstream.elastic.events import EventLog
from millstream.elastic.slot_shares import weights_of
from millstream.errors import MillstreamError
from millstream.flow.time_origins import JobTiming
from millstream.log_context import DRIVER, LogContext
from millstream.ring.drawing import draw
from millstream.ring.ring import NodeId
from millstream.ring.zones import shortage
from millstream.wire.calls import UnreachableError
from millstream.wire.commit import NOTHING_COMMITTED, Commit, Seal
from millstream.wire.epoch_record import EpochRecord, JobTypes, known_types
from millstream.wire.membership import Assign, Ping, Stop
from millstream.wire.net import Net
from millstream.wire.persistence import IsRestored, RestorePlan
from millstream.wire.receipts import NodeReport
from millstream.wire.request import Request
from millstream.wire.timeouts import PING_TIMEOUT, RETRY_PAUSE

log = logging.getLogger("millstream")

A = TypeVar("A")
_WATCH_EVERY = 2.0
_STOP_TIMEOUT = 1.0


class Coordinator:
    """Serves the engine, the nodes and Spark's tasks."""

    def __init__(self, net: Net, patience: Patience | None = None, *, workflow: str = "") -> None:
        self.net = net
        self.workflow = workflow
        self.log_context = LogContext(workflow=workflow, node=DRIVER, epoch=self._logged_epoch)
        self.rpc = NodeRpc(net)
        self.waits = WaitLog(net)
        self._lock = net.lock()
        self._changing = net.lock()  # held by whoever changes the placement
        patience = patience or Patience()
        self.events = EventLog(net.now, self._newest_epoch)
        self.scaling = Scaling(self, self.events, self._lock, self._changing)
        self._rereplication = Rereplication(self, self._lock)
        self._fencing = Fencing(self, self._rereplication, self._lock, self._changing, patience)
        self._collector = ReceiptCollector(self, self._lock, patience)
        self.failures = TaskFailures(self._lock)
        self.load = LoadMonitor(net.now)
        self.control = ControlService(self)
        self._requests = RequestService(self, self._fencing, self.failures)
        self._autoscaler: Autoscaler | None = None
        self._roster: Roster | None = None
        self._ledger: Ledger | None = None
        self._assignment: Assign | None = None
        self.commits: CommitMode = InMemoryCommits()
        self.scan_numbers = count()
        self.is_closed = False

    # -- the run -------------------------------------------------------------------------

    def begin(
        self,
        members: Iterable[Member],
        jobs: Mapping[int, str],
        types: Mapping[int, JobTypes],
        slots: int,
        replicas: int,
        *,
        logs: bool = False,
        on_lost: Callable[[], None],
        journal: Journal | None = None,
        triggers: Triggers | None = None,
        publish: Publish = lambda _: None,
        timings: Iterable[JobTiming] = (),
        downstream: Iterable[str] = (),
        autoscaler: Autoscaler | None = None,
        partitions: int = 1,
    ) -> None:
        """Register the nodes, mint the first placement, and start to watch the nodes.

        With ``logs``, backups hold tuple logs, and only owners can be donors of copies. With a
        ``journal``, epochs are committed in the store, and the run resumes from it: each epoch by
        itself, or, with ``logs``, several at a time, which are then ``publish``-ed. ``downstream``
        are the jobs that read the results of other jobs. ``partitions`` is the least number of
        partitions of a shuffle.
        """
        known = list(members)
        self.scaling.begin(known)
        self._autoscaler = autoscaler
        self._rereplication.spare_owners = not logs
        self._fencing.on_lost = on_lost
        self.failures.downstream = frozenset(downstream)
        self.load.begin(jobs, slots)
        domains = {member.node: member.domain for member in known}
        if journal is not None:
            self.commits = (
                IntervalCommits(self, journal, triggers or Triggers(), publish)
                if logs
                else EpochCommits(self.net, journal)
            )
        committed = self.commits.committed
        self._roster = Roster(
            domains,
            slots,
            replicas,
            empty=committed == NOTHING_COMMITTED,
            layout=None if journal is None else journal.layout,
        )
        self._ledger = Ledger(
            self.commits.incarnation,
            jobs,
            self._roster,
            self.scaling.addresses,
            known_types(types, self.commits.types()),
            logs=logs,
            committed=committed,
            clocks=self.commits.clocks(timings),
            partitions=partitions,
        )
        warning = shortage(domains.values(), replicas)
        if warning:
            # On a single host there is nothing that the user could do about it.
            hosts = {(domain.zone, domain.host) for domain in domains.values()}
            log.log(logging.WARNING if len(hosts) > 1 else logging.INFO, "%s", warning)
        # A node that misses it fetches the assignment later.
        self.rpc.call_all(self.roster.nodes, self.assignment())
        log.info("%s", draw(self.roster.placement, domains))
        self.net.spawn(self._watch, "watch")

    @property
    def has_begun(self) -> bool:
        return self._roster is not None

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    @property
    def roster(self) -> Roster:
        assert self._roster is not None
        return self._roster

    def _logged_epoch(self) -> int:
        record = self.ledger.record if self.has_begun else None
        return self._newest_epoch() if record is None else record.epoch

    def _newest_epoch(self) -> int:
        return self.ledger.committed.epoch if self.has_begun else -1

    @property
    def state_lost(self) -> StateLostError | None:
        """The error of state that was lost beyond repair, if any was."""
        return self._fencing.state_lost

    @property
    def is_over(self) -> bool:
        """Whether the run is closed, or has lost state beyond repair."""
        return self.is_closed or self.state_lost is not None

    def overview(self) -> Overview:
        """Who owns and copies what at this moment."""
        with self._lock:
            roster = self.roster
            return Overview(
                roster.placement,
                dict(roster.domains),
                roster.held_slots(),
                roster.dead_nodes,
                self.ledger.committed.epoch,
                self.ledger.incarnation,
                self.commits.committed.epoch if self.commits.is_durable else None,
                self._fencing.fenced_alive,
                tuple(self.waits.slow_nodes()),
                tuple(self.waits.long()),
                self.scaling.roles(),
                self.scaling.pids(),
                roster.target,
                roster.pending,
                self.scaling.is_due,
            )

    @property
    def launches(self) -> LaunchTickets:
        """The nodes to be started for this run, and those that are expected to join."""
        return self._requests.launches

    def await_restored(self) -> None:
        """Wait until every node has restored its slots from the store."""
        with self.waits.wait("the start") as wait:
            while True:
                answers = self.rpc.call_all(self.roster.nodes, IsRestored())
                if all(answer is True for answer in answers.values()):
                    return
                for node, answer in answers.items():
                    if isinstance(answer, UnreachableError):
                        self.report_unanswered(node, answer, "the progress of its restore")
                    elif isinstance(answer, Exception):
                        raise answer
                behind = [node[:8] for node, answer in answers.items() if answer is not True]
                wait.because(f"nodes {', '.join(behind)} restore their slots from the store")
                self.net.sleep(RETRY_PAUSE)

    def finish(self) -> None:
        """Write what is committed in memory alone into the store; raise what prevents it."""
        if not self.is_over:
            self.commits.finish()

    def close(self) -> None:
        """Stop the nodes."""
        if not self.is_closed:
            try:
                self.finish()
            except CommitUnknownError as unknown:
                log.warning("%s; the next start reads the outcome from the store", unknown)
            except Exception as problem:
                log.warning(
                    "the newest epochs are not in the store and will be replayed: %s", problem
                )
            self.is_closed = True
            for node in self.roster.nodes if self.has_begun else ():
                self.rpc.try_call(node, Stop(), _STOP_TIMEOUT)

    # -- epochs --------------------------------------------------------------------------

    def admit(self, epoch: int, now: int) -> EpochRecord:
        """Enact pending changes of owners and copies, and fix the record of the next epoch."""
        self.load.admit()
        with self._changing, self._lock:
            self.failures.clear()
            minted = self.scaling.enact(between_epochs=True)
            record = self.ledger.admit(epoch, now)
        if minted:
            self.publish_placement()
            self._replicate()
        return record

    def advance(self, to: int) -> None:
        """Advance the watermarks of the next epoch at least to a time."""
        with self._lock:
            self.ledger.advance(to)

    def retry(self) -> EpochRecord:
        """Begin the next try of the epoch under way."""
        with self._lock:
            self.failures.clear()
            return self.ledger.retry()

    def collect_receipts(self, evaluate: Callable[[], None]) -> dict[NodeId, NodeReport]:
        """Collect receipts; ``evaluate`` again what has none, and resend missing copies."""
        return self._collector.collect(evaluate)

    def commit(self, staged: Staged) -> tuple[PreparedEpoch, bool]:
        """Commit the epoch under way; raise ``MissingReceiptsError`` if an owner died meanwhile.

        Also returns whether its outputs may be published now; otherwise they are published when
        the store has the epoch.
        """
        with self._changing:  # between receipts and commit no owner changes
            with self._lock:
                prepared = self.ledger.prepare()
            publish_now = self.commits.commit(prepared, staged)
            with self._lock:
                self.ledger.commit(prepared)
        return prepared, publish_now

    @contextmanager
    def between_commits(self) -> Iterator[Commit]:
        """Hold back commits, for what all nodes must do at the same epoch."""
        with self._changing:
            yield self.ledger.committed

    def published(self, epoch: int) -> None:
        """Note that the outputs of an epoch, and of all before, are visible."""
        self.commits.published(epoch)

    def seal(self) -> None:
        """Notify the nodes of the commit, and begin to make missing copies."""
        # Without waiting: the next feed carries the commit and implies the seal.
        self.rpc.notify(self.roster.holding, Seal(self.ledger.committed))
        self._replicate()
        self.commits.after_commit()

    def _replicate(self) -> None:
        """Begin to make copies, if any is missing."""
        with self._lock:
            is_missing = self.roster.is_under_replicated
        if is_missing:
            self._rereplication.begin()

    def observe(self, epoch: int, reports: Mapping[NodeId, NodeReport]) -> None:
        """Add the load of an epoch, and let the policy decide what to change."""
        self.scaling.weights = weights_of(self.load.add(epoch, reports))
        if self._autoscaler is not None:
            self._autoscaler.consider(self, self.scaling, self.load.history)

    def failure(self) -> MillstreamError | None:
        """The error that best explains why the epoch under way failed."""
        return self.state_lost or self.failures.newest

    def is_retryable(self, problem: Exception) -> bool:
        """Whether a takeover explains why the try failed."""
        return self.failures.are_retryable(problem, self.ledger)

    # -- nodes ---------------------------------------------------------------------------

    def answer(self, request: Request[A]) -> A:
        """Serve a request of a node or of a task."""
        with self.log_context.entered():  # in a thread of the server
            return self._requests.answer(request)

    def assignment(self) -> Assign:
        """The placement in force, as nodes get it."""
        with self._lock:
            placement, committed = self.roster.placement, self.ledger.committed
            newest = self._assignment
            if (
                newest is None
                or newest.placement is not placement
                or newest.committed is not committed
            ):
                newest = self._assignment = Assign(
                    self.ledger.incarnation,
                    placement,
                    self.scaling.addresses(),
                    committed,
                    self.roster.owners_since,
                )
            return newest

    def restore_plan(self) -> RestorePlan:
        """The records from which slots are restored."""
        with self._changing:
            return self.commits.restore_plan()

    def publish_placement(self) -> None:
        """Send the placement in force to all nodes; one that misses it fetches it later."""
        self.rpc.notify(self.roster.nodes, self.assignment())

    def enact_changes(self) -> None:
        """Enact new backups now, and pending moves if no epoch is under way."""
        with self._changing, self._lock:
            minted = self.scaling.enact(between_epochs=self.ledger.record is None)
        if minted:
            self.publish_placement()

    def investigate(self, node: NodeId) -> None:
        """Have ``Fencing`` ping a node that was not reached, and decide whether it is dead."""
        self._fencing.investigate(node)

    def report_unanswered(self, node: NodeId, problem: UnreachableError, what: str) -> None:
        """Investigate a node that did not answer a call; it is slow if it answers a ping."""
        self.investigate(node)
        if problem.timed_out and node in self.roster.domains:
            self.waits.slow(node, f"no answer in time about {what}")

    def stop_removed(self, nodes: list[NodeId]) -> None:
        """Stop nodes that left the ring, in case they are alive, and replicate their slots."""
        self.rpc.notify(nodes, Stop())
        if self.ledger.record is None:
            self._rereplication.begin()

    def _watch(self) -> None:
        """Ping all nodes regularly: a node without a neighbour has no other watch."""
        while not self.is_over:
            self.net.sleep(_WATCH_EVERY)
            try:
                self._check_nodes()
            except Exception:  # without this watch, some failures would not be noticed
                log.exception("the coordinator's watch failed; will retry")

    def _check_nodes(self) -> None:
        # Who has answered another call since the last round lives, and is not asked again.
        heard = self.rpc.answered_since(self.net.now() - _WATCH_EVERY)
        quiet = [node for node in self.roster.nodes if node not in heard]
        answers = self.rpc.call_all(quiet, Ping(), PING_TIMEOUT)
        silent = [node for node, answer in answers.items() if isinstance(answer, UnreachableError)]
        self._fencing.hear(answers.keys() - silent)
        for node in silent:
            if not self._fencing.is_investigating(node):
                self.net.spawn(partial(self._investigate_quietly, node), "investigate")
        self.scaling.release_copies(silent)
        self.scaling.enact_if_idle()
        self._replicate()
        self.commits.poll()

    def _investigate_quietly(self, node: NodeId) -> None:
        try:
            self.investigate(node)
        except StateLostError:
            return  # reported by on_lost

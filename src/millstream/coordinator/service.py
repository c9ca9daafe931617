"""The coordinator at work: epochs, receipts, commit, and what happens when nodes go.

It lives in the Spark driver. It alone mints ring versions, fixes epoch records and decides that
a node is lost. Like the nodes it speaks through :class:`~millstream.wire.net.Net`, so that the
simulator runs this very code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.commit_modes import CommitMode, EpochCommits, InMemoryCommits
from millstream.coordinator.failure_evidence import Patience, Reporter
from millstream.coordinator.fencing import Fencing
from millstream.coordinator.interval_commits import IntervalCommits, Publish, Triggers
from millstream.coordinator.journal import Journal
from millstream.coordinator.ledger import Closing, Ledger
from millstream.coordinator.receipts import ReceiptCollector
from millstream.coordinator.rereplication import Rereplication
from millstream.coordinator.roster import Roster, StateLostError
from millstream.coordinator.rpc import ASK_TIMEOUT, NodeRpc
from millstream.coordinator.wait_log import WaitLog
from millstream.errors import MillstreamError
from millstream.flow.time_origins import JobTiming
from millstream.ring.drawing import draw
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain, shortage
from millstream.wire.calls import UnreachableError
from millstream.wire.epoch_record import EpochRecord, JobTypes, known_types
from millstream.wire.messages import (
    NOTHING_COMMITTED,
    Assign,
    Commit,
    FencedError,
    NodeReport,
    NotDeterministicError,
    RecutError,
    Restore,
)
from millstream.wire.net import Net

log = logging.getLogger("millstream")

_PING_TIMEOUT = 1.0
_ASK_AGAIN = 0.05
_WATCH_EVERY = 2.0


class StaleTaskError(MillstreamError):
    """A task asked for an epoch or try that is over."""


@dataclass(frozen=True)
class Member:
    """A node of the run: where it listens, and with whom it can fail."""

    node: NodeId
    address: str
    domain: Domain


@dataclass(frozen=True)
class Overview:
    """The nodes and their slots at one moment."""

    placement: Placement
    domains: Mapping[NodeId, Domain]
    in_sync: Mapping[NodeId, SlotMask]
    lost: tuple[NodeId, ...]
    committed: int
    incarnation: int
    durable: int | None
    fenced_alive: tuple[NodeId, ...]
    slow: tuple[NodeId, ...]
    waits: tuple[str, ...]


class Coordinator:
    """Speaks for the run: to the nodes, to Spark's tasks, and to the engine."""

    def __init__(self, net: Net, patience: Patience | None = None) -> None:
        self._net = net
        self._lock = net.lock()
        self._changing = net.lock()
        self._patience = patience or Patience()
        self.waits = WaitLog(net)
        self._rpc = NodeRpc(net)
        self._rereplication = Rereplication(self, self._lock, self._changing, self.tell)
        self._fencing = Fencing(
            self, self._rereplication, self.waits, self._lock, self._changing, self._patience
        )
        self._receipts_of_epoch = ReceiptCollector(self, self._lock, self._patience)
        self._roster: Roster | None = None
        self._ledger: Ledger | None = None
        self._commits: CommitMode = InMemoryCommits()
        self.scans = count()  # what tells one scan of the state from another
        self._failures: list[MillstreamError] = []
        self._arrived: set[NodeId] = set()
        self._downstream: frozenset[str] = frozenset()
        self._closed = False

    # -- the engine's side ---------------------------------------------------------------

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
    ) -> None:
        """Take the nodes in, mint the first placement, and watch the nodes from now on.

        With ``logs``, backups keep tuple logs, and owners alone can give new copies. With a
        ``journal``, epochs are committed in the store, and the run goes on where it ended: each
        as it comes, or, with ``logs``, several at a time, which are then ``publish``-ed. Jobs that
        read what other jobs give are ``downstream``.
        """
        known = list(members)
        self._rpc.addresses = {member.node: member.address for member in known}
        self._rereplication.spare_owners = not logs
        self._fencing.on_lost = on_lost
        self._downstream = frozenset(downstream)
        domains = {member.node: member.domain for member in known}
        if journal is not None:
            self._commits = (
                IntervalCommits(self, journal, triggers or Triggers(), publish)
                if logs
                else EpochCommits(self._net, journal)
            )
        committed = self._commits.committed
        self._roster = Roster(domains, slots, replicas, empty=committed == NOTHING_COMMITTED)
        self._ledger = Ledger(
            self._commits.incarnation,
            jobs,
            self._roster,
            self._rpc.addresses,
            known_types(types, self._commits.types()),
            logs=logs,
            committed=committed,
            clocks=self._commits.clocks(timings),
        )
        warning = shortage(domains.values(), replicas)
        if warning:
            # On one host there is nothing that anybody could mend.
            hosts = {(domain.zone, domain.host) for domain in domains.values()}
            log.log(logging.WARNING if len(hosts) > 1 else logging.INFO, "%s", warning)
        self.ask_all("assign", self._assignment())  # who misses it will ask
        log.info("ring\n%s", draw(self.roster.placement, domains))
        self._net.spawn(self._watch, "watch")

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    @property
    def roster(self) -> Roster:
        assert self._roster is not None
        return self._roster

    def overview(self) -> Overview:
        """Who owns and copies what at this moment."""
        with self._lock:
            roster = self.roster
            return Overview(
                roster.placement,
                dict(roster.domains),
                {node: roster.in_sync(node) for node in roster.domains},
                roster.lost,
                self.ledger.committed.epoch,
                self.ledger.incarnation,
                self._commits.committed.epoch if self._commits.is_durable else None,
                self._fencing.fenced_alive,
                tuple(self.waits.slow()),
                tuple(self.waits.long()),
            )

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def net(self) -> Net:
        return self._net

    @property
    def lost(self) -> StateLostError | None:
        """What was lost beyond repair, if anything was."""
        return self._fencing.lost

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be mended any more."""
        return self._closed or self.lost is not None

    @property
    def commits(self) -> CommitMode:
        return self._commits

    def admit(self, epoch: int, now: int) -> EpochRecord:
        """Enact what waited for the end of the last epoch, and fix the record of the next."""
        with self._changing, self._lock:
            self._failures.clear()
            minted = self.roster.settle(between_epochs=True)
            record = self.ledger.admit(epoch, now)
        if minted:
            self.tell()
        return record

    def advance(self, to: int) -> None:
        """Let the watermarks of the next epoch be at least so far."""
        with self._lock:
            self.ledger.advance(to)

    def retry(self) -> EpochRecord:
        """Begin the next try of the epoch under way."""
        with self._lock:
            self._failures.clear()
            return self.ledger.retry()

    def make_whole(self, evaluate: Callable[[], None]) -> dict[NodeId, NodeReport]:
        """Collect receipts; what has none is evaluated again, what lacks a copy copied again."""
        return self._receipts_of_epoch.make_whole(evaluate)

    def commit(self, staged: Staged) -> tuple[Closing, bool]:
        """Commit the epoch under way, or raise ``MissingReceiptsError`` if an owner went meanwhile.

        Also gives whether its outputs may be published now; else they are, when the store has it.
        """
        with self._changing:  # between receipts and commit no owner changes
            with self._lock:
                closing = self.ledger.closing()
            now = self._commits.commit(closing, staged)
            with self._lock:
                self.ledger.commit(closing)
        return closing, now

    @contextmanager
    def between_commits(self) -> Iterator[Commit]:
        """The newest commit, while none follows: for what all nodes must do at one epoch."""
        with self._changing:
            yield self.ledger.committed

    def published(self, epoch: int) -> None:
        """The outputs of an epoch, and of all before, are in sight."""
        self._commits.published(epoch)

    def await_restored(self) -> None:
        """Wait until every node has brought its slots back from the store."""
        with self.waits.wait("the start") as wait:
            while True:
                answers = self.ask_all("restored", None)
                if all(answer is True for answer in answers.values()):
                    return
                for node, answer in answers.items():
                    if isinstance(answer, UnreachableError):
                        self.unanswered(node, answer, "how far its slots are restored")
                    elif isinstance(answer, Exception):
                        raise answer
                left = [node[:8] for node, answer in answers.items() if answer is not True]
                wait.because(f"nodes {', '.join(left)} restore their slots from the store")
                self._net.sleep(_ASK_AGAIN)

    def seal(self) -> None:
        """Tell the nodes about the commit, and have them make the copies that are missing."""
        # Not awaited: the next feed carries the commit and implies the seal.
        self._rpc.tell(self.roster.nodes, "seal", self.ledger.committed)
        if self.roster.is_short:
            self._rereplication.heal()
        self._commits.after_commit()

    def failure(self) -> MillstreamError | None:
        """The error that best explains why the epoch under way failed."""
        if self.lost is not None:
            return self.lost
        with self._lock:
            return self._failures[-1] if self._failures else None

    def is_retryable(self, problem: Exception) -> bool:
        """Whether a takeover that cut units in two explains why the try failed.

        What leaves such units may be ordered otherwise, and so be other input for the jobs behind.
        """
        with self._lock:
            causes: list[Exception] = [*self._failures] or [problem]
        if any(isinstance(cause, RecutError) for cause in causes):
            return True  # whatever other tasks met after it
        return self.ledger.recut and any(
            isinstance(cause, NotDeterministicError) and cause.job in self._downstream
            for cause in causes
        )

    def move(self, slots: Iterable[int], to: NodeId) -> None:
        """Make a backup the owner of slots, from the next epoch on."""
        with self._lock:
            self.roster.move(slots, to)

    def finish(self) -> None:
        """Put into the store what is committed in memory alone; raise what is in the way."""
        if not self.is_over:
            self._commits.finish()

    def close(self) -> None:
        """End the nodes."""
        if not self._closed:
            try:
                self.finish()
            except Exception as problem:
                log.warning("the newest epochs are not in the store, and run again: %s", problem)
            self._closed = True
            for node in self.roster.nodes if self._roster is not None else ():
                self._rpc.quietly(node, "stop", None, timeout=1.0)

    # -- asking nodes --------------------------------------------------------------------

    def ask(self, node: NodeId, action: str, body: object, timeout: float = ASK_TIMEOUT) -> Any:
        """Ask a node; raises ``UnreachableError`` or what the node says."""
        return self._rpc.ask(node, action, body, timeout)

    def ask_all(self, action: str, body: object, timeout: float = ASK_TIMEOUT) -> dict[NodeId, Any]:
        """Ask all nodes side by side; each gives an answer or the exception that came instead."""
        return self._rpc.all(self.roster.nodes, action, body, timeout)

    def ask_living(
        self, nodes: Iterable[NodeId], action: str, body: object, timeout: float
    ) -> dict[NodeId, Any]:
        """Ask nodes for what takes long; who is lost meanwhile is not waited for."""
        roster = self.roster
        return self._rpc.living(nodes, lambda: roster.domains, action, body, timeout)

    def _assignment(self) -> Assign:
        with self._lock:
            return Assign(
                self.ledger.incarnation,
                self.roster.placement,
                self._rpc.addresses,
                self.ledger.committed,
            )

    def tell_nodes(self, action: str, body: object) -> None:
        """Tell all nodes something, and do not wait for them."""
        self._rpc.tell(self.roster.nodes, action, body)

    def tell(self) -> None:
        """Tell all nodes the placement in force; who misses it will ask."""
        self._rpc.tell(self.roster.nodes, "assign", self._assignment())

    # -- nodes that go -------------------------------------------------------------------

    def suspect(self, node: NodeId, by: Reporter | None = None, rounds: int = 0) -> None:
        """Look at a node that somebody could not reach, and take over its slots if it is dead."""
        self._fencing.suspect(node, by, rounds)

    def unanswered(self, node: NodeId, problem: UnreachableError, what: str) -> None:
        """A node did not answer what it was asked: it is dead, or slow if it answers a ping."""
        self.suspect(node)
        if problem.timed_out and node in self.roster.domains:
            self.waits.late(node, f"no answer in time about {what}")

    def dismiss(self, nodes: list[NodeId]) -> None:
        """Stop nodes that were taken out, if they are alive; have their copies made anew."""
        self._rpc.tell(nodes, "stop", None)
        if self.ledger.record is None:
            self._rereplication.heal()

    def _watch(self) -> None:
        """Look at all nodes now and then: a node without a neighbour has no other watch."""
        while not self.is_over:
            self._net.sleep(_WATCH_EVERY)
            try:
                self._look()
            except Exception:  # without this watch, nobody would notice some losses
                log.exception("the coordinator's watch failed; it goes on")

    def _look(self) -> None:
        for node, answer in self.ask_all("ping", None, _PING_TIMEOUT).items():
            if isinstance(answer, UnreachableError) and not self._fencing.is_under_inquiry(node):
                self._net.spawn(partial(self._suspect_quietly, node), "suspect")
        if self.roster.is_short:
            self._rereplication.heal()
        self._commits.look()

    def _suspect_quietly(self, node: NodeId) -> None:
        try:
            self.suspect(node)
        except StateLostError:
            return  # told by on_lost

    # -- the tasks' side -----------------------------------------------------------------

    def act(self, action: str, body: Any) -> Any:
        """Answer a task or a node."""
        if action == "ping":
            self._require_member(body)
            return None
        if action == "record":
            return self._record(*body)
        if action == "assign":
            self._require_member(body)
            return self._assignment()
        if action == "restore":
            self._require_member(body)
            return self._restore()
        if action == "suspect":
            node, reporter, rounds = body
            self._refuse_fenced(reporter)
            return self.suspect(node, reporter, rounds)
        if action == "slow":
            node, reporter, what = body
            self._refuse_fenced(reporter)
            if node in self.roster.domains:
                self.waits.late(node, what)
            return None
        if action == "failed":
            epoch, try_, problem = body
            with self._lock:
                record = self.ledger.record
                if record is not None and record.at == (epoch, try_):
                    self._failures.append(problem)
            return None
        if action == "arrived":
            with self._lock:
                self._arrived.add(body)
                return len(self._arrived)
        raise StaleTaskError(f"the coordinator has no action {action!r}")

    def _restore(self) -> Restore:
        with self._changing:
            return self._commits.restore()

    def _require_member(self, node: NodeId) -> None:
        """Raise for a node that is not, or no longer, part of the run; it ends itself then."""
        self._refuse_fenced(node)
        if self._roster is not None and node not in self.roster.domains:
            # Of a task that Spark ran twice: the other attempt's node was taken in.
            raise FencedError(f"node {node} is not part of the run")

    def _refuse_fenced(self, reporter: str | None) -> None:
        """Raise for a node that was fenced; tasks report as well."""
        if reporter is not None and self._roster is not None and reporter in self.roster.lost:
            self._fencing.returned(NodeId(reporter))
            raise FencedError(f"node {reporter} was taken for dead, and others own its slots now")

    def _record(self, epoch: int, try_: int) -> EpochRecord:
        if self.lost is not None:
            raise self.lost
        with self._lock:
            record = self.ledger.record
        if record is None or record.at != (epoch, try_):
            raise StaleTaskError(
                f"epoch {epoch}, try {try_} is over: the DataFrame given to a sink can be read "
                "only until the sink's function returns"
            )
        return record

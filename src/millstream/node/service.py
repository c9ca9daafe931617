"""Serves one node: feeds, and the requests of the coordinator, of peers and of readers.

All I/O goes through :class:`~millstream.wire.net.Net`; in production a Flight server calls this
class, in tests the simulator. :class:`~millstream.node.locks.Locks` says which lock guards what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.log_context import within_job
from millstream.node.durability.base_writer import BaseOptions, BaseWriter
from millstream.node.durability.unit_writer import UnitWriter
from millstream.node.durability.write_queue import WriteQueue
from millstream.node.feed_blocks import received
from millstream.node.held_units import Unit, Work
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.node.node_report import node_report
from millstream.node.output_spool import OutputSpool
from millstream.node.peers import Outgoing, Peers
from millstream.node.read_service import ReadService
from millstream.node.replicator import Replicator
from millstream.node.slot_operations import SlotOperations
from millstream.node.typed_errors import BackgroundTaskError, typed
from millstream.ring.ring import NodeId
from millstream.state.collector import free_discarded
from millstream.wire.commit import Commit, Seal
from millstream.wire.feed import Feed, FeedRefusedError
from millstream.wire.membership import Assign, FencedError, FetchAssignment, Ping, Stop
from millstream.wire.net import Net
from millstream.wire.persistence import (
    FetchRestorePlan,
    IsRestored,
    Persist,
    Persisted,
    RestorePlan,
)
from millstream.wire.receipt_tables import packed_reach
from millstream.wire.receipts import CollectReceipts, FetchReach, Receipts
from millstream.wire.replication import (
    CopySlots,
    InstallSnapshot,
    ReplicateDelta,
    ReplicateNow,
    ReplicateUnit,
    ResendUnits,
)
from millstream.wire.request import Dispatcher, Request
from millstream.wire.state_reads import CloseScan, GetStates, OpenScan, ReadScan
from millstream.wire.timeouts import CALL_TIMEOUT

A = TypeVar("A")
_LEAST_COPY_SECONDS = 0.02
_FLUSH_SECONDS = 1.0
_MERGE_PAUSE = 0.0002


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """How a node watches its neighbour, and when it replicates deltas (seconds, bytes).

    ``copy_rate`` bounds what copying slots to new backups and owners takes, in bytes a second.
    """

    watch_every: float = 0.5
    watch_timeout: float = 1.0
    replicate_every: float = 2.0
    log_limit: int = 256 * 2**20
    copy_rate: float = 64 * 2**20
    bases: BaseOptions = field(default_factory=BaseOptions)


class NodeService:
    """Serves one node."""

    def __init__(
        self,
        machine: NodeMachine,
        net: Net,
        coordinator: str,
        options: NodeOptions,
        memory: Callable[[], int],
        stop: Callable[[], None],
        after_merge: Callable[[int, Callable[[], int]], None] = lambda merged, keys: None,
        queue: WriteQueue | None = None,
        spool: OutputSpool | None = None,
    ) -> None:
        """``after_merge`` gets the number of keys that were merged, and a count of all keys."""
        self._machine = machine
        self._net = net
        self._coordinator = coordinator
        self._memory = memory
        self._stop = stop
        self._after_merge = after_merge
        self._queue = queue
        self._spool = spool
        self._locks = locks = Locks(net.lock(), net.lock())
        self._bases: BaseWriter | None = None
        self._units: UnitWriter | None = None
        if queue is not None:
            self._bases = BaseWriter(machine, queue, locks, options.bases)
            self._units = UnitWriter(machine, queue, self._bases, locks, net)
        watch = (options.watch_every, options.watch_timeout)
        self._peers = Peers(machine, net, coordinator, watch, stop)
        self._operations = operations = SlotOperations(
            machine,
            locks,
            net,
            self._peers,
            self._fetch_plan,
            queue,
            self._bases,
            options.copy_rate,
        )
        self._replicator = Replicator(
            machine,
            net,
            locks,
            self._peers,
            operations,
            every=options.replicate_every,
            log_limit=options.log_limit,
        )
        reads = ReadService(machine, net, locks, operations, self._catch_up, self._require_sound)
        self._is_replaying = False
        self._feeds = 0  # that have begun so far; those that begin at once may count as one
        self._problem: MillstreamError | None = None  # with which work in the background failed
        self._dispatch = Dispatcher(
            f"node {machine.node}",
            Ping.served_by(lambda _: machine.node),
            Stop.served_by(lambda _: stop()),
            Assign.served_by(self._assign),
            Seal.served_by(lambda request: self._seal(request.commit)),
            CollectReceipts.served_by(self._receipts),
            FetchReach.served_by(self._reach),
            ReplicateUnit.served_by(self._take_copy),
            ResendUnits.served_by(self._resend),
            ReplicateDelta.served_by(self._take_delta),
            ReplicateNow.served_by(lambda _: self._spawn(self._replicator.replicate, "replicate")),
            CopySlots.served_by(self._copy_slots),
            InstallSnapshot.served_by(self._install),
            IsRestored.served_by(self._is_restored),
            Persist.served_by(self._persist),
            GetStates.served_by(reads.get),
            OpenScan.served_by(reads.open_scan),
            ReadScan.served_by(reads.read_scan),
            CloseScan.served_by(reads.close_scan),
        )

    @property
    def node(self) -> NodeId:
        return self._machine.node

    def answer(self, request: Request[A]) -> A:
        """Serve a request of the coordinator, of a peer or of a reader."""
        return self._dispatch(request)

    def start(self) -> None:
        """Begin to watch the neighbour and, if so configured, to replicate at intervals."""
        self._spawn(self._peers.watch, "watch")
        if self._machine.durability == "interval":
            self._spawn(self._replicator.run, "replicate")

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        """Work in the background; its error is raised to the next collector of receipts."""

        def guarded() -> None:
            try:
                work()
            except Exception as problem:
                what = f"{name} of node {self.node}"
                self._problem = typed(problem, BackgroundTaskError, what)

        self._net.spawn(guarded, name)

    def _require_sound(self) -> None:
        if self._problem is not None:
            raise self._problem

    # -- feeds ---------------------------------------------------------------------------

    def exchange(self, feed: Feed, items: Iterator[Any]) -> list[pa.RecordBatch]:
        """Take a feed: chunks of block rows, and at last the end marker."""
        self._feeds += 1
        if feed.copy:
            return self._take_log(feed, items)
        with within_job(self._machine.job_name(feed.job)), self._machine.meter.feed(feed.at):
            return self._take_feed(feed, items)

    def _take_log(self, feed: Feed, items: Iterator[Any]) -> list[pa.RecordBatch]:
        """Take the input of a primary for the tuple log of its backup."""
        self._catch_up(feed.ring, feed.committed)
        with self._locks.metadata:
            self._machine.admit(feed)
        blocks, end = received(items)
        self._catch_up(feed.ring, feed.committed)
        with self._locks.metadata:
            self._machine.take_log(feed, blocks, end)
        self._replicator.relieve_log_pressure()
        return []

    def _take_feed(self, feed: Feed, items: Iterator[Any]) -> list[pa.RecordBatch]:
        """Reduce a unit and replicate it; return its outputs."""
        self._catch_up(feed.ring, feed.committed)
        with self._machine.meter.waiting(feed.at):
            self._await_merged()
        self._operations.restore(feed.slots)
        with self._locks.metadata:
            self._machine.admit(feed)
        blocks, end = received(items)
        with self._machine.meter.turn(feed.at, feed.job, self._locks.state):
            # Until it is frozen: of two concurrent attempts, only the first reduces.
            with self._locks.metadata:
                begun = self._machine.begin(feed, blocks, end)
            if not isinstance(begun, Work):
                return begun
            reduced, receipt = self._machine.reduce(begun)
            with self._locks.metadata:
                outputs, units = self._machine.freeze(begun, reduced, receipt)
        if self._spool is not None and outputs is reduced.outputs:
            self._spool.bound(outputs)
        if self._machine.durability == "epoch":
            copies = self._copies(units)  # serialised here, once, for backups and store
            if self._units is not None:
                self._units.enqueue(unit for unit in units if self._machine.is_durable(unit.job))
            self._peers.deliver(copies)
        return outputs

    def _catch_up(self, ring: int, committed: Commit) -> None:
        """Learn what the sender of a message knows already: its ring, its newest commit."""
        if ring > self._machine.version:
            try:
                request = FetchAssignment(self.node)
                assignment = self._net.call(self._coordinator, request, CALL_TIMEOUT)
            except FencedError as fenced:
                self._stop()
                raise FeedRefusedError(str(fenced), stale=False) from None
            self._assign(assignment)
        self._seal(committed)

    # -- placement and commits -----------------------------------------------------------

    def _assign(self, message: Assign) -> None:
        if message.incarnation == self._machine.incarnation:
            self._seal(message.committed)
        with self._locks.both():
            self._machine.assign(message)
        free_discarded()
        self._begin_replay()
        if self._units is not None and self._machine.unrestored().any():
            self._spawn(self._operations.restore_all, "restore")

    def _begin_replay(self) -> None:
        """Replay tuple logs in the background, unless that is under way."""
        with self._locks.metadata:
            begin = not self._is_replaying and self._machine.replays.next() is not None
            self._is_replaying = self._is_replaying or begin
        if begin:
            self._spawn(self._replay, "replay")

    def _replay(self) -> None:
        """Replay the logs of slots taken over, unit by unit; feeds are served in between."""
        while True:
            with self._locks.state:
                with self._locks.metadata:
                    replay = self._machine.replays.next()
                    self._is_replaying = replay is not None
                if replay is None:
                    return
                reduced, receipt = self._machine.reduce(replay.work)
                with self._locks.metadata:
                    self._machine.replays.finish(replay, reduced, receipt)
            if self._spool is not None:
                self._spool.bound(reduced.outputs)

    def _seal(self, commit: Commit) -> None:
        """Learn of a commit and merge its epoch, unless it is known already."""
        if commit.epoch <= self._machine.committed.epoch:
            return
        with self._locks.state:
            with self._locks.metadata:
                if commit.epoch <= self._machine.committed.epoch:
                    return
                self._machine.commit(commit)
            self._merge()
        if self._bases is not None and self._bases.is_due:
            self._net.spawn(self._bases.write_all, "bases")

    def _merge(self) -> None:
        """Merge what is committed; readers are served in between, the state is not released."""
        store = self._machine.store
        before = store.merged
        for number, step in enumerate(store.merge_steps()):
            if number > 1:  # a small epoch has one step, and one that evicts
                self._net.sleep(_MERGE_PAUSE)  # a lock that is taken again at once starves others
            with self._locks.metadata:
                step()
        self._after_merge(store.merged - before, store.size)

    def _await_merged(self) -> None:
        """Wait until the newest epoch is merged as far as it can be."""
        if self._machine.is_behind:
            with self._locks.state:
                self._merge()

    # -- receipts ------------------------------------------------------------------------

    def _receipts(self, request: CollectReceipts) -> Receipts:
        self._catch_up(request.ring, self._machine.committed)
        if self._units is not None:
            self._units.flush(_FLUSH_SECONDS)
        self._require_sound()
        self._operations.is_restored()
        self._begin_replay()  # of slots that were restored since they were assigned
        with self._locks.metadata:
            at = request.epoch, request.try_
            report = node_report(self._machine, at, self._memory(), self._queue)
            return self._machine.receipts(*at, report)

    def _reach(self, _: FetchReach) -> bytes:
        self._require_sound()
        self._operations.is_restored()
        self._begin_replay()
        with self._locks.metadata:
            return packed_reach(self._machine.store.reach())

    # -- copies --------------------------------------------------------------------------

    def _copies(self, units: list[Unit], only: NodeId | None = None) -> list[Outgoing[None]]:
        """The requests that replicate frozen units to their backups, or to one of them."""
        copies = []
        for unit in units:
            peers = self._machine.backups_of(unit)
            for peer in peers if only is None else [only] if only in peers else []:
                copy = self._machine.copy_of(unit)
                copies.append(Outgoing(peer, copy, len(copy.delta)))
        return copies

    def _take_copy(self, copy: ReplicateUnit) -> None:
        self._peers.heard_from(copy.source)
        self._catch_up(copy.ring, copy.committed)
        with self._locks.metadata:
            self._machine.take_copy(copy)

    def _resend(self, request: ResendUnits) -> None:
        with self._locks.metadata:
            units = self._machine.units_for(request.backup, request.epoch, request.try_)
        self._peers.deliver(self._copies(units, only=request.backup))

    def _take_delta(self, delta: ReplicateDelta) -> int:
        self._peers.heard_from(delta.source)
        self._catch_up(delta.ring, delta.committed)
        with self._locks.both():
            return self._machine.take_delta(delta)

    def _copy_slots(self, request: CopySlots) -> tuple[range, ...]:
        if request.incarnation != self._machine.incarnation:
            return ()
        self._catch_up(-1, request.committed)
        began, feeds = self._net.now(), self._feeds

        def ends() -> bool:
            # A copy takes the processor from a feed that begins meanwhile.
            most = request.seconds if self._feeds == feeds else _LEAST_COPY_SECONDS
            return self._net.now() - began >= most

        return self._operations.copy(request.slots, request.to, ends)

    def _install(self, request: InstallSnapshot) -> None:
        self._catch_up(request.ring, self._machine.committed)
        with self._locks.both():
            self._machine.install(request.snapshot)
        free_discarded()

    # -- the store -----------------------------------------------------------------------

    def _fetch_plan(self) -> RestorePlan:
        return self._net.call(self._coordinator, FetchRestorePlan(self.node), CALL_TIMEOUT)

    def _is_restored(self, _: IsRestored) -> bool:
        self._require_sound()
        return self._operations.is_restored()

    def _persist(self, request: Persist) -> Persisted:
        self._catch_up(-1, request.committed)
        self._require_sound()
        return self._operations.persist(request)

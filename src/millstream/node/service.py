"""The node at work: the machine, its locks, and what it says to its peers.

Everything here speaks through :class:`~millstream.wire.net.Net`; the Flight server and the
simulator are two ways to reach it. Two locks: ``_state`` is held by whoever reduces over the
state or changes it, ``_metadata`` briefly by whoever reads or writes what the node has promised.
Where both are needed, ``_state`` comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy as copied
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.node.durability.slot_operations import SlotOperations
from millstream.node.durability.unit_writer import BaseOptions, Locks, UnitWriter, cut
from millstream.node.durability.write_queue import WriteQueue
from millstream.node.held_units import Block, Unit, Work
from millstream.node.machine import NodeMachine
from millstream.node.output_spool import OutputSpool
from millstream.node.peers import Message, Peers
from millstream.node.replication import Due
from millstream.node.scan_views import shown_items
from millstream.ring.ring import NodeId
from millstream.state.blocks import Origin
from millstream.state.pickling import dumps
from millstream.wire.blocks import buffers_of
from millstream.wire.messages import (
    Assign,
    BrokenFeedError,
    Commit,
    CopyOrder,
    Delta,
    End,
    Feed,
    FeedRefusedError,
    FencedError,
    NodeReport,
    NotReadyError,
    OpenScan,
    Persist,
    Persisted,
    Receipts,
    Restore,
    Snapshot,
    UnitCopy,
)
from millstream.wire.net import Net

_ASK_TIMEOUT = 5.0
_SUPPLY_FOR = 1.0
_STORE_PATIENCE = 1.0
_BREATH = 0.0002
_LOOK_AGAIN = 0.001
_MERGE_PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """How a node watches, and when it makes background checkpoints (seconds, bytes)."""

    watch_every: float = 0.5
    watch_timeout: float = 1.0
    checkpoint_every: float = 2.0
    log_limit: int = 256 * 2**20
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
        tidy: Callable[[int, Callable[[], int]], None] = lambda merged, keys: None,
        keeper: WriteQueue | None = None,
        spool: OutputSpool | None = None,
    ) -> None:
        self._machine = machine
        self._net = net
        self._coordinator = coordinator
        self._options = options
        self._memory = memory
        self._stop = stop
        self._tidy = tidy
        self._spool = spool
        self._locks = Locks(net.lock(), net.lock())
        self._state, self._metadata = self._locks.state, self._locks.metadata
        self._writer = (
            None if keeper is None else UnitWriter(machine, keeper, self._locks, options.bases, net)
        )
        watch = (options.watch_every, options.watch_timeout)
        self._peers = Peers(machine, net, coordinator, watch, stop)
        self._operations = SlotOperations(
            machine, self._locks, net, self._peers, self._restore_order, self._writer
        )
        self._checkpointing = net.lock()
        self._replaying = False
        self._broken: MillstreamError | None = None  # what work in the background ended with

    @property
    def node(self) -> NodeId:
        return self._machine.node

    def start(self) -> None:
        """Begin to watch the neighbour and, if so configured, to make checkpoints."""
        self._spawn(self._peers.watch, "watch")
        if self._machine.durability == "interval":
            self._spawn(self._checkpoint_always, "checkpoint")

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        """Work in the background; what it ends with is raised to whoever asks for receipts."""

        def told() -> None:
            try:
                work()
            except Exception as problem:
                self._broken = _typed(problem, f"{name} of node {self.node}")

        self._net.spawn(told, name)

    def _require_sound(self) -> None:
        if self._broken is not None:
            raise self._broken

    # -- feeds ---------------------------------------------------------------------------

    def exchange(self, feed: Feed, items: Iterator[Any]) -> list[pa.RecordBatch]:
        """Take a feed: chunks of block rows, and at last the end marker."""
        self._catch_up(feed.ring, feed.committed)
        if not feed.copy:
            self._await_merged()
            self._operations.restore(feed.slots)
        with self._metadata:
            self._machine.admit(feed)
        blocks, end = _received(items)
        if feed.copy:
            self._catch_up(feed.ring, feed.committed)
            with self._metadata:
                self._machine.take_log(feed, blocks, end)
            self._relieve_log_pressure()
            return []
        with self._state:
            # In one go with reducing: of two attempts side by side, only the first reduces.
            with self._metadata:
                found = self._machine.begin(feed, blocks, end)
            if not isinstance(found, Work):
                return found
            reduced, receipt = self._machine.reduce(found)
            with self._metadata:
                outputs, units = self._machine.freeze(found, reduced, receipt)
        if self._spool is not None and outputs is reduced.outputs:
            self._spool.bound(outputs)
        if self._machine.durability == "epoch":
            copies = self._copies(units)  # serialised here, once, for backups and store
            if self._writer is not None:
                self._writer.keep(unit for unit in units if self._machine.is_durable(unit.job))
            self._peers.deliver(copies)
        return outputs

    def _catch_up(self, ring: int, committed: Commit) -> None:
        """Learn what the sender of a message knows already: its ring, its newest commit."""
        if ring > self._machine.version:
            try:
                message = self._net.call(self._coordinator, "assign", self.node, _ASK_TIMEOUT)
            except FencedError as told:
                self._stop()
                raise FeedRefusedError(str(told), stale=False) from None
            self._on_assign(message)
        if committed.epoch > self._machine.committed.epoch:
            self._on_seal(committed)

    @contextmanager
    def _both(self) -> Iterator[None]:
        with self._state, self._metadata:
            yield

    # -- copies --------------------------------------------------------------------------

    def _copies(self, units: list[Unit], only: NodeId | None = None) -> list[Message]:
        """What copies frozen units to their backups."""
        found = []
        for unit in units:
            peers = self._machine.backups_of(unit)
            for peer in peers if only is None else [only] if only in peers else []:
                copy = self._machine.copy_of(unit)
                found.append(Message(peer, "copy", copy, len(copy.delta)))
        return found

    # -- actions -------------------------------------------------------------------------

    def act(self, name: str, body: Any) -> Any:
        """Answer the coordinator or a peer."""
        if name == "ping":
            return self.node
        if name == "stop":
            self._stop()
            return None
        answer = getattr(self, f"_on_{name}", None)
        if answer is None:
            raise BrokenFeedError(f"a node has no action {name!r}")
        return answer(body)

    def _on_assign(self, message: Assign) -> None:
        if message.incarnation == self._machine.incarnation:
            self._on_seal(message.committed)
        with self._both():
            self._machine.assign(message)
        self._begin_replay()
        if self._writer is not None and self._machine.lacking().any():
            self._spawn(self._operations.restore_all, "restore")

    def _begin_replay(self) -> None:
        """Replay what is to be replayed, unless somebody is at it."""
        with self._metadata:
            begin = not self._replaying and self._machine.next_replay() is not None
            self._replaying = self._replaying or begin
        if begin:
            self._spawn(self._replay, "replay")

    def _replay(self) -> None:
        """Replay the logs of slots taken over, unit by unit: other units go on in between."""
        while True:
            with self._state:
                with self._metadata:
                    replay = self._machine.next_replay()
                    self._replaying = replay is not None
                if replay is None:
                    return
                reduced, receipt = self._machine.reduce(replay.work)
                with self._metadata:
                    self._machine.replayed(replay, reduced, receipt)
            if self._spool is not None:
                self._spool.bound(reduced.outputs)

    def _on_receipts(self, body: tuple[int, int, int]) -> Receipts:
        epoch, try_, ring = body
        self._catch_up(ring, self._machine.committed)
        if self._writer is not None:
            self._writer.catch_up(_STORE_PATIENCE)
        self._require_sound()
        self._operations.is_whole()
        self._begin_replay()  # of slots that have come from the store since they were assigned
        with self._metadata:
            store = self._machine.store
            logs = self._machine.log_bytes
            counts = None if self._writer is None else copied(self._writer.keeper.counts)
            report = NodeReport(store.keys(), self._memory(), logs, store.cold_keys, counts)
            return self._machine.receipts(epoch, try_, report)

    def _on_seal(self, commit: Commit) -> None:
        """Learn of a commit and merge its epoch; who has heard of it already does not wait."""
        if commit.epoch <= self._machine.committed.epoch:
            return
        with self._state:
            with self._metadata:
                if commit.epoch <= self._machine.committed.epoch:
                    return
                self._machine.commit(commit)
            self._merge()
        if self._writer is not None and self._writer.base_is_due:
            self._net.spawn(self._writer.write_bases, "bases")

    def _merge(self) -> None:
        """Merge what is committed, and let others read in between; the state is not released."""
        store = self._machine.store
        before = store.merged
        for number, step in enumerate(store.settling()):
            if number:
                self._net.sleep(_BREATH)  # a lock that is taken again at once is never free
            with self._metadata:
                step()
        self._tidy(store.merged - before, store.size)

    def _await_merged(self) -> None:
        """Wait until the newest epoch is merged as far as it can be."""
        if self._machine.is_behind:
            with self._state:
                self._merge()

    def _on_copy(self, copy: UnitCopy) -> None:
        self._peers.heard(copy.source)
        self._catch_up(copy.ring, copy.committed)
        with self._metadata:
            self._machine.take_copy(copy)

    def _on_resend(self, body: tuple[NodeId, int, int]) -> None:
        with self._metadata:
            units = self._machine.units_for(*body)
        self._peers.deliver(self._copies(units, only=body[0]))

    # -- the store -----------------------------------------------------------------------

    def _restore_order(self) -> Restore:
        order: Restore = self._net.call(self._coordinator, "restore", self.node, _ASK_TIMEOUT)
        return order

    def _on_restored(self, _: None) -> bool:
        self._require_sound()
        return self._operations.is_whole()

    def _on_persist(self, order: Persist) -> Persisted:
        self._catch_up(-1, order.committed)
        self._require_sound()
        return self._operations.persist(order)

    # -- reading -------------------------------------------------------------------------

    def _on_get(self, body: tuple[int, Any, int]) -> bytes:
        job, key, ring = body
        # Of slots that this node owns, but does not know of yet, it would say that they are empty.
        self._catch_up(ring, self._machine.committed)
        every, store = range(self._machine.store.slots), self._machine.store
        self._operations.restore(every)
        with self._metadata:
            slot = store.slot_of(job, key)
        slots = every if slot is None else range(slot, slot + 1)
        self._await_merging(slots, self._machine.committed.epoch)
        with self._metadata:
            self._require_current(slots)
            return dumps(store.get(job, key))

    def _await_merging(self, slots: range, epoch: int) -> None:
        """Have slots merged before others, and wait until they are at an epoch: a few steps.

        If that takes too long, the caller finds them behind, and refuses the read.
        """
        store, until = self._machine.store, self._net.now() + _MERGE_PATIENCE
        while store.is_merging and store.is_behind(slots, epoch) and self._net.now() < until:
            store.want(slots)
            self._net.sleep(_LOOK_AGAIN)

    def _on_scan(self, order: OpenScan) -> None:
        """Open a view of the newest commit for a scan."""
        self._on_seal(order.committed)
        with self._metadata:
            self._machine.store.require_job(order.job)
            if self._machine.committed != order.committed:
                raise NotReadyError(
                    f"node {self.node} is past epoch {order.committed.epoch} already"
                )
            now = self._net.now()
            self._machine.store.views.open(order.scan, order.job, order.committed.epoch, now)

    def _on_unscan(self, scan: str) -> None:
        with self._metadata:
            self._machine.store.views.close(scan)

    def _on_items(self, body: tuple[str, range, int]) -> list[tuple[Any, bytes]]:
        """The keys of some slots of this node as a scan sees them, with their state."""
        (scan, slots, ring), store = body, self._machine.store
        self._catch_up(ring, self._machine.committed)
        self._operations.restore(slots)
        self._require_sound()
        with self._metadata:
            view = store.views.of(scan, slots.start, self._net.now())
            keys = store.most_keys(slots)
        self._await_merging(slots, view.epoch)
        found: list[tuple[Any, bytes]] = []
        for part in cut(slots, keys):
            with self._metadata:
                store.require_owned(part)
                fragments = list(store.views.parts(view, part, store.holdings.through))
            # Unpickled and pickled again where nobody waits for it.
            items = shown_items(partial(store.scratch, view.job), iter(fragments), store.slots)
            found += [(key, dumps(value)) for key, value in items]
        return found

    def _require_current(self, slots: range) -> None:
        self._require_sound()
        self._machine.require_current(slots)

    # -- snapshots -----------------------------------------------------------------------

    def _on_supply(self, order: CopyOrder) -> tuple[range, ...]:
        """Copy slots to a node that is to become a backup, for a moment; gives what is left."""
        if order.incarnation != self._machine.incarnation:
            return ()
        self._catch_up(-1, order.committed)
        until, left = self._net.now() + _SUPPLY_FOR, list(order.slots)
        while left:
            slots = left.pop(0)
            for snapshot in self._operations.checkpoint(slots):
                self._operations.backup(snapshot, order.to)
                if self._net.now() >= until:
                    rest = range(snapshot.slots.stop, slots.stop)
                    return (rest, *left) if rest else tuple(left)
        return ()

    def _supply(self, peer: NodeId, slots: range) -> None:
        for snapshot in self._operations.checkpoint(slots):
            self._operations.backup(snapshot, peer)

    def _on_install(self, body: tuple[Snapshot, int]) -> None:
        snapshot, ring = body
        self._catch_up(ring, self._machine.committed)
        with self._both():
            self._machine.install(snapshot)

    # -- background checkpoints ----------------------------------------------------------

    def _checkpoint_always(self) -> None:
        while True:
            self._net.sleep(self._options.checkpoint_every)
            self._checkpoint()

    def _on_checkpoint(self, body: None) -> None:
        self._spawn(self._checkpoint, "checkpoint")

    def _checkpoint(self) -> None:
        """Bring every backup up to date, bit by bit."""
        with self._checkpointing:
            with self._metadata:
                dues = self._machine.due()
            for due in dues:
                for part in cut(due.slots, due.keys):
                    self._bring(due, part)
            with self._metadata:
                gone = self._machine.evict()
            dues.clear()
            while gone:
                gone.pop()

    def _bring(self, due: Due, slots: range) -> None:
        # To wait for this for a moment is quicker than to share the interpreter with it.
        with self._state:
            delta = self._machine.delta(due, slots)
        size = sum(len(data) for _, data in delta.parts)
        messages = [Message(peer, "delta", delta, size) for peer in due.peers]
        for peer, answer in zip(due.peers, self._peers.send(messages), strict=True):
            if isinstance(answer, int):
                with self._metadata:
                    self._machine.delivered(peer, slots, answer)
                if -1 <= answer < due.since:
                    self._net.gather([partial(self._supply, peer, slots)])

    def _on_delta(self, delta: Delta) -> int:
        self._peers.heard(delta.source)
        self._catch_up(delta.ring, delta.committed)
        with self._both():
            return self._machine.take_delta(delta)

    def _relieve_log_pressure(self) -> None:
        """Past the bound, ask the owners to checkpoint early; nothing is ever dropped."""
        with self._metadata:
            size = self._machine.log_bytes
        if size > self._options.log_limit:
            placement = self._machine.placement
            owners = [] if placement is None else placement.ring.nodes
            for owner in owners:
                if owner != self.node:
                    ask = partial(self._peers.call, owner, "checkpoint", None, _ASK_TIMEOUT)
                    self._net.gather([ask])


class BackgroundTaskError(MillstreamError):
    """Work of a node in the background ended with an error that has no type of ours."""


def _typed(problem: Exception, what: str) -> MillstreamError:
    if isinstance(problem, MillstreamError):
        return problem
    return BackgroundTaskError(f"the {what} failed: {type(problem).__name__}: {problem}")


def _received(items: Iterator[Any]) -> tuple[list[Block], End]:
    blocks: list[Block] = []
    for item in items:
        if isinstance(item, End):
            return blocks, item
        blocks.extend(_blocks(item))
    raise BrokenFeedError("a feed broke off before its end marker; the task will run again")


def _blocks(batch: pa.RecordBatch) -> Iterator[Block]:
    places = zip(
        batch.column("stage").to_pylist(),
        batch.column("task").to_pylist(),
        batch.column("sequence").to_pylist(),
        buffers_of(batch.column("block")),
        strict=True,
    )
    for stage, task, sequence, data in places:
        yield Block(Origin(stage, task, sequence), data)

"""The operations on the state of a node's slots; all that moves state consists of these.

=============  =====================================================================
snapshot       the state of slots as of now, which later changes do not alter
replicate      a snapshot to a peer, which installs it unless it has the slots newer
partition      the part of changes, or of a snapshot, for some slots (``State.part``)
merge          the changes of consecutive epochs as one (``State.merge``)
persist        changes into the store, for a manifest to name
restore        slots from the store: the newest base record, then the deltas that follow
spill          keys that were not touched for long to disk (``Spilling.settle``)
=============  =====================================================================

Scaling out is snapshot, partition and replicate, and then a change of roles; recovery is that
change alone, or restore if no copy is left; a restart elsewhere is persist, then restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millstream.errors import MillstreamError
from millstream.node.durability.base_writer import BaseWriter
from millstream.node.durability.interval_writer import IntervalWriter
from millstream.node.durability.restore import SlotRestore
from millstream.node.durability.write_queue import WriteQueue
from millstream.node.key_batches import split_by_keys
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.node.peers import Outgoing, Peers
from millstream.ring.ring import NodeId
from millstream.stores.store import StoreUnavailableError
from millstream.wire.calls import UnreachableError
from millstream.wire.net import Net
from millstream.wire.persistence import Persist, Persisted, RestorePlan
from millstream.wire.replication import InstallSnapshot, Snapshot

_RESTORE_RETRY = 0.5


class SlotOperations:
    """The operations that need more than the state itself: locks, peers, the store."""

    def __init__(
        self,
        machine: NodeMachine,
        locks: Locks,
        net: Net,
        peers: Peers,
        fetch_plan: Callable[[], RestorePlan],
        queue: WriteQueue | None,
        bases: BaseWriter | None,
        copy_rate: float,
    ) -> None:
        """``fetch_plan`` asks the coordinator from which records to restore slots.

        Slots are copied to peers at no more than ``copy_rate`` bytes a second.
        """
        self._copy_rate = copy_rate
        self._machine = machine
        self._locks = locks
        self._net = net
        self._peers = peers
        self._fetch_plan = fetch_plan
        self._queue = queue
        self._bases = bases
        self._intervals: IntervalWriter | None = None
        if queue is not None and bases is not None:
            self._intervals = IntervalWriter(machine, queue, bases, locks, net)
        self._restore: SlotRestore | None = None
        self._restore_lock = net.lock()
        self._problem: MillstreamError | None = None

    # -- among peers ---------------------------------------------------------------------

    def snapshot(self, slots: range) -> Iterator[Snapshot]:
        """Snapshot slots, a few at a time, so that no other thread waits for long."""
        with self._locks.metadata:
            keys = self._machine.store.most_keys(slots)
        for part in split_by_keys(slots, keys):
            with self._locks.both():
                snapshots = self._machine.snapshots(part)
            yield from snapshots

    def replicate(self, snapshot: Snapshot, peer: NodeId) -> None:
        """Send a snapshot to a peer, or raise why it could not install it."""
        request = InstallSnapshot(snapshot, self._machine.version)
        [answer] = self._peers.deliver([Outgoing(peer, request, snapshot.size)])
        if isinstance(answer, Exception):
            raise answer

    def copy(
        self, slots: tuple[range, ...], to: NodeId, ends: Callable[[], bool]
    ) -> tuple[range, ...]:
        """Copy slots to a peer, at least a few, until it ``ends``; return those that remain."""
        remaining = list(slots)
        while remaining:
            run = remaining.pop(0)
            for snapshot in self.snapshot(run):
                self.replicate(snapshot, to)
                self._net.sleep(snapshot.size / self._copy_rate)
                if ends():
                    rest = range(snapshot.slots.stop, run.stop)
                    return (rest, *remaining) if rest else tuple(remaining)
        return ()

    # -- to and from the store -----------------------------------------------------------

    def persist(self, order: Persist) -> Persisted:
        """Write changes into the store; durable when this returns."""
        assert self._intervals is not None
        return self._intervals.persist(order)

    def restore(self, slots: range) -> None:
        """Restore slots from the store, if this node owns them and has no state of them."""
        if self._queue is None:
            return
        restore = self._restore
        # Slots look complete when the last record is applied; the restore must have finished them
        # all the same, or it would undo what a feed has changed since.
        is_under_way = restore is not None and restore.has_remaining(slots)
        if is_under_way or self._machine.unrestored()[slots.start : slots.stop].any():
            self._current_restore(self._queue).ensure(slots)

    def restore_all(self) -> None:
        """Restore all that this node owns; ``is_restored`` raises what goes wrong.

        An unavailable store is retried: no feed may come that needs the slots, and until they are
        restored they have no other copy.
        """
        assert self._queue is not None and self._bases is not None
        while self._machine.unrestored().any():
            try:
                restore = self._current_restore(self._queue)
                restore.all()
                self._bases.begin(restore.plan.committed.epoch)
                self._problem = None
            except StoreUnavailableError as problem:
                self._problem = problem
                self._net.sleep(_RESTORE_RETRY)
            except UnreachableError:
                self._net.sleep(_RESTORE_RETRY)  # the coordinator did not answer
            except MillstreamError as problem:
                self._problem = problem
                return

    def is_restored(self) -> bool:
        """Whether all that this node owns is in memory; raises what prevents it."""
        if self._problem is not None:
            raise self._problem
        restore = self._restore
        finished = restore is None or restore.is_finished
        return finished and not self._machine.unrestored().any()

    def _current_restore(self, queue: WriteQueue) -> SlotRestore:
        with self._restore_lock:
            restore = self._restore
            if restore is None or restore.is_finished:
                plan = self._fetch_plan()
                restore = SlotRestore(self._machine, queue.store, plan, self._locks, self._net)
                self._restore = restore
            return restore

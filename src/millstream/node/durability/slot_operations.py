"""What can be done with the state of a node's slots; all that moves state is made of these.

=============  =====================================================================
checkpoint     slots as they are now, as snapshots that no later change shows in
backup         a snapshot to a peer, which takes it unless it has the slots newer
partition      what changes, or a snapshot, say of some slots (``Reducing.part``)
merge          changes of consecutive epochs as one (``Reducing.merge``)
persist        changes into the store, for a manifest to name
restore        slots back from the store: the newest base, then the pieces that follow
spill          keys that were not touched for long to disk (``Spilling.settle``)
=============  =====================================================================

Scaling out is checkpoint, partition and backup, and then a change of roles; recovery is that
change alone, or, if no copy is left, restore; a restart elsewhere is persist, then restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millstream.errors import MillstreamError
from millstream.node.durability.interval_writer import IntervalWriter
from millstream.node.durability.restore import SlotRestore
from millstream.node.durability.unit_writer import Locks, UnitWriter, cut
from millstream.node.machine import NodeMachine
from millstream.node.peers import Message, Peers
from millstream.ring.ring import NodeId
from millstream.stores.store import StoreUnavailableError
from millstream.wire.calls import UnreachableError
from millstream.wire.messages import Persist, Persisted, Restore, Snapshot
from millstream.wire.net import Net

_ASK_AGAIN = 0.5


class SlotOperations:
    """The primitives that need more than the state itself: locks, peers, the store."""

    def __init__(
        self,
        machine: NodeMachine,
        locks: Locks,
        net: Net,
        peers: Peers,
        ask: Callable[[], Restore],
        keeping: UnitWriter | None,
    ) -> None:
        """``ask`` asks the coordinator for what brings slots back."""
        self._machine = machine
        self._locks = locks
        self._net = net
        self._peers = peers
        self._ask = ask
        self._writer = keeping
        self._persisting = None if keeping is None else IntervalWriter(machine, keeping, locks, net)
        self._restoring: SlotRestore | None = None
        self._restorers = net.lock()
        self._broken: MillstreamError | None = None

    # -- among peers ---------------------------------------------------------------------

    def checkpoint(self, slots: range) -> Iterator[Snapshot]:
        """Slots as they are, a few at a time, so that nobody waits for long."""
        with self._locks.metadata:
            keys = self._machine.store.most_keys(slots)
        for part in cut(slots, keys):
            with self._locks.state, self._locks.metadata:
                views = self._machine.view(part)
            yield from views

    def backup(self, snapshot: Snapshot, peer: NodeId) -> None:
        """Give a snapshot to a peer; raises what kept it from taking it."""
        body = (snapshot, self._machine.version)
        size = sum(len(data) for _, data in snapshot.parts)
        [answer] = self._peers.deliver([Message(peer, "install", body, size)])
        if isinstance(answer, Exception):
            raise answer

    # -- to and from the store -----------------------------------------------------------

    def persist(self, order: Persist) -> Persisted:
        """Put changes into the store; durable when this returns."""
        assert self._persisting is not None
        return self._persisting.persist(order)

    def restore(self, slots: range) -> None:
        """Bring slots back from the store, if this node owns them and has no state of them."""
        if self._writer is None:
            return
        restoring = self._restoring
        # Slots look complete when the last record is applied; who brings them back must be done
        # with them all the same, or it would set back what a feed has changed since.
        is_under_way = restoring is not None and restoring.has_left(slots)
        if is_under_way or self._machine.lacking()[slots.start : slots.stop].any():
            self._restorer(self._writer).ensure(slots)

    def restore_all(self) -> None:
        """Bring back all that this node owns; what goes wrong is told by ``is_whole``.

        A store that is unavailable is asked again: there may be no epoch that needs the slots, and
        until they are back they have no other copy.
        """
        assert self._writer is not None
        while self._machine.lacking().any():
            try:
                restoring = self._restorer(self._writer)
                restoring.all()
                self._writer.begin(restoring.order.committed.epoch)
                self._broken = None
            except StoreUnavailableError as problem:
                self._broken = problem
                self._net.sleep(_ASK_AGAIN)
            except UnreachableError:
                self._net.sleep(_ASK_AGAIN)  # nobody else may ask for what is still lacking
            except MillstreamError as problem:
                self._broken = problem
                return

    def is_whole(self) -> bool:
        """Whether all that this node owns is there; raises what keeps it from coming."""
        if self._broken is not None:
            raise self._broken
        restoring = self._restoring
        over = restoring is None or restoring.is_over
        return over and not self._machine.lacking().any()

    def _restorer(self, keeping: UnitWriter) -> SlotRestore:
        with self._restorers:
            found = self._restoring
            if found is None or found.is_over:
                store = keeping.keeper.store
                found = SlotRestore(self._machine, store, self._ask(), self._locks, self._net)
                self._restoring = found
            return found

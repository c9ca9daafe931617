"""Replicates deltas to the backups of a node at intervals (``durability="interval"``)."""

from __future__ import annotations

from functools import partial

from millstream.node.key_batches import split_by_keys
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.node.peers import Outgoing, Peers
from millstream.node.replication_log import Due
from millstream.node.slot_operations import SlotOperations
from millstream.ring.ring import NodeId
from millstream.wire.net import Net
from millstream.wire.replication import ReplicateNow
from millstream.wire.timeouts import CALL_TIMEOUT


class Replicator:
    """Brings backups up to date, so that they can drop their tuple logs."""

    def __init__(
        self,
        machine: NodeMachine,
        net: Net,
        locks: Locks,
        peers: Peers,
        operations: SlotOperations,
        *,
        every: float,
        log_limit: int,
    ) -> None:
        """``every`` is in seconds; with logs of more than ``log_limit`` bytes it does not wait."""
        self._machine = machine
        self._net = net
        self._locks = locks
        self._peers = peers
        self._operations = operations
        self._every = every
        self._log_limit = log_limit
        self._replicating = net.lock()

    def run(self) -> None:
        """Replicate at intervals, for as long as the process lives."""
        while True:
            self._net.sleep(self._every)
            self.replicate()

    def replicate(self) -> None:
        """Bring every backup up to date, in small deltas."""
        with self._replicating:
            with self._locks.metadata:
                dues = self._machine.deltas.due()
            for due in dues:
                for part in split_by_keys(due.slots, due.keys):
                    self._send(due, part)
            with self._locks.metadata:
                evicted = self._machine.deltas.evict()
            dues.clear()
            while evicted:
                evicted.pop()

    def _send(self, due: Due, slots: range) -> None:
        # Under the lock: a reduction that runs meanwhile would contend for the interpreter.
        with self._locks.state:
            delta = self._machine.deltas.request(due, slots)
        messages = [Outgoing(peer, delta, delta.size) for peer in due.peers]
        for peer, answer in zip(due.peers, self._peers.send(messages), strict=True):
            if isinstance(answer, int):
                with self._locks.metadata:
                    self._machine.store.replication.acknowledge(peer, slots, answer)
                if -1 <= answer < due.since:
                    self._net.gather([partial(self._send_snapshots, peer, slots)])

    def _send_snapshots(self, peer: NodeId, slots: range) -> None:
        for snapshot in self._operations.snapshot(slots):
            self._operations.replicate(snapshot, peer)

    def relieve_log_pressure(self) -> None:
        """Past the bound, ask the owners to replicate now; logs are never dropped."""
        with self._locks.metadata:
            size = self._machine.log_bytes
        if size > self._log_limit:
            placement = self._machine.placement
            owners = [] if placement is None else placement.ring.nodes
            for owner in owners:
                if owner != self._machine.node:
                    call = partial(self._peers.call, owner, ReplicateNow(), CALL_TIMEOUT)
                    self._net.gather([call])

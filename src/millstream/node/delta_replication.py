"""Deltas of several epochs for the backups of a node (``durability="interval"``). No I/O, no clock.

:class:`~millstream.node.replication_log.ReplicationLog` knows what each backup lacks; here that
becomes requests. :mod:`millstream.node.replicator` sends them.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.node.current_epoch import CurrentEpoch
from millstream.node.load_meter import LoadMeter
from millstream.node.replication_log import Due, Retained
from millstream.node.slot_store import SlotStore
from millstream.ring.masks import common
from millstream.ring.placement import Share
from millstream.ring.ring import NodeId
from millstream.wire.replication import ReplicateDelta


class DeltaReplication:
    """What the backups of a node lack, as deltas."""

    def __init__(
        self, node: NodeId, store: SlotStore, current: CurrentEpoch, meter: LoadMeter
    ) -> None:
        self._meter = meter
        self._node = node
        self._store = store
        self._current = current

    def due(self) -> list[Due]:
        """The deltas that bring the backups of this node's slots up to date."""
        through = self._store.holdings.through
        return list(self._store.replication.due(self._own_shares(), through))

    def evict(self) -> list[Retained]:
        """Evict what every backup has; the caller frees the fragments one by one."""
        return self._store.replication.evict(self._own_shares(), self._store.holdings.through)

    def _own_shares(self) -> list[Share]:
        placement = self._store.holdings.placement
        if placement is None:
            return []
        shares = placement.shares(range(self._store.slots))
        return [share for share in shares if share.owner == self._node]

    def request(self, due: Due, slots: range) -> ReplicateDelta:
        """Make the delta of some of the slots that are due; reads only what never changes."""
        parts = []
        for job in self._store.operators:
            retained = [each for each in due.retained if each.job == job]
            if retained:
                parts.append((job, encoded := self.encoded(job, slots, retained)))
                self._meter.encoded(job, _keys_of(slots, retained), len(encoded))
        current = self._current
        return ReplicateDelta(
            current.incarnation,
            self._store.holdings.version,
            self._node,
            current.committed,
            slots,
            due.since,
            due.through,
            tuple(parts),
            self._store.key_types,
        )

    def encoded(self, job: int, slots: range, retained: Sequence[Retained]) -> bytes:
        """The changes of retained fragments to some slots, as one delta."""
        state = self._store.operators[job].state
        parts = [state.part(each.fragment, common(each.slots, slots)) for each in retained]
        return state.encode(state.merge(parts))


def _keys_of(slots: range, retained: Sequence[Retained]) -> float:
    """About how many keys were changed: those of the epoch with the most, as if evenly spread."""
    epochs: dict[int, float] = {}
    for each in retained:
        part = len(common(each.slots, slots)) / max(1, len(each.slots))
        epochs[each.epoch] = epochs.get(each.epoch, 0.0) + part * each.keys
    return max(epochs.values(), default=0.0)

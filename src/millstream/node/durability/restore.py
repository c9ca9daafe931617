"""Slots on their way back from the store: after a restart, or when no other copy was left.

They come back in parts. Whoever needs a slot has its part brought back first; the others follow
in the background, so that a run can begin before all of its state is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from millstream.checkpoints.manifest import BaseRecord, DeltaRecord
from millstream.checkpoints.records import BadRecordError, PackedPart, expanded, unpack
from millstream.errors import MillstreamError
from millstream.node.durability.unit_writer import Locks
from millstream.node.holdings import EMPTY
from millstream.node.machine import NodeMachine
from millstream.ring.masks import SlotMask
from millstream.ring.ring import partition_slots
from millstream.stores.store import CorruptRecordError, Damage, Store
from millstream.wire.messages import Restore
from millstream.wire.net import Net

_PARTS = 16


class SlotRestore:
    """The slots that a node still has to bring back."""

    def __init__(
        self, machine: NodeMachine, store: Store, order: Restore, locks: Locks, net: Net
    ) -> None:
        self._machine = machine
        self._store = store
        self._order = order
        self._locks = locks
        self._loading = net.lock()
        with locks.state, locks.metadata:
            self._left = machine.lacking()
            machine.store.learn(order.key_types)
        self._records: dict[str, bytes] = {}
        self._fragments: dict[str, Any] = {}

    @property
    def is_over(self) -> bool:
        return not self._left.any()

    def has_left(self, slots: range) -> bool:
        """Whether any of some slots is not back yet."""
        return bool(self._left[slots.start : slots.stop].any())

    @property
    def order(self) -> Restore:
        return self._order

    def all(self) -> None:
        """Bring back everything, part by part."""
        for part in partition_slots(len(self._left), min(_PARTS, len(self._left))):
            self.ensure(part)
        self._records.clear()
        self._fragments.clear()

    def ensure(self, slots: range) -> None:
        """Bring back some slots, unless they are there."""
        if not self.has_left(slots):
            return
        with self._loading:
            wanted = np.zeros_like(self._left)
            wanted[slots.start : slots.stop] = self._left[slots.start : slots.stop]
            if wanted.any():
                self._bring_typed(wanted)
                self._left &= ~wanted

    def _bring_typed(self, wanted: SlotMask) -> None:
        try:
            self._bring(wanted.copy())
        except MillstreamError:
            raise
        except Exception as problem:
            raise BadRecordError(
                f"slots could not be brought back: {type(problem).__name__}: {problem}; what their "
                "state refers to, such as classes, must be there under the same names"
            ) from problem

    def _bring(self, wanted: SlotMask) -> None:
        order, store = self._order, self._machine.store
        bases = [base for base in order.bases if _meets(wanted, base.slots)]
        deltas = [delta for delta in order.deltas if _meets(wanted, delta.slots)]
        self._fetch([*bases, *deltas])
        with self._locks.state, self._locks.metadata:
            wanted &= self._machine.lacking()
            store.empty(wanted)
        for base in bases:
            self._take_base(base, wanted)
        for _, same in groupby(deltas, key=lambda delta: delta.through):
            self._take_deltas(list(same), wanted)
        with self._locks.state, self._locks.metadata:
            store.loaded(wanted & store.holdings.owned, order.committed.epoch)

    def _fetch(self, records: list[BaseRecord | DeltaRecord]) -> None:
        missing = [record.key for record in records if record.key not in self._records]
        self._records.update(self._store.get(missing))
        for key in missing:
            if key not in self._records:
                raise CorruptRecordError(Damage(key, "the store", 0, "the record is missing"))

    def _take_base(self, base: BaseRecord, wanted: SlotMask) -> None:
        store = self._machine.store
        for slots, through, parts in _groups(unpack(self._records[base.key])):
            with self._locks.state, self._locks.metadata:
                fresh = _within(wanted & (store.holdings.through == EMPTY), slots)
                if not fresh.any():
                    continue  # not asked for, or there in a newer base
                for part in parts:
                    job = self._order.jobs.get(part.job)
                    if job is not None:
                        store.load(job, store.reducing[job].decode(part.data), fresh)
                store.holdings.through[fresh] = through

    def _take_deltas(self, deltas: list[DeltaRecord], wanted: SlotMask) -> None:
        """Apply the changes that one manifest names; of epochs without any there are no pieces."""
        store, through = self._machine.store, deltas[0].through
        reached = store.holdings.through
        with self._locks.state, self._locks.metadata:
            behind = wanted & (reached >= EMPTY) & (reached < through)
            for delta in deltas:
                job = self._order.jobs.get(delta.job)
                slots = _within(behind, delta.slots)
                if job is not None and slots.any():
                    store.load(job, self._fragment(job, delta), slots)
            reached[behind] = through

    def _fragment(self, job: int, delta: DeltaRecord) -> Any:
        """What a piece says; its slots may be asked for several times."""
        if delta.key not in self._fragments:
            data = expanded(self._records[delta.key])
            self._fragments[delta.key] = self._machine.store.reducing[job].decode(data)
        return self._fragments[delta.key]


def _groups(parts: Iterator[PackedPart]) -> Iterator[tuple[range, int, list[PackedPart]]]:
    """The parts of all jobs for the same slots."""
    for (start, stop, through), same in groupby(
        parts, key=lambda part: (part.slots.start, part.slots.stop, part.through)
    ):
        yield range(start, stop), through, list(same)


def _within(mask: SlotMask, slots: range) -> SlotMask:
    found = np.zeros_like(mask)
    found[slots.start : slots.stop] = mask[slots.start : slots.stop]
    return found


def _meets(mask: SlotMask, slots: range) -> bool:
    return bool(mask[slots.start : slots.stop].any())

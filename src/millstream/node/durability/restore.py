"""Restores slots from the store: after a restart, or when no other copy was left.

They are restored in parts. The part of a slot that is needed is restored first; the others follow
in the background, so that a run can begin before all of its state is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from millstream.checkpoints.epoch_contents import base_applies_to, delta_applies_to
from millstream.checkpoints.manifest import BaseRecord, DeltaRecord
from millstream.checkpoints.records import BadRecordError, PackedPart, expanded, unpack
from millstream.errors import MillstreamError
from millstream.node.locks import Locks
from millstream.node.machine import NodeMachine
from millstream.ring.masks import SlotMask
from millstream.ring.ring import partition_slots
from millstream.stores.store import CorruptRecordError, Damage, Store
from millstream.wire.net import Net
from millstream.wire.persistence import RestorePlan

_PARTS = 16


class SlotRestore:
    """The slots that a node still has to restore."""

    def __init__(
        self, machine: NodeMachine, store: Store, plan: RestorePlan, locks: Locks, net: Net
    ) -> None:
        self._machine = machine
        self._store = store
        self.plan = plan
        self._locks = locks
        self._loading = net.lock()
        with locks.both():
            self._remaining = machine.unrestored()
            machine.store.learn_key_types(plan.key_types)
        self._records: dict[str, bytes] = {}
        self._fragments: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        return not self._remaining.any()

    def has_remaining(self, slots: range) -> bool:
        """Whether any of some slots is not restored yet."""
        return bool(self._remaining[slots.start : slots.stop].any())

    def all(self) -> None:
        """Restore everything, part by part."""
        slots = len(self._remaining)
        for part in partition_slots(slots, min(_PARTS, slots)):
            self.ensure(part)
        self._records.clear()
        self._fragments.clear()

    def ensure(self, slots: range) -> None:
        """Restore some slots, unless they are restored."""
        if not self.has_remaining(slots):
            return
        with self._loading:
            wanted = np.zeros_like(self._remaining)
            wanted[slots.start : slots.stop] = self._remaining[slots.start : slots.stop]
            if wanted.any():
                self._load_typed(wanted)
                self._remaining &= ~wanted

    def _load_typed(self, wanted: SlotMask) -> None:
        try:
            self._load(wanted.copy())
        except MillstreamError:
            raise
        except Exception as problem:
            raise BadRecordError(
                f"slots could not be restored: {type(problem).__name__}: {problem}; classes and "
                "functions that their state refers to must be importable under the same names"
            ) from problem

    def _load(self, wanted: SlotMask) -> None:
        plan, store = self.plan, self._machine.store
        bases = [base for base in plan.bases if _overlaps(wanted, base.slots)]
        deltas = [delta for delta in plan.deltas if _overlaps(wanted, delta.slots)]
        self._fetch([*bases, *deltas])
        with self._locks.both():
            wanted &= self._machine.unrestored()
            store.begin_load(wanted)
        for base in bases:
            self._load_base(base, wanted)
        for _, same in groupby(deltas, key=lambda delta: delta.through):
            self._load_deltas(list(same), wanted)
        with self._locks.both():
            store.finish_load(wanted & store.holdings.owned, plan.committed.epoch)

    def _fetch(self, records: list[BaseRecord | DeltaRecord]) -> None:
        missing = [record.key for record in records if record.key not in self._records]
        self._records.update(self._store.get(missing))
        for key in missing:
            if key not in self._records:
                raise CorruptRecordError(Damage(key, "the store", 0, "the record is missing"))

    def _load_base(self, base: BaseRecord, wanted: SlotMask) -> None:
        store = self._machine.store
        for slots, through, parts in _groups(unpack(self._records[base.key])):
            with self._locks.both():
                empty = base_applies_to(slots, wanted, store.holdings.through)
                if not empty.any():
                    continue
                for part in parts:
                    job = self.plan.jobs.get(part.job)
                    if job is not None:
                        store.load(job, store.operators[job].state.decode(part.data), empty)
                store.holdings.through[empty] = through

    def _load_deltas(self, deltas: list[DeltaRecord], wanted: SlotMask) -> None:
        """Apply the deltas that one manifest names; slots without any advance as well."""
        store, through = self._machine.store, deltas[0].through
        reached = store.holdings.through
        with self._locks.both():
            for delta in deltas:
                job = self.plan.jobs.get(delta.job)
                slots = delta_applies_to(delta.slots, through, wanted, reached)
                if job is not None and slots.any():
                    store.load(job, self._fragment(job, delta), slots)
            reached[delta_applies_to(range(len(reached)), through, wanted, reached)] = through

    def _fragment(self, job: int, delta: DeltaRecord) -> Any:
        """The decoded fragment of a delta; parts of its slots may be restored separately."""
        if delta.key not in self._fragments:
            data = expanded(self._records[delta.key])
            self._fragments[delta.key] = self._machine.store.operators[job].state.decode(data)
        return self._fragments[delta.key]


def _groups(parts: Iterator[PackedPart]) -> Iterator[tuple[range, int, list[PackedPart]]]:
    """The parts of all jobs for the same slots."""
    for (start, stop, through), same in groupby(
        parts, key=lambda part: (part.slots.start, part.slots.stop, part.through)
    ):
        yield range(start, stop), through, list(same)


def _overlaps(mask: SlotMask, slots: range) -> bool:
    return bool(mask[slots.start : slots.stop].any())

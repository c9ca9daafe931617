"""The slot store: the state of the slots that a node holds, and how far each of them is.

It merges the units of committed epochs in order, slot by slot, and exchanges state with other nodes
as snapshots and deltas. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.checkpoints.epoch_contents import EMPTY
from millstream.errors import MillstreamError
from millstream.flow.vertices import JobVertex
from millstream.node.held_units import Unit, covered
from millstream.node.holdings import UNKNOWN, Holdings
from millstream.node.pending_epochs import PendingEpoch, PendingEpochs
from millstream.node.replication_log import ReplicationLog, Retained
from millstream.node.scan_views import Views
from millstream.ring.key_types import NULL
from millstream.ring.keys import canonical_key
from millstream.ring.masks import SlotCounts, SlotMask, equal_runs, mask_of, runs_of
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.state.collector import free_one_by_one, without_collector
from millstream.state.columns import ColumnState
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import tables_of
from millstream.state.protocol import State
from millstream.state.spill import Spilling
from millstream.state.values import unify_nulls
from millstream.wire.receipts import Runs
from millstream.wire.replication import SlotsNotHeldError, Snapshot
from millstream.work.operators import operator_for
from millstream.work.unit import ReduceOperator


class UnknownJobError(MillstreamError):
    """A request names a job that the workflow does not have."""


class SlotStore:
    """The state of one node, of slots it owns and of slots it backs up alike."""

    def __init__(
        self,
        node: NodeId,
        jobs: Mapping[int, JobVertex],
        slots: int,
        *,
        retain: bool,
        spilling: Spilling | None = None,
    ) -> None:
        self.slots = slots
        self.jobs = list(jobs)
        self.holdings = Holdings(node, slots)
        self.pending_epochs = PendingEpochs(self.jobs, slots)
        self.replication = ReplicationLog(slots)
        self.operators: dict[int, ReduceOperator[Any]] = {
            at: operator_for(job, slots, partial(spilling.state, at) if spilling else KeyedState)
            for at, job in jobs.items()
        }
        self.views = Views(self.operators, slots)
        self._vertices = jobs
        self._spilling = spilling
        self._node = node
        self._retain = retain
        self._key_types: dict[int, pa.DataType] = {}
        self.merged = 0  # keys, in all units so far
        self.is_merging = False
        self._evicted: list[PendingEpoch] = []
        self._urgent: SlotMask = np.zeros(slots, dtype=bool)

    def clear(self) -> None:
        """Drop everything."""
        self.views.clear()
        self._drop(self.holdings.held)
        self.holdings.clear()
        self.pending_epochs.clear()
        self.replication.clear()

    def place(self, placement: Placement, *, empty: bool, owners_since: int | None = None) -> None:
        """Apply the placement in force: roles change, and slots no longer held are dropped."""
        before, through = self.holdings.owned, self.holdings.through.copy()
        released = self.holdings.place(placement, empty, owners_since)
        self.views.preserve(released, through)  # which is not known any more afterwards
        self._drop(released)
        self.replication.begin(self.holdings.owned & ~before, through)
        self.merge()

    def _drop(self, slots: SlotMask) -> None:
        if slots.any():
            self.views.preserve(slots, self.holdings.through)
            for operator in self.operators.values():
                operator.state.drop(slots)

    # -- committed epochs ----------------------------------------------------------------

    def add_committed(self, epoch: int, units: list[Unit]) -> None:
        """Add the units of an epoch that was just committed; ``merge`` merges them."""
        self.pending_epochs.put(epoch, units)
        self._evict()  # snapshots may have brought all slots further already

    def merge(self) -> None:
        """Merge the committed epochs into each slot, in order, and evict what is merged."""
        for step in self.merge_steps():
            step()

    def merge_steps(self) -> Iterator[Callable[[], None]]:
        """The steps of ``merge``, each of a few milliseconds.

        A step advances some slots from one epoch to the next; between two steps other threads may
        read. No other thread may change the state, or reduce, until all are done.
        """
        self.is_merging = True
        try:
            # No variable for the epochs: the last one would hold all its tables until the end.
            pending = self.pending_epochs.oldest_first()
            yield from chain.from_iterable(map(self._epoch_steps, pending))
        finally:
            self.is_merging = False
        yield self._evict
        fragments = [unit.fragment for pending in self._evicted for unit in pending.units]
        self._evicted.clear()
        tables = [table for fragment in fragments for table in tables_of(fragment)]
        fragments.clear()
        free_one_by_one(tables)

    def _evict(self) -> None:
        self._evicted += self.pending_epochs.evict(self.holdings.held, self.holdings.through)

    def _epoch_steps(self, pending: PendingEpoch) -> Iterator[Callable[[], None]]:
        effective = covered(pending.units, self.jobs, self.slots, effective=True)
        ready = effective & self.follows(pending.epoch) & self.holdings.held
        if not ready.any():
            return
        units = [unit for unit in pending.units if unit.effective and self._within(unit, ready)]
        self.merged += sum(unit.receipt.keys for unit in units)
        # What is still to be decoded, mostly copies, comes last: readers wait for the rest.
        later = np.zeros(self.slots, dtype=bool)
        for unit in units:
            later[unit.slots.start : unit.slots.stop] |= unit.fragment is None
        for slots in (ready & ~later, ready & later):
            yield from self._slot_steps(pending.epoch, units, slots)

    def _slot_steps(
        self, epoch: int, units: Sequence[Unit], slots: SlotMask
    ) -> Iterator[Callable[[], None]]:
        if not slots.any():
            return
        units = [unit for unit in units if self._within(unit, slots)]
        for unit in units:
            if unit.fragment is None:
                assert unit.delta is not None
                unit.fragment = self.operators[unit.job].state.decode(unit.delta)
            self._learn_key_type(unit.job, unit.receipt.key_type)
        parts = self._cut(np.flatnonzero(slots), units)
        for unit in units:
            state = self.operators[unit.job].state
            unit.fragment = state.prepare(unit.fragment, len(parts))
        first = slots if self._retain else None
        while parts:
            part = parts.pop(self._most_urgent(parts))
            yield partial(self._merge, epoch, units, part, retained=first)
            first = None

    def _cut(self, slots: npt.NDArray[np.intp], units: Sequence[Unit]) -> list[SlotMask]:
        """Cut slots into parts that are merged in one step each."""
        steps = sum(unit.receipt.keys / self.operators[unit.job].state.step for unit in units)
        parts = np.array_split(slots, max(1, min(len(slots), round(steps))))
        return [self._at(part) for part in parts]

    def _most_urgent(self, parts: Sequence[SlotMask]) -> int:
        if not self._urgent.any():
            return 0
        return max(range(len(parts)), key=lambda at: bool((parts[at] & self._urgent).any()))

    def prioritise(self, slots: range) -> None:
        """Merge these slots before others: a reader waits for them."""
        self._urgent[slots.start : slots.stop] = True

    def _merge(
        self, epoch: int, units: Sequence[Unit], slots: SlotMask, *, retained: SlotMask | None
    ) -> None:
        if retained is not None:  # before any slot counts as merged
            self._retain_units(epoch, units, retained)
        self.views.preserve(slots, self.holdings.through)
        for unit in units:
            # Never without a mask: the fragment of a feed that was cut covers more slots.
            part = slots[unit.slots.start : unit.slots.stop]
            if part.any():
                with without_collector():
                    self.operators[unit.job].state.apply(
                        unit.fragment, self._mask(unit.slots, part)
                    )
        self.holdings.through[slots] = epoch
        self._urgent[slots] = False
        self._evict()

    def _retain_units(self, epoch: int, units: Sequence[Unit], ready: SlotMask) -> None:
        for unit in units:
            for run in runs_of(self.holdings.owned & ready, unit.slots):
                retained = Retained(epoch, unit.job, run, unit.receipt.keys, unit.fragment)
                self.replication.retain(retained)

    def _within(self, unit: Unit, slots: SlotMask) -> bool:
        return bool(slots[unit.slots.start : unit.slots.stop].any())

    def _at(self, slots: npt.NDArray[np.intp]) -> SlotMask:
        mask = np.zeros(self.slots, dtype=bool)
        mask[slots] = True
        return mask

    def follows(self, epoch: int) -> SlotMask:
        """The slots whose state ends right before an epoch: no gap, nothing twice."""
        following: SlotMask = self.holdings.through == epoch - 1
        return following

    @property
    def key_types(self) -> dict[int, pa.DataType]:
        """The key type of each job, as far as it is known."""
        return dict(self._key_types)

    def learn_key_types(self, key_types: Mapping[int, pa.DataType]) -> None:
        """Add the key types that another node has seen."""
        for job, kind in key_types.items():
            self._learn_key_type(job, kind)

    def _learn_key_type(self, job: int, key_type: pa.DataType | None) -> None:
        known = self._key_types.get(job)
        kinds = [kind for kind in (known, key_type) if kind is not None]
        kind = unify_nulls(kinds) if kinds else None
        if kind is not None:
            self._key_types[job] = kind

    def _mask(self, slots: range, part: SlotMask) -> SlotMask:
        mask = np.zeros(self.slots, dtype=bool)
        mask[slots.start : slots.stop] = part
        return mask

    # -- snapshots and deltas ------------------------------------------------------------

    def snapshots(self, incarnation: int, slots: range) -> list[Snapshot]:
        """The state of some slots as of now, one snapshot for each run at one epoch."""
        through = self.holdings.through[slots.start : slots.stop]
        if (through == UNKNOWN).any():
            last = slots.stop - 1
            raise SlotsNotHeldError(
                f"node {self._node} has no copy of slots {slots.start} to {last}"
            )
        snapshots = []
        for run in equal_runs(slots, through):
            parts = tuple(
                (job, operator.state.encode(operator.state.snapshot(run)))
                for job, operator in self.operators.items()
            )
            reached = int(through[run.start - slots.start])
            snapshots.append(Snapshot(incarnation, run, reached, parts, self.key_types))
        return snapshots

    def install(self, snapshot: Snapshot) -> None:
        """Install a snapshot of slots that this node backs up, unless it has them newer."""
        part = slice(snapshot.slots.start, snapshot.slots.stop)
        older = self._mask(snapshot.slots, self.holdings.fed[part])
        older &= self.holdings.through < snapshot.through
        if not older.any():
            return
        self._drop(older)
        self._apply(snapshot.parts, older, snapshot.through)
        self.learn_key_types(snapshot.key_types)

    # -- from the store ------------------------------------------------------------------

    def unrestored(self, committed: int) -> SlotMask:
        """The slots that this node owns, but cannot bring to a commit with what it holds."""
        behind: SlotMask = self.pending_epochs.reach(self.holdings.through) < committed
        return self.holdings.owned & behind

    def begin_load(self, slots: SlotMask) -> None:
        """Empty slots before records of the store are loaded into them."""
        self._drop(slots)
        self.holdings.through[slots] = EMPTY

    def load(self, job: int, fragment: Any, slots: SlotMask) -> None:
        """Apply a record of the store to some slots; ``finish_load`` sets their epoch."""
        with without_collector():
            self.operators[job].state.apply(fragment, slots)

    def finish_load(self, slots: SlotMask, through: int) -> None:
        """Mark slots as complete through an epoch, also those that it did not change."""
        self.holdings.through[slots] = through
        self.replication.begin(slots & self.holdings.owned, self.holdings.through)
        self.merge()

    def apply_delta(
        self, parts: tuple[tuple[int, bytes], ...], slots: range, since: int, through: int
    ) -> int:
        """Apply a delta where it leaves no gap; return up to which epoch all slots are complete."""
        ready = self.applicable(slots, since, through)
        if ready.any():
            self._apply(parts, ready, through)
        part = slice(slots.start, slots.stop)
        reached = self.holdings.through[part][self.holdings.fed[part]]
        return int(reached.min()) if len(reached) else UNKNOWN

    def applicable(self, slots: range, since: int, through: int) -> SlotMask:
        """The slots that a delta advances: it begins no later than they end."""
        ready = self._mask(slots, self.holdings.fed[slots.start : slots.stop])
        return ready & (self.holdings.through >= since) & (self.holdings.through < through)

    def _apply(self, parts: tuple[tuple[int, bytes], ...], slots: SlotMask, through: int) -> None:
        self.views.preserve(slots, self.holdings.through)
        for job, data in parts:
            state = self.operators[job].state
            state.apply(state.decode(data), slots)
        self.holdings.through[slots] = through
        self.merge()

    def reach(self) -> Runs:
        """Up to which epoch each slot can be merged with what this node holds."""
        values = self.pending_epochs.reach(self.holdings.through)
        runs = equal_runs(range(self.slots), values)
        return tuple((run.start, int(values[run.start])) for run in runs)

    # -- reading -------------------------------------------------------------------------

    def get_many(self, job: int, keys: Sequence[Any], slots: Sequence[int]) -> list[Any]:
        """The committed state of keys in slots that this node must own, or None."""
        self.require_job(job)
        if not self.holdings.owned[list(slots)].all():
            raise SlotsNotHeldError(f"node {self._node} does not own the slots of all keys")
        state, kind = self.operators[job].state, self._key_types.get(job, NULL)
        if kind == NULL:  # it has seen no key, or only None
            known = [(slot, key) for slot, key in zip(slots, keys, strict=True) if key is None]
            found = {key: state.get(slot, key) for slot, key in known}
            return [found.get(key) for key in keys]
        # Canonical again: of equal NaNs, there is one in each process.
        canonical = [canonical_key(key, kind) for key in keys]
        if isinstance(state, ColumnState):
            return state.get_many(canonical)
        return [state.get(slot, key) for slot, key in zip(slots, canonical, strict=True)]

    def is_behind(self, slots: range, epoch: int) -> bool:
        """Whether this node owns some of these slots and has not merged an epoch into them yet."""
        part, held = slice(slots.start, slots.stop), self.holdings
        return bool((held.through[part][held.owned[part]] < epoch).any())

    def require_job(self, job: int) -> None:
        """Raise ``UnknownJobError`` if the workflow has no such job."""
        if job not in self.operators:
            raise UnknownJobError(f"this node runs no job {job}")

    def scratch(self, job: int) -> State[Any]:
        """An empty state of a job, to read fragments with."""
        return operator_for(self._vertices[job], self.slots).state

    def most_keys(self, slots: range) -> int:
        """The number of keys of the largest job in some slots."""
        mask = mask_of(slots, self.slots)
        return max((operator.state.count(mask) for operator in self.operators.values()), default=0)

    @property
    def cold_keys(self) -> int:
        """The number of keys on disk and not in memory, copies included."""
        return 0 if self._spilling is None else self._spilling.cold

    def size(self) -> int:
        """The number of keys in memory: in the state, copies included, and retained for backups."""
        held = sum(operator.state.count(self.holdings.held) for operator in self.operators.values())
        return held - self.cold_keys + self.replication.keys

    def key_counts(self) -> dict[int, SlotCounts]:
        """The number of keys of each job in each slot that this node owns, in slot order."""
        return {job: o.state.counts(self.holdings.owned) for job, o in self.operators.items()}

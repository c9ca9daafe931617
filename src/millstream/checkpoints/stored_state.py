"""The state of a job at an epoch, read from a store: without nodes, Spark, or the user's code.

It equals ``run.state(job)``, with one exception: only the user's code can compute the result of a
user's combinable, so its accumulator is returned instead, as the entry ``accumulator``; and
likewise the accumulators of an aggregate that is not built in. For windowed jobs and joins see
``windowed.py``.

Slots are read range by range, so that a state need not fit into memory. Records are pickles:
reading them means trusting everyone who can write to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from millstream.checkpoints.epoch_contents import (
    EMPTY,
    EpochIncompleteError,
    base_applies_to,
    contents_of,
    delta_applies_to,
)
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import (
    BaseRecord,
    DeltaRecord,
    JobMetadata,
    Manifest,
    WorkflowMetadata,
)
from millstream.checkpoints.records import PackedPart, expanded, unpack
from millstream.checkpoints.windowed import WindowedState, windowed_state
from millstream.errors import MillstreamError
from millstream.ring.hashing import slot_of_key
from millstream.ring.keys import canonical_key
from millstream.ring.masks import mask_of, overlap, runs_of
from millstream.state.aggregates.naming import aggregates_in
from millstream.state.column_fragments import decode_columns
from millstream.state.columns import ColumnState
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import decode_keyed
from millstream.state.timers import read_entries
from millstream.stores.store import Store

R = TypeVar("R", BaseRecord, DeltaRecord)
T = TypeVar("T")
BYTES_AT_ONCE = 8 * 2**20


class NotInCheckpointError(MillstreamError):
    """A checkpoint does not have the job, epoch or key that was requested."""

    def __init__(self, wanted: str, available: str) -> None:
        super().__init__(wanted, available)
        self.wanted, self.available = wanted, available

    def __str__(self) -> str:
        return f"there is no {self.wanted}; {self.available}"


class UnreadableStateError(MillstreamError):
    """State contains objects whose classes cannot be imported here."""

    def __init__(self, job: str, problem: str) -> None:
        super().__init__(job, problem)
        self.job, self.problem = job, problem

    def __str__(self) -> str:
        return (
            f"the state of job {self.job!r} cannot be read: {self.problem}. If it contains objects "
            "of your own classes, make their module importable here (PYTHONPATH)"
        )


def manifest_of(lineage: Lineage, epoch: int | None) -> Manifest:
    """The manifest of an epoch, or of the newest one."""
    found = lineage.newest if epoch is None else lineage.manifest(epoch)
    if found is None:
        raise NotInCheckpointError(
            "committed epoch" if epoch is None else f"epoch {epoch}", _epochs(lineage)
        )
    return found


def job_of(workflow: WorkflowMetadata, job: str) -> JobMetadata:
    """What a checkpoint records of a job."""
    found = workflow.job(job)
    if found is None:
        for other in workflow.jobs:
            if job in other.fused:
                raise NotInCheckpointError(
                    f"state of job {job!r}", f"its windows are in that of {other.name!r}"
                )
        names = ", ".join(job.name for job in workflow.jobs)
        raise NotInCheckpointError(
            f"job {job!r}", f"the jobs are {names}" if names else "it has no jobs"
        )
    return found


def _epochs(lineage: Lineage) -> str:
    known = [manifest.epoch for manifest in lineage.manifests]
    if not known:
        return "no epoch has been committed yet"
    listed = map(str, known if len(known) <= 8 else [*known[:3], "…", *known[-3:]])
    return f"the epochs are {', '.join(listed)}"


class StoredState:
    """The committed state of one job, as it was when an epoch had just been committed."""

    def __init__(self, store: Store, lineage: Lineage, epoch: int, job: str) -> None:
        manifest_of(lineage, epoch)
        contents = contents_of(lineage, epoch)
        self._store = store
        self.epoch = epoch
        self.slots = contents.workflow.slots
        self.job = job_of(contents.workflow, job)
        if not self.job.durable:
            raise NotInCheckpointError(f"state of job {job!r}", "it runs with durable=False")
        self._bases = contents.bases
        self._id = self.job.id or self.job.name
        self._deltas = tuple(delta for delta in contents.deltas if delta.job == self._id)
        self._aggregates = aggregates_in(self.job.reducer) if self._is_aggregate else None

    @property
    def _is_aggregate(self) -> bool:
        return self.job.form == "aggregate"

    @property
    def _is_windowed(self) -> bool:
        return self.job.form in ("windowed", "join")

    @property
    def in_columns(self) -> bool:
        """Whether the state is one row of columns per key, not Python objects."""
        return self.job.form in ("aggregate", "arrow")

    @property
    def size(self) -> int:
        """The bytes to read; of bases, also those of other jobs."""
        return sum(base.bytes for base in self._bases) + sum(p.bytes for p in self._deltas)

    # -- reading -------------------------------------------------------------------------

    def get(self, key: object, default: Any = None, key_type: pa.DataType | None = None) -> Any:
        """The state of a key; its type is that of the job's keys, unless it is given."""
        kind = key_type or self.job.key_type
        slot = slot_of_key(key, kind, self.slots)
        if slot is None or kind is None:
            return default
        canonical = canonical_key(key, kind)
        here = self.items(range(slot, slot + 1))
        # NaN equals nothing, but among canonical keys there is just one.
        found = (value for known, value in here if known is canonical or known == canonical)
        return next(found, default)

    def items(self, slots: range | None = None) -> Iterator[tuple[Any, Any]]:
        """All keys with their state, or those of some slots."""
        for part in self.ranges() if slots is None else [slots]:
            if self._is_windowed:
                yield from self._readable(self._windowed(part).items(mask_of(part, self.slots)))
            elif self.in_columns:
                for keys, rows in self.columns(part):
                    yield from zip(keys, self._values(rows, len(keys)), strict=True)
            else:
                yield from self.entries(part)

    def _values(self, rows: pa.RecordBatch, count: int) -> list[Any]:
        if self._aggregates is not None and rows.schema.names == ["value"]:
            return list(rows.column(0).to_pylist())
        # State of keys alone: a batch without columns knows no number of rows.
        return list(rows.to_pylist()) if rows.num_columns else [{} for _ in range(count)]

    def entries(self, slots: range) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The keys of some slots with their entries, of state in Python objects.

        Of windowed jobs and joins a key may appear several times: with each of its rows.
        """
        if self._is_windowed:
            yield from self._readable(self._windowed(slots).rows(mask_of(slots, self.slots)))
            return
        state = KeyedState(read_entries)
        self._load(state, decode_keyed, slots)
        yield from self._readable(state.items(mask_of(slots, self.slots)))

    def _readable(self, items: Iterator[T]) -> Iterator[T]:
        """The items; what unpickling a user's class raises becomes ``UnreadableStateError``."""
        try:
            yield from items
        except Exception as problem:
            raise UnreadableStateError(
                self.job.name, f"{type(problem).__name__}: {problem}"
            ) from None

    def _windowed(self, slots: range) -> WindowedState:
        state = windowed_state(self.job, self.slots)
        if state is None:
            raise UnreadableStateError(self.job.name, f"{self.job.reducer} is not built in")
        self._load(state, state.decode, slots)
        return state

    def columns(self, slots: range) -> Iterator[tuple[list[Any], pa.RecordBatch]]:
        """The keys of some slots with their rows, of state in columns."""
        state = ColumnState(self.slots)
        self._load(state, decode_columns, slots)
        for keys, rows in state.batches(mask_of(slots, self.slots)):
            yield keys, rows if self._aggregates is None else self._aggregates.result(rows)

    # -- the records ---------------------------------------------------------------------

    def ranges(self, at_once: int = BYTES_AT_ONCE) -> list[range]:
        """Cut the slots, so that about so many bytes are read at once, and few records twice."""
        weight = np.zeros(self.slots)
        crossed = np.zeros(self.slots, dtype=bool)  # a cut before this slot is inside a record
        records: list[BaseRecord | DeltaRecord] = [*self._bases, *self._deltas]
        for record in records:
            weight[record.slots.start : record.slots.stop] += record.bytes / len(record.slots)
            crossed[record.slots.start + 1 : record.slots.stop] = True
        cuts, between, total = [0], 0, 0.0
        for slot, heavy in enumerate(weight.tolist()):
            if total + heavy > at_once and slot > cuts[-1]:
                cuts.append(between if between > cuts[-1] else slot)
                total = float(weight[cuts[-1] : slot].sum())
            if not crossed[slot]:
                between = slot
            total += heavy
        return [range(start, stop) for start, stop in pairwise([*cuts, self.slots])]

    def _load(self, state: Any, decode: Any, slots: range) -> None:
        """Restore the state of some slots: the newest base, then the deltas after it."""
        wanted = mask_of(slots, self.slots)
        through = np.full(self.slots, EMPTY, dtype=np.int64)
        for base in _overlapping(self._bases, slots):
            for part in self._parts(base):
                ready = base_applies_to(part.slots, wanted, through)
                if ready.any():
                    if part.packed:
                        state.apply(self._decoded(decode, part.packed), ready)
                    through[ready] = part.through
        for delta in _overlapping(self._deltas, slots):
            # Never without a mask: the fragment of a feed that was cut covers more slots.
            ready = delta_applies_to(delta.slots, delta.through, wanted, through)
            if ready.any():
                state.apply(self._decoded(decode, self._record(delta.key)), ready)

    def _parts(self, base: BaseRecord) -> Iterator[PackedPart]:
        """The job's parts of a base; slots for which it has none were empty."""
        lacking = mask_of(base.slots, self.slots)
        for part in unpack(self._record(base.key)):
            if part.job == self._id:
                lacking[part.slots.start : part.slots.stop] = False
                yield part
        for run in runs_of(lacking):
            yield PackedPart(self._id, run, base.through, b"")

    def _record(self, key: str) -> bytes:
        found = self._store.get([key]).get(key)
        if found is None:
            raise EpochIncompleteError(self.epoch, f"the record {key} is missing")
        return found

    def _decoded(self, decode: Any, data: bytes) -> Any:
        try:
            return decode(expanded(data))
        except Exception as problem:  # whatever a user's class raises when it is unpickled
            raise UnreadableStateError(
                self.job.name, f"{type(problem).__name__}: {problem}"
            ) from None


def _overlapping(records: Iterable[R], slots: range) -> Iterator[R]:
    return (record for record in records if overlap(record.slots, slots))

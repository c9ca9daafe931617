"""Checkpoints written without an engine: reduced units, their records, and manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import (
    BaseRecord,
    DeltaRecord,
    Form,
    JobMetadata,
    Manifest,
    WorkflowMetadata,
)
from millstream.checkpoints.records import Part, base_key, compressed, delta_key, pack
from millstream.flow.vertices import JobVertex
from millstream.ring.keys import infer_type
from millstream.stores.store import Store
from millstream.work.keyed_batches import Pairs as Keyed
from millstream.work.operators import operator_for
from millstream.work.packers.packer import packer_for
from millstream.work.unit import ReduceOperator, UnitContext
from tests.work.running import ALL, SLOTS, blocks_of_pairs, job_of

Pairs = Sequence[tuple[Any, ...]]
HALVES = (range(0, SLOTS // 2), range(SLOTS // 2, SLOTS))
HOUR = 3_600_000_000


def count(key: Any, values: list[int], state: Any) -> None:
    """Sums values, and clears a key on demand."""
    if None in values:
        state.clear()
    else:
        state["n"] = state.get("n", 0) + sum(values)


@dataclass
class Job:
    """A job with its state as nodes would hold it."""

    vertex: JobVertex
    form: Form = "stateful"
    reducer: str = ""
    durable: bool = True
    key_type: pa.DataType | None = None
    windows: str = ""
    operator: ReduceOperator[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.operator = operator_for(self.vertex, SLOTS)


def counting() -> dict[str, Job]:
    return {"count": Job(job_of(count))}


@dataclass
class Writer:
    """A run that writes a checkpoint: every epoch is reduced, kept and committed."""

    store: Store
    jobs: Mapping[str, Job] = field(default_factory=counting)
    cuts: Sequence[range] = HALVES
    incarnation: int = 0
    epoch: int = -1
    bases: tuple[BaseRecord, ...] = ()

    def __post_init__(self) -> None:
        self.lineage = self.claim()

    def claim(self, after: int | None = None) -> Lineage:
        chain = Chain(self.store)
        seen = chain.read()
        claimed = chain.claim(seen, seen.epoch if after is None else after, HOUR, "host", 7)
        assert claimed is not None
        self.lineage, self.incarnation = claimed, claimed.incarnation
        return claimed

    def commit(self, pairs: Mapping[str, Pairs] | Pairs, *, wide: bool = False) -> Manifest:
        """Commit an epoch; a wide one has fragments with more than their delta records."""
        given = pairs if isinstance(pairs, Mapping) else {"count": pairs}
        self.epoch += 1
        deltas = [
            delta
            for name, job in self.jobs.items()
            for delta in self._keep(name, job, given.get(name, ()), wide)
        ]
        workflow = WorkflowMetadata(
            "flow", SLOTS, tuple(_metadata(*job) for job in self.jobs.items()), ("in",)
        )
        manifest = Manifest(
            position=0,
            incarnation=self.incarnation,
            epoch=self.epoch,
            try_=0,
            parent=self.epoch - 1,
            time=HOUR + self.epoch,
            workflow=workflow,
            deltas=tuple(deltas),
            bases=self.bases,
            staged=(),
            published=self.epoch - 1,
        )
        self.lineage = Chain(self.store).commit(self.lineage, manifest)
        return manifest

    def _keep(self, name: str, job: Job, pairs: Pairs, wide: bool) -> list[DeltaRecord]:
        if not pairs:
            return []
        job.key_type = job.key_type or infer_type([pair[0] for pair in pairs])
        unit = UnitContext(range(SLOTS), self.epoch, epoch=self.epoch)
        reduced = job.operator.reduce(_blocks(job.vertex, pairs), unit)
        deltas = []
        for slots in self.cuts:
            part = reduced.fragment if wide else job.operator.state.part(reduced.fragment, slots)
            data = compressed(job.operator.state.encode(part))
            key = delta_key(self.epoch, self.incarnation, 0, _id(name), slots, "node")
            self.store.put({key: data})
            deltas.append(DeltaRecord(key, _id(name), slots, self.epoch - 1, self.epoch, len(data)))
        job.operator.state.apply(reduced.fragment, ALL)
        return deltas if job.durable else []

    def base(self, slots: range = range(SLOTS), only: Sequence[str] | None = None) -> BaseRecord:
        """Write the whole state of some slots; the next manifest names it."""
        return self.put_base(self.parts(slots, only))

    def parts(self, slots: range, only: Sequence[str] | None = None) -> list[Part]:
        """The whole state of some slots, as it is now."""
        return [
            Part(
                _id(name),
                slots,
                self.epoch,
                job.operator.state.encode(job.operator.state.snapshot(slots)),
            )
            for name, job in self.jobs.items()
            if only is None or name in only
        ]

    def put_base(self, parts: Sequence[Part]) -> BaseRecord:
        slots = range(parts[0].slots.start, parts[-1].slots.stop)
        data, through = pack(parts), [part.through for part in parts]
        key = base_key(self.epoch, self.incarnation, slots, "node", 1)
        self.store.put({key: data})
        base = BaseRecord(key, slots, min(through), max(through), len(data))
        self.bases = (*self.bases, base)
        return base

    def items(self, job: str = "count") -> dict[Any, Any]:
        """The state as a node tells it."""
        return dict(self.jobs[job].operator.state.items(np.ones(SLOTS, dtype=bool)))


def _id(job: str) -> str:
    """How records call a job."""
    return f"1.{job}"


def _metadata(name: str, job: Job) -> JobMetadata:
    return JobMetadata(
        name,
        job.form,
        job.reducer,
        id=_id(name),
        durable=job.durable,
        key_type=job.key_type,
        windows=job.windows,
    )


def _blocks(job: JobVertex, pairs: Pairs) -> list[pa.RecordBatch]:
    """The blocks of one map task; of a windowed job, with times in microseconds."""
    if job.windowing is None:
        return blocks_of_pairs(job, pairs)
    packer = packer_for(job, SLOTS, folding=True)
    values = Keyed([(key, value) for key, value, _ in pairs], False)
    packer.add(values, np.array([time for _, _, time in pairs]))
    block = packer.flush()
    return [] if block is None else [block]

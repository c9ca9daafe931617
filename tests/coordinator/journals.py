"""Journals on a store in memory, and the epochs that are committed with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.evolution import begin
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import (
    BaseRecord,
    DeltaRecord,
    JobMetadata,
    Staged,
    WorkflowMetadata,
)
from millstream.checkpoints.records import base_key, delta_key
from millstream.coordinator.journal import Journal
from millstream.coordinator.roster import Roster
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.stores.store import Store
from millstream.wire.commit import NOTHING_COMMITTED
from millstream.wire.epoch_record import EpochRecord, JobTypes

SLOTS = 4
ALL, LEFT, RIGHT = range(SLOTS), range(0, 2), range(2, 4)
COUNT, SUM = 3, 5
JOBS = {"count": COUNT, "sum": SUM}
NOTE = WorkflowMetadata(
    "flow",
    SLOTS,
    (JobMetadata("count", "stateful", "a function"), JobMetadata("sum", "aggregate", "sum(n)")),
)
A, B = NodeId("a"), NodeId("b")
PLACEMENT = Roster({n: Domain("zone", str(n), "executor") for n in (A, B)}, SLOTS, 0).placement


def claimed(store: Store, after: int | None = None) -> Lineage:
    chain = Chain(store)
    seen = chain.read()
    found = chain.claim(seen, seen.epoch if after is None else after, 0, "host", 1)
    assert found is not None
    return found


def journal_of(store: Store, after: int | None = None, **options: Any) -> Journal:
    """The journal of another start."""
    lineage = claimed(store, after)
    workflow = begin(NOTE, 1) if lineage.newest is None else lineage.newest.workflow
    if not options.pop("durable", True):
        count, *others = workflow.jobs
        workflow = replace(workflow, jobs=(replace(count, durable=False), *others))
    return Journal(store, lineage, workflow, JOBS, options.pop("retain", 3), **options)


def record(epoch: int, incarnation: int = 1, try_: int = 0) -> EpochRecord:
    return EpochRecord(
        incarnation, epoch, try_, NOTHING_COMMITTED, 1000 + epoch, PLACEMENT, {A: "a", B: "b"}
    )


def staged(epoch: int, incarnation: int = 1) -> Staged:
    return Staged(epoch, f"{incarnation}.0", ("out",))


def delta(epoch: int, since: int | None = None, incarnation: int = 1) -> DeltaRecord:
    key = delta_key(epoch, incarnation, 0, "count@1", ALL, "node")
    return DeltaRecord(key, "count@1", ALL, epoch - 1 if since is None else since, epoch, 10)


def base(
    epoch: int, slots: range = ALL, reaches: int | None = None, incarnation: int = 1
) -> BaseRecord:
    key = base_key(epoch, incarnation, slots, "node", 1)
    return BaseRecord(key, slots, epoch, epoch if reaches is None else reaches, 100)


def commit(journal: Journal, epoch: int, *bases: BaseRecord, types: Any = None) -> None:
    """Commit an epoch with its delta, and write all that it names."""
    number = journal.incarnation
    made = delta(epoch, incarnation=number)
    journal._store.put({made.key: b"delta", **{one.key: b"base" for one in bases}})
    known = types or {COUNT: JobTypes(), SUM: JobTypes()}
    journal.commit(record(epoch, number), [made], bases, known, [staged(epoch, number)])

"""The journal: writes manifests to the claimed checkpoint, which makes commits durable.

It knows the chain from the claim of this incarnation on, and what is in the store for each epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.epoch_contents import contents_of, newest_bases
from millstream.checkpoints.garbage import garbage, remove
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import (
    BaseRecord,
    DeltaRecord,
    Manifest,
    Staged,
    WorkflowMetadata,
)
from millstream.checkpoints.records import DATA
from millstream.coordinator.layout import Layout
from millstream.coordinator.watermarks import Watermarks
from millstream.flow.time_origins import JobTiming
from millstream.stores.store import Store, StoreError
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.epoch_record import EpochRecord, JobTypes
from millstream.wire.persistence import RestorePlan
from millstream.wire.receipts import Receipt

log = logging.getLogger("millstream")

_GARBAGE_EVERY = 16


@dataclass(frozen=True)
class CheckpointResult:
    """The epochs (parent, epoch] are durable: how much was written, and how long it took."""

    epoch: int
    parent: int
    records: int
    bytes: int
    commit_seconds: float


class Journal:
    """Writes manifests, and plans restores."""

    def __init__(
        self,
        store: Store,
        lineage: Lineage,
        workflow: WorkflowMetadata,
        jobs: Mapping[str, int],
        retain: int,
        on_result: Callable[[CheckpointResult], None] = lambda _: None,
        *,
        garbage_every: int = _GARBAGE_EVERY,
    ) -> None:
        """``jobs`` maps names to positions; ``workflow`` has their ids."""
        self._store = store
        self._chain = Chain(store)
        self._lineage = lineage
        self._workflow = workflow
        self._jobs = jobs
        self._retain = retain
        self._on_result = on_result
        self._results: list[CheckpointResult] = []
        self._ids = {jobs[job.name]: job.id for job in workflow.jobs}
        self._first = 0
        self._garbage_every = garbage_every
        self._is_collecting = False
        self._collected = lineage.epoch
        newest = lineage.newest
        self.incarnation = lineage.incarnation
        self.published = -1 if newest is None else newest.published
        self.committed = NOTHING_COMMITTED if newest is None else Commit(newest.epoch, newest.try_)

    @property
    def lineage(self) -> Lineage:
        return self._lineage

    @property
    def unpublished(self) -> list[Staged]:
        """The committed outputs that may not be visible yet, in the order of epochs."""
        return [
            staged
            for manifest in self._lineage.manifests
            for staged in manifest.staged
            if staged.epoch > self.published
        ]

    @property
    def has_all_jobs(self) -> bool:
        """Whether the state of every job is stored."""
        return all(job.durable for job in self._workflow.jobs)

    def types(self) -> dict[int, JobTypes]:
        """The types of jobs as of the epoch from which this incarnation resumed."""
        newest = self._lineage.newest
        known = {} if newest is None else {job.id: job for job in newest.workflow.jobs}
        return {
            at: JobTypes(known[id_].key_type, known[id_].output)
            for at, id_ in self._ids.items()
            if id_ in known
        }

    @property
    def layout(self) -> Layout | None:
        """How slots were shared at the epoch from which this incarnation resumed."""
        newest = self._lineage.newest
        return None if newest is None else Layout.from_manifest(newest.layout)

    def clocks(self, timings: Iterable[JobTiming]) -> Watermarks:
        """The watermarks as of the epoch from which this incarnation resumed."""
        newest = self._lineage.newest
        return Watermarks.from_manifest(timings, {} if newest is None else newest.clocks, self._ids)

    def commit(
        self,
        record: EpochRecord,
        deltas: Iterable[DeltaRecord],
        bases: Iterable[BaseRecord],
        types: Mapping[int, JobTypes],
        staged: Iterable[Staged],
        clocks: Watermarks | None = None,
        layout: Layout | None = None,
    ) -> None:
        """Commit the epochs since the last manifest, or raise ``SupersededError``."""
        started = time.perf_counter()
        newest = self._lineage.newest
        known = {base.key: base for base in (() if newest is None else newest.bases)}
        known.update((base.key, base) for base in bases)
        slots = self._workflow.slots
        _, newest_of_slots = newest_bases(tuple(known.values()), slots, record.epoch)
        manifest = Manifest(
            position=self._lineage.position,
            incarnation=self.incarnation,
            epoch=record.epoch,
            try_=record.try_,
            parent=self.committed.epoch,
            time=record.time,
            workflow=self._workflow_with(types),
            deltas=tuple(deltas),
            bases=newest_of_slots,
            staged=tuple(staged),
            published=self.published,
            clocks={} if clocks is None else clocks.to_manifest(self._ids),
            layout={} if layout is None else layout.to_manifest(),
        )
        self._lineage = self._chain.commit(self._lineage, manifest).since(self._first)
        self.committed = Commit(*record.at)
        self._add_result(manifest, time.perf_counter() - started)

    def require_claim(self) -> None:
        """Raise ``SupersededError`` if another driver has claimed the checkpoint since."""
        self._chain.require_newest(self._lineage)

    def _add_result(self, manifest: Manifest, seconds: float) -> None:
        size = sum(delta.bytes for delta in manifest.deltas)
        self._results.append(
            CheckpointResult(manifest.epoch, manifest.parent, len(manifest.deltas), size, seconds)
        )

    def report_results(self) -> None:
        """Call ``on_result`` for checkpoints since the last time; not while holding locks."""
        while self._results:
            result = self._results.pop(0)
            try:
                self._on_result(result)
            except Exception:
                log.exception("on_checkpoint failed; the checkpoint is durable nevertheless")

    def _workflow_with(self, types: Mapping[int, JobTypes]) -> WorkflowMetadata:
        jobs = []
        for job in self._workflow.jobs:
            known = types.get(self._jobs[job.name], JobTypes())
            jobs.append(replace(job, key_type=known.key, output=known.output))
        return replace(self._workflow, jobs=tuple(jobs))

    def deltas_of(self, receipts: Iterable[Receipt]) -> list[DeltaRecord]:
        """The records that receipts name."""
        return [
            DeltaRecord(
                receipt.stored.key,
                self._ids[receipt.job],
                receipt.slots,
                receipt.epoch - 1,
                receipt.epoch,
                receipt.stored.bytes,
            )
            for receipt in receipts
            if receipt.stored is not None and receipt.stored.key
        ]

    def restore_plan(self) -> RestorePlan:
        """The records from which slots are restored to the newest committed epoch."""
        types, committed = self.types(), self.committed
        contents = contents_of(self._lineage, committed.epoch)
        return RestorePlan(
            self.incarnation,
            committed,
            {id_: at for at, id_ in self._ids.items()},
            {at: known.key for at, known in types.items() if known.key is not None},
            contents.bases,
            contents.deltas,
        )

    @property
    def is_garbage_due(self) -> bool:
        """Whether enough epochs were committed since garbage was last collected."""
        due = self._collected + self._garbage_every
        return not self._is_collecting and self.committed.epoch >= due

    def collect_garbage(self) -> None:
        """Delete what no retained epoch needs; a failure of the store is logged and retried."""
        self._is_collecting = True
        try:
            self._collected = self.committed.epoch
            self._delete_garbage()
        except StoreError as problem:
            log.warning("garbage collection failed; will retry: %s", problem)
        finally:
            self._is_collecting = False

    def _delete_garbage(self) -> None:
        lineage = self._lineage
        unneeded = garbage(lineage, self._store.scan(DATA), self._retain)
        # Own commits since the scan do not matter: what was garbage before them still is. But a
        # successor that rewound to an earlier epoch may need more.
        if self._chain.was_claimed(lineage):
            return
        remove(self._store, unneeded)
        self._first = unneeded.links_before

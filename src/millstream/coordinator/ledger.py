"""The ledger of epochs: admission, tries, receipts, commit. No I/O, no clock.

An epoch commits only when every slot of every job has a receipt from the node that owns the
slot now; that Spark reports a task as finished proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from millstream.checkpoints.manifest import BaseRecord
from millstream.coordinator.frozen_units import Frozen, UnitCounts
from millstream.coordinator.layout import Layout
from millstream.coordinator.roster import Cells, Roster
from millstream.coordinator.watermarks import Counted, Watermarks
from millstream.errors import MillstreamError
from millstream.ring.key_types import describe
from millstream.ring.keys import canonical_type
from millstream.ring.partitioning import partition_starts, tasks_of
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.state.blocks import KEY
from millstream.state.values import may_mix_types, unify, unify_nulls
from millstream.times import BEGINNING
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.epoch_record import EpochRecord, JobTypes
from millstream.wire.receipt_tables import ReceivedTypes
from millstream.wire.receipts import Receipt, Receipts
from millstream.work.job_clock import summed

_PARTITIONS_PER_OWNER = 2
_NO_TRY = (-1, 0)


class EpochOrderError(MillstreamError):
    """Spark offered an epoch out of order."""

    def __init__(self, epoch: int, committed: int) -> None:
        super().__init__(epoch, committed)
        self.epoch, self.committed = epoch, committed

    def __str__(self) -> str:
        return (
            f"Spark offered epoch {self.epoch}, but the newest committed epoch is "
            f"{self.committed}; start with a new checkpoint folder"
        )


class MissingReceiptsError(MillstreamError):
    """An epoch cannot commit: slots have no receipt from the node that owns them."""

    def __init__(self, epoch: int, missing: dict[str, int]) -> None:
        super().__init__(epoch, missing)
        self.epoch, self.missing = epoch, missing

    def __str__(self) -> str:
        jobs = ", ".join(f"{count} slots of job {job!r}" for job, count in self.missing.items())
        what = jobs or "the ring in force"
        return f"epoch {self.epoch} has no receipt for {what}; retry it"


class TypeConflictError(MillstreamError):
    """The first epoch's data do not agree on a type."""

    def __init__(self, job: str, what: str, found: str) -> None:
        super().__init__(job, what, found)
        self.job, self.what, self.found = job, what, found

    def __str__(self) -> str:
        return (
            f"job {self.job!r} has {self.what} of types {self.found}; give one type, or declare "
            "it with key_type= or output="
        )


@dataclass(frozen=True)
class PreparedEpoch:
    """An epoch that can be committed, with the merged receipts of all nodes.

    ``clocks`` is the time of windowed jobs after it, ``counted`` what they counted in it.
    """

    record: EpochRecord
    receipts: Sequence[Receipt]
    types: Mapping[int, JobTypes]
    bases: list[BaseRecord]
    in_sync: Cells
    clocks: Watermarks = field(default_factory=Watermarks)
    counted: Mapping[int, Counted] = field(default_factory=dict)
    counts: Mapping[int, UnitCounts] = field(default_factory=dict)  # by job
    units: bytes = b""  # as packed in a commit
    layout: Layout | None = None

    @property
    def commit(self) -> Commit:
        """The commit that nodes get; it names the units with which their copies must agree."""
        return Commit(*self.record.at, self.units)


@dataclass(frozen=True)
class _Comparison:
    """The units of a try that owners have frozen, and the cells of holders that agree with them."""

    frozen: Frozen
    in_sync: Cells


@dataclass(frozen=True)
class _Cut:
    """The partitions of a placement by their first slots, and the reduce task of each."""

    placement: Placement
    partitions: tuple[int, ...]
    tasks: tuple[int, ...]


class Ledger:
    """The epochs of one run."""

    def __init__(
        self,
        incarnation: int,
        jobs: Mapping[int, str],
        roster: Roster,
        addresses: Callable[[], Mapping[NodeId, str]],
        types: Mapping[int, JobTypes],
        *,
        logs: bool = False,
        committed: Commit = NOTHING_COMMITTED,
        clocks: Watermarks | None = None,
        partitions: int = 1,
    ) -> None:
        """``partitions`` is the least number of shuffle partitions of a job."""
        self.incarnation = incarnation
        self._partitions = partitions
        self._logs = logs
        self.committed = committed
        self._jobs = jobs
        self._roster = roster
        self._addresses = addresses
        self._types = dict(types)
        self.clocks = clocks or Watermarks()
        self._requested_watermark = BEGINNING
        self._record: EpochRecord | None = None
        self._received: dict[NodeId, Receipts] = {}
        self._ring_of: dict[NodeId, int] = {}  # the ring version of each node's receipts
        self._compared: _Comparison | None = None
        self._newest_cut: _Cut | None = None
        # Whether slots were reassigned during this try, and whether that cut units in two.
        self.taken_over = self.recut = False

    @property
    def record(self) -> EpochRecord | None:
        """The record of the epoch under way."""
        return self._record

    def key_type(self, job: int) -> pa.DataType | None:
        """The type of a job's keys, if it is known yet."""
        return self._types.get(job, JobTypes()).key

    def advance(self, to: int) -> None:
        """Advance the watermarks of the next epoch at least to a time."""
        self._requested_watermark = max(self._requested_watermark, to)

    def admit(self, epoch: int, now: int) -> EpochRecord:
        """Fix the record of the next epoch."""
        if epoch != self.committed.epoch + 1:
            raise EpochOrderError(epoch, self.committed.epoch)
        time = self.clocks.moment(now)
        requested, self._requested_watermark = self._requested_watermark, BEGINNING
        self._record = EpochRecord(
            incarnation=self.incarnation,
            epoch=epoch,
            try_=0,
            committed=self.committed,
            time=time,
            placement=self._roster.placement,
            addresses=self._addresses(),
            types=dict(self._types),
            logs=self._logs,
            clocks=self.clocks.at(time, self.incarnation, requested),
            cuts=(cut := self._cut()).placement.cuts,
            partitions=cut.partitions,
            tasks=cut.tasks,
            cut_from=cut.placement.version,
        )
        self._begin_try()
        return self._record

    def retry(self) -> EpochRecord:
        """Begin the next try of the epoch under way; units of older tries are void."""
        assert self._record is not None
        placement = self._roster.placement
        self._record = replace(
            self._record,
            try_=self._record.try_ + 1,
            placement=placement,
            addresses=self._addresses(),
            cuts=(cut := self._cut()).placement.cuts,
            partitions=cut.partitions,
            tasks=cut.tasks,
            cut_from=cut.placement.version,
        )
        self._begin_try()
        return self._record

    def _cut(self) -> _Cut:
        """The partitions of a try that begins now; cut once for each placement."""
        placement, least = self._roster.placement, self._partitions
        if self._newest_cut is None or self._newest_cut.placement is not placement:
            # A bound for slots that are scattered: every partition is a unit of its own.
            most = max(least, _PARTITIONS_PER_OWNER * len(placement.ring.nodes))
            starts = partition_starts(placement, least, most)
            self._newest_cut = _Cut(placement, starts, tasks_of(placement, starts, least))
        return self._newest_cut

    def _begin_try(self) -> None:
        self._received, self._ring_of, self._compared = {}, {}, None
        self.taken_over = self.recut = False

    def replace_placement(self) -> None:
        """Continue the epoch under way with the placement in force."""
        if self._record is not None:
            placement = self._roster.placement
            self._record = replace(self._record, placement=placement, addresses=self._addresses())
            self.taken_over = True
            self.recut = self.recut or not set(placement.cuts) <= set(self._record.cuts)

    def receive(self, node: NodeId, receipts: Receipts) -> None:
        """Replace the receipts of a member for the try under way."""
        if node in self._roster.domains:
            self._received[node] = receipts
            self._ring_of[node] = self._roster.placement.version
            self._compared = None

    @property
    def receipts(self) -> Sequence[Receipt]:
        """The receipts of the try under way that count: from owners of their slots."""
        return self._frozen.receipts

    @property
    def _frozen(self) -> Frozen:
        """For each job and slot the digest of the unit that its present owner has frozen."""
        return self._comparison.frozen

    @property
    def _comparison(self) -> _Comparison:
        """What the receipts come to under the placement in force; computed once."""
        holders = self._roster.holders
        if self._compared is None or self._compared.frozen.holders is not holders:
            number_of = self._roster.number_of
            received = [(number_of(node), each) for node, each in self._received.items()]
            at = _NO_TRY if self._record is None else self._record.at
            frozen = Frozen(self._jobs, holders, received, at)
            self._compared = _Comparison(frozen, frozen.in_sync(self.committed.epoch))
        return self._compared

    def missing(self) -> dict[int, int]:
        """For each job, how many slots have no receipt from their present owner."""
        counts = {
            job: int((numbers == Frozen.NONE).sum()) for job, numbers in self._frozen.by_job.items()
        }
        return {job: count for job, count in counts.items() if count}

    def in_sync(self) -> Cells:
        """The cells of the holders that would be in sync if the epoch were committed now."""
        return self._comparison.in_sync

    def lagging(self) -> list[tuple[NodeId, NodeId]]:
        """Owners, and the backups in sync that lack a copy of what they froze."""
        roster, in_sync = self._roster, self.in_sync()
        lacking = roster.synced & ~in_sync
        lacking[:, 0] = False
        slots, columns = np.nonzero(lacking)
        table = roster.holders.table
        pairs = np.unique(np.stack([table[slots, 0], table[slots, columns]], axis=1), axis=0)
        names = (
            (roster.node_at(owner), roster.node_at(backup)) for owner, backup in pairs.tolist()
        )
        return [(o, b) for o, b in names if o in roster.domains and b in self._received]

    def leaves_single_copies(self) -> bool:
        """Whether a commit now would leave a single copy of slots that have more."""
        copies = self.in_sync().sum(axis=1)
        return bool(((copies <= 1) & (self._roster.copy_counts() > 1)).any())

    def require_complete(self) -> None:
        """Raise ``MissingReceiptsError`` unless every slot has a receipt from its present owner."""
        assert self._record is not None
        missing = {self._jobs[job]: count for job, count in self.missing().items()}
        if missing:
            raise MissingReceiptsError(self._record.epoch, missing)

    def prepare(self) -> PreparedEpoch:
        """Prepare the commit of the epoch under way, or raise ``MissingReceiptsError``."""
        assert self._record is not None
        self.require_complete()
        version = self._roster.placement.version
        if any(self._ring_of.get(node, version) != version for node in self._roster.holding):
            # A node that a slot was taken from and given to again has dropped its copy since.
            # Nodes without slots do not matter, and are not asked again.
            raise MissingReceiptsError(self._record.epoch, {})
        bases = [base for received in self._received.values() for base in received.bases]
        counted = self._counted()
        return PreparedEpoch(
            self._record,
            self.receipts,
            self._inferred_types(),
            bases,
            self.in_sync(),
            self.clocks.commit(self._record, counted),
            counted,
            self._frozen.counts(),
            self._frozen.packed_units(),
            self._roster.layout(),
        )

    def _counted(self) -> dict[int, Counted]:
        """What windowed jobs counted, each unit once: by the owner of its first slot."""
        counted = {}
        for timing in self.clocks.timings:
            mine = [receipt for receipt in self._frozen.of_first_slots if receipt.job == timing.job]
            tallies = summed(tally for receipt in mine for tally in receipt.tallies)
            counted[timing.job] = Counted(tallies, sum(receipt.keys for receipt in mine))
        return counted

    def commit(self, prepared: PreparedEpoch) -> None:
        """Commit a prepared epoch; no owner has changed since it was prepared."""
        self._types = dict(prepared.types)
        self.clocks = prepared.clocks
        self._roster.set_in_sync(prepared.in_sync)
        self.committed = prepared.commit
        self._record, self._received, self._compared = None, {}, None

    def check_types(self) -> None:
        """Raise if this epoch's receipts do not agree on types; call before callbacks run."""
        self._inferred_types()

    def _inferred_types(self) -> dict[int, JobTypes]:
        """The types of jobs, including those inferred from the epoch under way."""
        inferred = {}
        for job, name in self._jobs.items():
            known = self._types.get(job, JobTypes())
            mine = self._frozen.types[job]
            key = self._key(name, known.key, mine)
            output = self._output(name, mine) if known.output is None else known.output
            inferred[job] = JobTypes(key, output)
        return inferred

    def _key(
        self, name: str, known: pa.DataType | None, received: list[ReceivedTypes]
    ) -> pa.DataType | None:
        kind = pa.null() if known is None else canonical_type(known)
        for types in received:
            if types.key_type is None:
                continue
            both = unify_nulls([kind, types.key_type])
            if both is None:
                names = " and ".join(sorted(map(describe, (kind, types.key_type))))
                found = f"{names} (such as {types.key}, {describe(types.key_type)})"
                raise TypeConflictError(name, "keys", found)
            kind = both
        return known if pa.types.is_null(kind) else kind

    def _output(self, name: str, received: list[ReceivedTypes]) -> pa.Schema | None:
        schemas = [types.output for types in received if types.output is not None]
        if not schemas or any(schema.names != schemas[0].names for schema in schemas):
            return None
        fields = []
        for at, column in enumerate(schemas[0].names):
            if any(may_mix_types(schema.field(at)) for schema in schemas):
                return None
            kind = unify(schema.field(at).type for schema in schemas)
            if kind is None:
                found = sorted({str(schema.field(at).type) for schema in schemas})
                raise TypeConflictError(name, f"outputs {column!r}", " and ".join(found))
            # A key that is an integer must not become the float that equals it, as a value may.
            if pa.types.is_null(kind) or (column == KEY and pa.types.is_floating(kind)):
                return None
            fields.append(pa.field(column, kind))
        return pa.schema(fields, metadata=schemas[0].metadata)

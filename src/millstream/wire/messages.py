"""What is said to a node, between nodes, and what a node answers."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from millstream.checkpoints.manifest import BaseRecord, DeltaRecord
from millstream.errors import MillstreamError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.work.job_clock import JobClock, Tally

Runs = tuple[tuple[int, int], ...]
"""A value for every slot, as ``(first slot, value)`` wherever the value changes."""


@dataclass(frozen=True)
class Kept:
    """Where a record is durable; of what held nothing there is none."""

    key: str
    bytes: int


@dataclass
class WriteQueueCounts:
    """What a safekeeper has done so far."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    replaced: int = 0
    waited: int = 0
    serialise_seconds: float = 0.0
    store_seconds: float = 0.0


class CommittedUnit(NamedTuple):
    """Slots of a job, and the digest of the unit that is their committed change."""

    job: int
    start: int
    stop: int
    digest: str


@dataclass(frozen=True)
class Commit:
    """A committed epoch, the try that was committed, and the units that it consists of.

    Every other unit of the epoch is void, whoever has it. What a store restores has no units.
    Nearly every message has a commit, and nearly nobody looks at its units: they are pickled once.
    """

    epoch: int
    try_: int
    packed: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, epoch: int, try_: int, units: Iterable[CommittedUnit]) -> Commit:
        """Return a commit that names these units."""
        return cls(epoch, try_, pickle.dumps([tuple(unit) for unit in units], 5))

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the try."""
        return self.epoch, self.try_

    @property
    def units(self) -> tuple[CommittedUnit, ...]:
        """The units; unpacked anew each time."""
        found = pickle.loads(self.packed) if self.packed else ()
        return tuple(CommittedUnit(*unit) for unit in found)


NOTHING_COMMITTED = Commit(-1, 0)


@dataclass(frozen=True)
class Feed:
    """The header of a feed: one job's blocks for a range of slots in one epoch.

    ``slots`` names every slot of the range, also those without rows. ``committed`` is the
    newest commit the sender knows; it implies the seal of that epoch. A ``copy`` goes to the
    tuple log of a backup. A windowed job has a ``clock``.
    """

    incarnation: int
    job: int
    epoch: int
    try_: int
    attempt: int
    ring: int
    slots: range
    committed: Commit
    time: int
    rows: int = 0
    output: pa.Schema | None = None
    read: bool = True
    copy: bool = False
    clock: JobClock | None = None


@dataclass(frozen=True)
class End:
    """The end marker of a feed: without it a feed never happened."""

    blocks: int
    digest: str


@dataclass(frozen=True)
class Receipt:
    """A node's word that it has frozen (job, slots, epoch), and what it counted.

    ``key`` is one of the keys, as errors show it.
    """

    job: int
    epoch: int
    try_: int
    slots: range
    digest: str  # of the unit's whole input, also in the receipt for a part of its slots
    rows: int
    keys: int = 0
    outputs: int = 0
    seconds: float = 0.0
    key_type: pa.DataType | None = None
    output: pa.Schema | None = None
    kept: Kept | None = None
    tallies: tuple[Tally, ...] = ()
    key: str = ""

    def part(self, slots: range) -> Receipt:
        """The receipt for some of its slots; who has the first tells what map tasks counted."""
        if slots.start == self.slots.start:
            return replace(self, slots=slots)
        return replace(self, slots=slots, rows=0, tallies=())


@dataclass(frozen=True)
class CopyReceipt:
    """A backup's word that it has a complete copy of what a primary froze, or was fed."""

    job: int
    slots: range
    digest: str


@dataclass(frozen=True)
class NodeReport:
    """How a node is doing."""

    state_keys: Mapping[int, int] = field(default_factory=dict)
    memory: int = 0
    log_bytes: int = 0
    cold_keys: int = 0
    keeper: WriteQueueCounts | None = None


@dataclass(frozen=True)
class Receipts:
    """A node's word on one epoch and try; ``reach`` says how far its copies are complete.

    While something is ``pending`` there is more to come: the logs of slots it took over are
    replayed, or the store is still writing. ``bases`` are those it has in the store.
    """

    receipts: tuple[Receipt, ...]
    copies: tuple[CopyReceipt, ...]
    reach: Runs
    pending: bool
    report: NodeReport
    bases: tuple[BaseRecord, ...] = ()


@dataclass(frozen=True)
class Assign:
    """The placement in force, told by the coordinator."""

    incarnation: int
    placement: Placement
    addresses: Mapping[NodeId, str]
    committed: Commit = NOTHING_COMMITTED


@dataclass(frozen=True)
class UnitCopy:
    """What a primary froze, on its way to a backup."""

    incarnation: int
    ring: int
    source: NodeId
    committed: Commit
    receipt: Receipt
    delta: pa.Buffer


@dataclass(frozen=True)
class Delta:
    """The changes of the epochs (since, through] to a range of slots, of every job."""

    incarnation: int
    ring: int
    source: NodeId
    committed: Commit
    slots: range
    since: int
    through: int
    parts: tuple[tuple[int, bytes], ...]
    key_types: Mapping[int, pa.DataType]


@dataclass(frozen=True)
class Snapshot:
    """The whole state of a range of slots through an epoch, of every job."""

    incarnation: int
    slots: range
    through: int
    parts: tuple[tuple[int, bytes], ...]
    key_types: Mapping[int, pa.DataType]


@dataclass(frozen=True)
class Restore:
    """What brings slots back from the store: the records of an epoch.

    ``jobs`` maps the ids that jobs have in the checkpoint to the jobs of this run.
    """

    incarnation: int
    committed: Commit
    jobs: Mapping[str, int]
    key_types: Mapping[int, pa.DataType]
    bases: tuple[BaseRecord, ...]
    deltas: tuple[DeltaRecord, ...]


@dataclass(frozen=True)
class Persist:
    """The coordinator's order to put the epochs after ``since`` up to a commit into the store."""

    incarnation: int
    since: int
    committed: Commit


@dataclass(frozen=True)
class Persisted:
    """What a node has put into the store on such an order, for which slots."""

    deltas: tuple[DeltaRecord, ...]
    bases: tuple[BaseRecord, ...]
    slots: tuple[range, ...]


@dataclass(frozen=True)
class CopyOrder:
    """The coordinator's order to copy slots to a node, as of an epoch or later."""

    incarnation: int
    to: NodeId
    slots: tuple[range, ...]
    committed: Commit


class FeedRefusedError(MillstreamError):
    """A node does not take a feed: it is stale, or the node does not own the slots."""

    def __init__(self, reason: str, stale: bool) -> None:
        super().__init__(reason, stale)
        self.reason, self.stale = reason, stale

    def __str__(self) -> str:
        then = "the attempt is void" if self.stale else "fetch the ring in force and feed again"
        return f"{self.reason}; {then}"


class NotDeterministicError(MillstreamError):
    """Two attempts of one unit were fed different input."""

    def __init__(self, job: str, epoch: int, slots: str) -> None:
        super().__init__(job, epoch, slots)
        self.job, self.epoch, self.slots = job, epoch, slots

    def __str__(self) -> str:
        return (
            f"job {self.job!r} was fed different input for slots {self.slots} of epoch "
            f"{self.epoch} when a task ran again: a map function upstream gives other results for "
            "the same input; make it deterministic (no clock, no random numbers without a seed, "
            "no order of sets)"
        )


class RecutError(MillstreamError):
    """Two attempts of an epoch cut a job's slots into different units, after a takeover."""

    def __init__(self, job: str, epoch: int, slots: str) -> None:
        super().__init__(job, epoch, slots)
        self.job, self.epoch, self.slots = job, epoch, slots

    def __str__(self) -> str:
        return (
            f"slots {self.slots} of job {self.job!r} were fed in other units before a takeover in "
            f"epoch {self.epoch}, and the two cannot be compared; the epoch runs again as its "
            "next try"
        )


class BrokenFeedError(MillstreamError):
    """A feed ended before its end marker, or with other content than it says."""


class SlotsNotHeldError(MillstreamError):
    """A node was asked for slots that it does not hold, or not far enough."""


class NotReadyError(MillstreamError):
    """A node cannot follow an order yet; it may be asked again."""


class RebasedError(NotReadyError):
    """Slots that changed hands went into the store as they are; a newer order may name that."""


@dataclass(frozen=True)
class OpenScan:
    """The coordinator's wish to scan a job as it is at a commit, whatever follows meanwhile."""

    scan: str
    job: int
    committed: Commit


class ScanBrokenError(MillstreamError):
    """A scan cannot go on: the state of its epoch is not there any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a scan of state ended before its end: {self.reason}; scan again"


class FencedError(MillstreamError):
    """A node is told that it is no longer part of the run."""

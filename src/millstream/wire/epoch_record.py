"""The epoch record: what every copy and every replay of an epoch must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.wire.commit import Commit
from millstream.wire.pickled_once import PickledOnce
from millstream.wire.request import Request
from millstream.work.job_clock import JobClock


@dataclass(frozen=True)
class JobTypes:
    """The types of a job, declared or inferred from the first epoch with data."""

    key: pa.DataType | None = None
    output: pa.Schema | None = None


def known_types(
    declared: Mapping[int, JobTypes], inferred: Mapping[int, JobTypes]
) -> dict[int, JobTypes]:
    """The types of jobs: as declared now, or else as inferred from earlier epochs."""
    known = dict(declared)
    for job, types in inferred.items():
        given = known.get(job, JobTypes())
        known[job] = JobTypes(given.key or types.key, given.output or types.output)
    return known


class Routing(NamedTuple):
    """Versions: records of a run that agree on them feed the same slots to the same nodes."""

    incarnation: int
    cut_from: int
    placement: int


@dataclass(frozen=True)
class EpochRecord(PickledOnce):
    """Fixed when an epoch is admitted; nodes never read a clock of their own.

    A takeover replaces the placement and nothing else. With ``logs`` the backups are fed, too.
    Windowed jobs have ``clocks``. Units are cut at ``cuts`` even if slots are reassigned
    meanwhile, so that what was frozen before a takeover can be compared with what is fed after it.
    ``partitions`` are the first slots of the shuffle partitions of each job, and ``tasks`` the
    reduce task that has each of them; another try may have others. All three are cut from the
    placement of version ``cut_from``.
    """

    incarnation: int
    epoch: int
    try_: int
    committed: Commit
    time: int
    placement: Placement
    addresses: Mapping[NodeId, str]
    types: Mapping[int, JobTypes] = field(default_factory=dict)
    logs: bool = False
    clocks: Mapping[int, JobClock] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()
    partitions: tuple[int, ...] = (0,)
    tasks: tuple[int, ...] = (0,)
    cut_from: int = 0

    @property
    def routing(self) -> Routing:
        """What its placement, addresses, cuts and partitions are identified by."""
        return Routing(self.incarnation, self.cut_from, self.placement.version)

    @cached_property
    def update(self) -> RecordUpdate:
        """What it adds to another record with the same routing."""
        return RecordUpdate(
            self.epoch, self.try_, self.committed, self.time, self.types, self.logs, self.clocks
        )

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the try."""
        return self.epoch, self.try_

    def slots_of(self, partition: int) -> range:
        """The slots of a shuffle partition."""
        bounds = (*self.partitions, self.placement.ring.slots)
        return range(bounds[partition], bounds[partition + 1])

    @property
    def task_count(self) -> int:
        """How many reduce tasks a job has."""
        return max(self.tasks) + 1

    def partitions_of(self, task: int) -> list[int]:
        """The shuffle partitions that a reduce task of a job has."""
        return [part for part, of_task in enumerate(self.tasks) if of_task == task]

    @property
    def attempt(self) -> str:
        """The name under which sinks stage the outputs of this try."""
        return f"{self.incarnation}.{self.try_}"


@dataclass(frozen=True)
class RecordUpdate(PickledOnce):
    """A record for a task that has another one with the same routing."""

    epoch: int
    try_: int
    committed: Commit
    time: int
    types: Mapping[int, JobTypes]
    logs: bool
    clocks: Mapping[int, JobClock]

    def of(self, known: EpochRecord) -> EpochRecord:
        """The whole record."""
        return replace(
            known,
            epoch=self.epoch,
            try_=self.try_,
            committed=self.committed,
            time=self.time,
            types=self.types,
            logs=self.logs,
            clocks=self.clocks,
        )


def incarnation_of(attempt: str) -> int:
    """The incarnation that staged under this name."""
    return int(attempt.partition(".")[0])


@dataclass(frozen=True)
class FetchRecord(Request[EpochRecord | RecordUpdate]):
    """A task asks the coordinator for the record of an epoch and try.

    Placements of many nodes are large and change seldom: a task that has a record of the ``known``
    routing is answered with an update if that is still in force.
    """

    epoch: int
    try_: int
    known: Routing | None = None


@dataclass(frozen=True)
class ReportFailure(Request[None]):
    """A task reports the typed error with which it failed; Spark itself sees a short text."""

    epoch: int
    try_: int
    problem: MillstreamError

"""The epoch record: what every copy and every replay of an epoch must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class EpochRecord(PickledOnce):
    """Fixed when an epoch is admitted; nodes never read a clock of their own.

    A takeover replaces the placement and nothing else. With ``logs`` the backups are fed, too.
    Windowed jobs have ``clocks``. Units are cut at ``cuts`` even if slots are reassigned
    meanwhile, so that what was frozen before a takeover can be compared with what is fed after it.
    ``partitions`` are the first slots of the shuffle partitions of each job; another try may have
    others.
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

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the try."""
        return self.epoch, self.try_

    def slots_of(self, partition: int) -> range:
        """The slots of a shuffle partition."""
        bounds = (*self.partitions, self.placement.ring.slots)
        return range(bounds[partition], bounds[partition + 1])

    @property
    def attempt(self) -> str:
        """The name under which sinks stage the outputs of this try."""
        return f"{self.incarnation}.{self.try_}"


def incarnation_of(attempt: str) -> int:
    """The incarnation that staged under this name."""
    return int(attempt.partition(".")[0])


@dataclass(frozen=True)
class FetchRecord(Request[EpochRecord]):
    """A task asks the coordinator for the record of an epoch and try."""

    epoch: int
    try_: int


@dataclass(frozen=True)
class ReportFailure(Request[None]):
    """A task reports the typed error with which it failed; Spark itself sees a short text."""

    epoch: int
    try_: int
    problem: MillstreamError

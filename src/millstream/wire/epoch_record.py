"""The epoch record: what every copy and every replay of an epoch must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.wire.messages import Commit
from millstream.work.job_clock import JobClock


@dataclass(frozen=True)
class JobTypes:
    """The types of a job, declared or learnt from the first epoch that had data."""

    key: pa.DataType | None = None
    output: pa.Schema | None = None


def known_types(
    declared: Mapping[int, JobTypes], shown: Mapping[int, JobTypes]
) -> dict[int, JobTypes]:
    """The types of jobs: as they are declared now, or else as earlier epochs have shown them."""
    found = dict(declared)
    for job, types in shown.items():
        said = found.get(job, JobTypes())
        found[job] = JobTypes(said.key or types.key, said.output or types.output)
    return found


@dataclass(frozen=True)
class EpochRecord:
    """Fixed when an epoch is admitted; nodes never read a clock of their own.

    A takeover replaces the placement, and nothing else. With ``logs`` the backups are fed, too.
    Windowed jobs have ``clocks``. Units are cut at ``cuts``, whoever owns them by now, so that
    what was frozen before a takeover and what is fed after it can be compared.
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

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the try."""
        return self.epoch, self.try_

    @property
    def attempt(self) -> str:
        """How sinks call what this try has staged."""
        return f"{self.incarnation}.{self.try_}"


def incarnation_of(attempt: str) -> int:
    """Which incarnation has staged under this name."""
    return int(attempt.partition(".")[0])

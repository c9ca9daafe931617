"""The epoch record: what every copy and every replay of an epoch must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from millstream.ring.ring import NodeId, Ring


@dataclass(frozen=True)
class JobTypes:
    """The types of a job, declared or learnt from the first epoch that had data."""

    key: pa.DataType | None = None
    output: pa.Schema | None = None


@dataclass(frozen=True)
class EpochRecord:
    """Fixed when an epoch is admitted; nodes never read a clock of their own."""

    incarnation: int
    epoch: int
    try_: int
    committed: int
    time: int
    ring: Ring
    addresses: Mapping[NodeId, str]
    types: Mapping[int, JobTypes] = field(default_factory=dict)

"""What the reduction of a unit takes and gives, whatever the form of the reducer.

``reduce`` reads the committed state and returns a fragment and the outputs, changing nothing; the
state (:mod:`millstream.state.protocol`) applies the fragment when its epoch is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.state.protocol import State
from millstream.times import micros
from millstream.work.job_clock import JobClock, Tally


@dataclass(frozen=True)
class UnitContext:
    """What every copy of a unit must agree on: slots, time and types.

    ``read`` is false when nobody reads the job's outputs; they are then dropped. A windowed job
    has a ``clock``.
    """

    slots: range
    time: int
    output: pa.Schema | None = None
    read: bool = True
    clock: JobClock | None = None
    epoch: int = 0


F = TypeVar("F")


@dataclass(frozen=True)
class Reduced(Generic[F]):
    """The effect of a unit: a fragment, its outputs, and counts.

    Outputs have one schema; late values that the operator found are packed with them.
    """

    fragment: F
    outputs: list[pa.RecordBatch]
    keys: int
    tallies: tuple[Tally, ...] = ()


class ReduceOperator(Protocol[F]):
    """The running form of a job's reducer on one node."""

    @property
    def state(self) -> State[F]:
        """The job's state: of the slots that the node owns, and of copies."""

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[F]:
        """Compute the effect of a unit; the state is only read."""


def ttl_of(job: JobVertex) -> int | None:
    """The time-to-live of a job's keys, in microseconds."""
    return None if job.ttl is None else micros(job.ttl)

"""What a unit's reduction takes and gives, whatever the form of the reducer.

``reduce`` reads the committed state and returns a fragment and the outputs, changing nothing;
``apply`` merges a sealed fragment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from millstream.flow.workflow import JobVertex


@dataclass(frozen=True)
class UnitContext:
    """What every copy of a unit must agree on: slots, time and types.

    ``read`` is false when nobody reads the job's outputs; they are then not kept.
    """

    slots: range
    time: int
    output: pa.Schema | None = None
    read: bool = True


F = TypeVar("F")


@dataclass(frozen=True)
class Reduced(Generic[F]):
    """The effect of a unit: a fragment, its outputs, and what was counted."""

    fragment: F
    outputs: list[pa.RecordBatch]
    keys: int


class Reducing(Protocol[F]):
    """A job's reducer with its state on one node."""

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[F]:
        """Compute the effect of a unit; the state is only read."""

    def apply(self, fragment: F, time: int) -> None:
        """Merge the fragment of a committed epoch."""

    def get(self, slot: int, key: Any) -> Any:
        """A key's committed state, or None."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All committed keys with their state."""

    @property
    def keys(self) -> int:
        """How many keys are committed."""


def ttl_of(job: JobVertex) -> int | None:
    """The time-to-live of a job's keys, in microseconds."""
    return None if job.ttl is None else round(job.ttl.total_seconds() * 1e6)

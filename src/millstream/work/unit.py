"""What a unit's reduction takes and gives, whatever the form of the reducer.

``reduce`` reads the committed state and returns a fragment and the outputs, changing nothing;
``apply`` merges a sealed fragment. A fragment is never changed after that: encoded, it is the
delta that other copies of its slots apply, and deltas of consecutive epochs can be merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.ring.masks import SlotMask
from millstream.work.job_clock import JobClock, Tally


@dataclass(frozen=True)
class UnitContext:
    """What every copy of a unit must agree on: slots, time and types.

    ``read`` is false when nobody reads the job's outputs; they are then not kept. A windowed job
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
    """The effect of a unit: a fragment, its outputs, and what was counted.

    Outputs have one schema; where the reducer has found values to be late, they are in a parcel.
    """

    fragment: F
    outputs: list[pa.RecordBatch]
    keys: int
    tallies: tuple[Tally, ...] = ()


class Reducing(Protocol[F]):
    """A job's reducer with its state on one node: of the slots that it owns, and of copies."""

    @property
    def step(self) -> int:
        """How many changed keys are merged within a few milliseconds."""

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[F]:
        """Compute the effect of a unit; the state is only read."""

    def apply(self, fragment: F, slots: SlotMask | None = None) -> None:
        """Merge the fragment of a committed epoch, or what it has for some slots.

        Values are absolute: a merged fragment may come upon a state that has a part of it.
        """

    def by_slot(self, fragment: F) -> F:
        """The same fragment, so arranged that it is quickly applied a few slots at a time."""

    def encode(self, fragment: F) -> bytes:
        """A fragment as a delta for other copies of its slots."""

    def decode(self, data: bytes | pa.Buffer) -> F:
        """Read a delta of an authenticated peer."""

    def part(self, fragment: F, slots: range) -> F:
        """What a fragment has for some slots; perhaps with forgotten keys of others."""

    def merge(self, fragments: Sequence[F]) -> F:
        """Join fragments of consecutive epochs, oldest first, into one with the same effect."""

    def snapshot(self, slots: range) -> F:
        """All that some slots hold now, as a fragment that makes empty slots equal to them."""

    def drop(self, slots: SlotMask) -> None:
        """Forget all that some slots hold."""

    def get(self, slot: int, key: Any) -> Any:
        """A key's committed state, or None."""

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        """The committed keys of some slots with their state."""

    def keys(self, slots: SlotMask) -> int:
        """How many keys some slots hold."""


def ttl_of(job: JobVertex) -> int | None:
    """The time-to-live of a job's keys, in microseconds."""
    return None if job.ttl is None else round(job.ttl.total_seconds() * 1e6)

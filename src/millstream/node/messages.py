"""What is said to a node, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.ring.ring import Ring


@dataclass(frozen=True)
class Feed:
    """The header of a feed: one job's blocks for a range of slots in one epoch.

    ``slots`` names every slot of the range, also those without rows. ``committed`` is the
    newest committed epoch the sender knows; it implies the seal of that epoch.
    """

    incarnation: int
    job: int
    epoch: int
    try_: int
    attempt: int
    ring: int
    slots: range
    committed: int
    time: int
    rows: int = 0
    output: pa.Schema | None = None
    read: bool = True


@dataclass(frozen=True)
class End:
    """The end marker of a feed: without it a feed never happened."""

    blocks: int
    digest: str


@dataclass(frozen=True)
class Receipt:
    """A node's word that it has frozen (job, slots, epoch), and what it counted."""

    job: int
    epoch: int
    try_: int
    slots: range
    rows: int
    keys: int
    outputs: int
    seconds: float
    key_type: pa.DataType | None
    output: pa.Schema | None


@dataclass(frozen=True)
class NodeReport:
    """How a node is doing."""

    state_keys: Mapping[int, int] = field(default_factory=dict)
    memory: int = 0


@dataclass(frozen=True)
class Receipts:
    """All receipts of a node for one epoch and try, with its report."""

    receipts: tuple[Receipt, ...]
    report: NodeReport


@dataclass(frozen=True)
class Assign:
    """The ring in force, told by the coordinator."""

    incarnation: int
    ring: Ring


class FeedRefused(MillstreamError):
    """A node does not take a feed: it is stale, or the node does not own the slots."""

    def __init__(self, reason: str, stale: bool) -> None:
        super().__init__(reason, stale)
        self.reason, self.stale = reason, stale

    def __str__(self) -> str:
        then = "the attempt is void" if self.stale else "fetch the ring in force and feed again"
        return f"{self.reason}; {then}"


class NotDeterministic(MillstreamError):
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


class BrokenFeed(MillstreamError):
    """A feed ended before its end marker, or with other content than it says."""

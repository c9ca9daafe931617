"""A feed: the blocks of one job for a range of slots in one epoch, streamed to a node."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.wire.commit import Commit
from millstream.work.job_clock import JobClock


@dataclass(frozen=True)
class Feed:
    """The header of a feed.

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

    @property
    def at(self) -> tuple[int, int, int]:
        """The incarnation, the epoch and the try."""
        return self.incarnation, self.epoch, self.try_


@dataclass(frozen=True)
class End:
    """The end marker of a feed: a feed without it has no effect."""

    blocks: int
    digest: str


class FeedRefusedError(MillstreamError):
    """A node rejects a feed: it is stale, or the node does not own the slots."""

    def __init__(self, reason: str, stale: bool) -> None:
        super().__init__(reason, stale)
        self.reason, self.stale = reason, stale

    def __str__(self) -> str:
        then = "do not retry" if self.stale else "fetch the current epoch record and retry"
        return f"{self.reason}; {then}"


class BrokenFeedError(MillstreamError):
    """A feed ended before its end marker, or with other content than its end marker says."""


class NotDeterministicError(MillstreamError):
    """Two attempts of one unit were fed different input."""

    def __init__(self, job: str, epoch: int, slots: str) -> None:
        super().__init__(job, epoch, slots)
        self.job, self.epoch, self.slots = job, epoch, slots

    def __str__(self) -> str:
        return (
            f"job {self.job!r} was fed different input for slots {self.slots} of epoch "
            f"{self.epoch} when a task ran again: a map function upstream returns different "
            "results for the same input; make it deterministic (no clock, no random numbers "
            "without a seed, no iteration over sets)"
        )


class RecutError(MillstreamError):
    """Two attempts of an epoch cut a job's slots into different units, after a takeover."""

    def __init__(self, job: str, epoch: int, slots: str) -> None:
        super().__init__(job, epoch, slots)
        self.job, self.epoch, self.slots = job, epoch, slots

    def __str__(self) -> str:
        return (
            f"slots {self.slots} of job {self.job!r} were fed in different units before a takeover "
            f"in epoch {self.epoch}, and the two cannot be compared; the epoch is retried"
        )

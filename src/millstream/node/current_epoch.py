"""Where a node is: its newest commit, and the epoch and try under way. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.flow.vertices import JobVertex
from millstream.node.held_units import Unit, Work, committed_units
from millstream.ring.masks import SlotMask, common
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.feed import FeedRefusedError, NotDeterministicError, RecutError


class CurrentEpoch:
    """The units of the try under way, frozen here or received from others."""

    def __init__(self, jobs: Mapping[int, JobVertex]) -> None:
        self._jobs = jobs
        self.reset(incarnation=0)

    def reset(self, incarnation: int) -> None:
        """Drop what an older incarnation had under way."""
        self.incarnation = incarnation
        self.committed: Commit = NOTHING_COMMITTED
        self.at: tuple[int, int] = (-1, 0)  # epoch and try
        self._units: dict[int, list[Unit]] = {}  # by job

    @property
    def units(self) -> list[Unit]:
        return [unit for of_job in self._units.values() for unit in of_job]

    @property
    def epoch(self) -> int:
        return self.at[0]

    # -- fences --------------------------------------------------------------------------

    def require_incarnation(self, incarnation: int) -> None:
        """Reject a message of another incarnation."""
        if incarnation != self.incarnation:
            raise FeedRefusedError(
                f"incarnation {incarnation} is not {self.incarnation}",
                stale=incarnation < self.incarnation,
            )

    def fence(self, incarnation: int, epoch: int, try_: int) -> None:
        """Reject a message of an epoch that is committed, or of a try that was replaced."""
        self.require_incarnation(incarnation)
        if epoch <= self.committed.epoch:
            raise FeedRefusedError(f"epoch {epoch} is committed", stale=True)
        if (epoch, try_) < self.at:
            raise FeedRefusedError(
                f"try {try_} of epoch {epoch} was replaced by try {self.at[1]} of epoch "
                f"{self.epoch}",
                stale=True,
            )

    def enter(self, epoch: int, try_: int) -> None:
        """Begin an epoch or try, if it is newer than the one under way, whose units are void."""
        if (epoch, try_) > self.at:
            self._units = {}
            self.at = (epoch, try_)

    # -- units ---------------------------------------------------------------------------

    def add(self, unit: Unit) -> None:
        """Add a unit that was frozen here."""
        self._units.setdefault(unit.job, []).append(unit)

    def add_copy(self, unit: Unit) -> None:
        """Add a copy, also beside others of the same slots: the commit names the one that counts.

        An owner may be lost after it has replicated a unit, and the next one freeze another.
        """
        if all(other.digest != unit.digest for other in self._units.get(unit.job, ())):
            self.add(unit)

    def matching(self, work: Work) -> Unit | None:
        """The unit that an earlier attempt left for the same input; raises where they differ."""
        feed, match = work.feed, None
        for unit in self._units.get(feed.job, ()):
            if common(unit.slots, feed.slots):
                if unit.digest != work.digest:
                    raise self._conflict(unit, feed.slots)
                match = unit
        return match

    def require_agreement(self, owned: SlotMask) -> None:
        """Raise if former owners left different units for the same slots of this node."""
        ordered = sorted(self.units, key=lambda unit: (unit.job, unit.slots.start))
        for at, unit in enumerate(ordered):
            for later in range(at + 1, len(ordered)):
                other = ordered[later]
                both = common(unit.slots, other.slots)
                if other.job != unit.job or not both:
                    break
                if other.digest != unit.digest and owned[both.start : both.stop].any():
                    raise self._conflict(unit, other.slots)

    def _conflict(self, unit: Unit, slots: range) -> NotDeterministicError | RecutError:
        """Two units of this try share slots and differ."""
        error = RecutError if unit.slots != slots else NotDeterministicError
        both = common(unit.slots, slots)
        name = self._jobs[unit.job].name
        return error(name, unit.receipt.epoch, f"{both.start} to {both.stop - 1}")

    def commit(self, commit: Commit) -> list[Unit] | None:
        """Take the units that a commit names out of here; None if it is of another try."""
        units, self._units, self.committed = self.units, {}, commit
        return list(committed_units(units, commit)) if commit.at == self.at else None

    @property
    def log_bytes(self) -> int:
        """What the tuple logs of this try take in memory."""
        return sum(unit.log.bytes for unit in self.units if unit.log is not None)

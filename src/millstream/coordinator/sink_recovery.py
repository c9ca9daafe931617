"""Sinks that stage, when a run takes hold of its checkpoint: they are made to agree with it.

A driver may have been replaced by the time it does so; what its successor has staged or published
is not for it to remove.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from millstream.coordinator.claim import Claimed
from millstream.coordinator.interval_commits import Publish
from millstream.coordinator.journal import Journal
from millstream.wire.epoch_record import incarnation_of

log = logging.getLogger("millstream")


class StagingSink(Protocol):
    """A sink that keeps epochs out of sight until they are published, and can take them back."""

    def clean(self, keep: Container[tuple[int, str]]) -> None:
        """Drop what was staged, except the epochs and attempts that are to be kept."""

    def shown(self, after: int) -> list[int]:
        """The epochs after one that are in sight."""

    def withdraw(self, epochs: Iterable[int], require_claim: Callable[[], None]) -> None:
        """Take epochs out of sight, because the run goes back before them.

        ``require_claim`` raises if they may be a successor's by now.
        """

    def check_new(self) -> None:
        """Refuse to begin where epochs of another run are in sight."""


def reconcile_sinks(
    sinks: Iterable[StagingSink], claimed: Claimed, journal: Journal, publish: Publish
) -> None:
    """Withdraw what came after the epoch to go on from; publish what was committed with it."""
    left = [staged for staged in journal.unpublished if staged.epoch <= claimed.after]
    kept = {(staged.epoch, staged.attempt) for staged in left}
    for sink in sinks:
        sink.clean(_Needed(kept, journal.incarnation))
        if claimed.after < 0 and not claimed.withdrawn:
            sink.check_new()
        elif gone := sink.shown(claimed.after):
            sink.withdraw(gone, journal.require_claim)
            log.warning("withdrew %d epochs, from %d on, to run them again", len(gone), gone[0])
    for staged in left:
        publish(staged)
        journal.published = staged.epoch


def clear_sinks(sinks: Iterable[StagingSink]) -> None:
    """Begin with sinks that show nothing yet."""
    for sink in sinks:
        sink.clean(())
        sink.check_new()


@dataclass(frozen=True)
class _Needed(Container[tuple[int, str]]):
    """What is to be published, and whatever a later incarnation has staged."""

    kept: Container[tuple[int, str]]
    incarnation: int

    def __contains__(self, staged: object) -> bool:
        _, attempt = cast(tuple[int, str], staged)
        return staged in self.kept or incarnation_of(attempt) > self.incarnation

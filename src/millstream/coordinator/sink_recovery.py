"""Reconciles staging sinks with the checkpoint that a run has claimed.

The driver may have been superseded meanwhile; what its successor has staged or published must not
be removed.
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
    """A sink that stages epochs until they are published, and can withdraw them."""

    def clean(self, needed: Container[tuple[int, str]]) -> None:
        """Delete what was staged, except the ``needed`` epochs and attempts."""

    def visible(self, after: int) -> list[int]:
        """The visible epochs after one."""

    def withdraw(self, epochs: Iterable[int], require_claim: Callable[[], None]) -> None:
        """Withdraw visible epochs, because the run rewinds before them.

        ``require_claim`` raises if they may belong to a successor.
        """

    def check_new(self) -> None:
        """Raise if epochs of another run are visible."""


def reconcile_sinks(
    sinks: Iterable[StagingSink], claimed: Claimed, journal: Journal, publish: Publish
) -> None:
    """Withdraw what came after the epoch to resume from; publish what was committed by then."""
    unpublished = [staged for staged in journal.unpublished if staged.epoch <= claimed.after]
    needed = {(staged.epoch, staged.attempt) for staged in unpublished}
    for sink in sinks:
        sink.clean(_Needed(needed, journal.incarnation))
        if claimed.after < 0 and not claimed.withdrawn:
            sink.check_new()
        elif later := sink.visible(claimed.after):
            sink.withdraw(later, journal.require_claim)
            log.warning("withdrew %d epochs, from %d on, to replay them", len(later), later[0])
    for staged in unpublished:
        publish(staged)
        journal.published = staged.epoch


def clear_sinks(sinks: Iterable[StagingSink]) -> None:
    """Begin a run without a checkpoint: sinks must have no visible epochs."""
    for sink in sinks:
        sink.clean(())
        sink.check_new()


@dataclass(frozen=True)
class _Needed(Container[tuple[int, str]]):
    """What is to be published, and whatever a later incarnation has staged."""

    unpublished: Container[tuple[int, str]]
    incarnation: int

    def __contains__(self, staged: object) -> bool:
        _, attempt = cast(tuple[int, str], staged)
        return staged in self.unpublished or incarnation_of(attempt) > self.incarnation

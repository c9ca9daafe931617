"""Sinks that stage, when a run takes hold of its checkpoint: they are made to agree with it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Protocol

from millstream.coordinator.claiming import Claimed
from millstream.coordinator.intervals import Publish
from millstream.coordinator.journal import Journal

log = logging.getLogger("millstream")


class Outlet(Protocol):
    """A sink that keeps epochs out of sight until they are published, and can take them back."""

    def clean(self, keep: Collection[tuple[int, str]]) -> None:
        """Drop what was staged, except the epochs and attempts that are to be kept."""

    def truncate(self, after: int) -> list[int]:
        """Withdraw the epochs after one; gives what was there."""

    def check_new(self) -> None:
        """Refuse to begin where epochs of another run are in sight."""


def bring_in_line(
    outlets: Iterable[Outlet], claimed: Claimed, journal: Journal, publish: Publish
) -> None:
    """Withdraw what came after the epoch to go on from; publish what was committed with it."""
    if claimed.after < 0 and not claimed.withdrawn:
        begin_anew(outlets)
        return
    left = [staged for staged in journal.unpublished if staged.epoch <= claimed.after]
    for outlet in outlets:
        outlet.clean({(staged.epoch, staged.attempt) for staged in left})
        gone = outlet.truncate(claimed.after)
        if gone:
            log.warning("withdrew %d epochs, from %d on, to run them again", len(gone), gone[0])
    for staged in left:
        publish(staged)
        journal.published = staged.epoch


def begin_anew(outlets: Iterable[Outlet]) -> None:
    """Begin with sinks that show nothing yet."""
    for outlet in outlets:
        outlet.clean(())
        outlet.check_new()

"""Views: the state of one job at one committed epoch, for a scan that takes longer than an epoch.

To open a view costs nothing. Before a slot that it has not given yet is changed, what the slot
holds is kept for it (copy on write); so later epochs are merged as ever, and the scan still sees
its own. A view that nobody asks for some time is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, common, runs_of
from millstream.wire.messages import ScanBrokenError, SlotsNotHeldError
from millstream.work.unit import Reducing

_LEASE = 60.0


@dataclass
class View:
    """What a scan still has to see: slots as they are, and what was kept of others."""

    job: int
    epoch: int
    left: SlotMask
    asked: float
    kept: list[tuple[range, Any]] = field(default_factory=list)


class Views:
    """The open views of a node."""

    def __init__(self, reducing: Mapping[int, Reducing[Any]], slots: int) -> None:
        self._reducing = reducing
        self._slots = slots
        self._views: dict[str, View] = {}

    def open(self, scan: str, job: int, epoch: int, now: float) -> None:
        """Open the view of a scan; opening it again changes nothing."""
        self._expire(now)
        if scan not in self._views:
            self._views[scan] = View(job, epoch, np.ones(self._slots, dtype=bool), now)

    def close(self, scan: str) -> None:
        """Give up a view."""
        self._views.pop(scan, None)

    def _expire(self, now: float) -> None:
        for scan in [s for s, view in self._views.items() if now - view.asked > _LEASE]:
            del self._views[scan]

    def clear(self) -> None:
        self._views.clear()

    def keep(self, slots: SlotMask, through: npt.NDArray[np.int64]) -> None:
        """Keep what slots hold for the views that need it: they are about to change."""
        for view in self._views.values():
            due = view.left & slots & (through == view.epoch)
            for run in runs_of(due, range(self._slots)):
                view.kept.append((run, self._reducing[view.job].snapshot(run)))
            view.left &= ~due

    def of(self, scan: str, start: int, now: float) -> View:
        """A view that was opened here, of which the slots before ``start`` were read."""
        view = self._views.get(scan)
        if view is None:
            raise ScanBrokenError("its view was given up: nobody asked for it for a minute")
        view.asked = now
        view.left[:start] = False
        view.kept = [(run, fragment) for run, fragment in view.kept if run.stop > start]
        return view

    def parts(
        self, view: View, slots: range, through: npt.NDArray[np.int64]
    ) -> Iterator[tuple[range, Any]]:
        """What some slots held at the epoch of a view, as fragments that nobody changes."""
        for run, fragment in view.kept:
            if found := common(run, slots):
                yield found, fragment
        for run in runs_of(view.left, slots):
            reached = through[run.start : run.stop]
            which = f"slots {run.start} to {run.stop - 1}"
            if (reached < view.epoch).any():
                raise SlotsNotHeldError(f"{which} are not at epoch {view.epoch} yet")
            if (reached > view.epoch).any():
                raise ScanBrokenError(f"{which} came here later than epoch {view.epoch}")
            yield run, self._reducing[view.job].snapshot(run)


def shown_items(
    scratch: Callable[[], Reducing[Any]], parts: Iterator[tuple[range, Any]], slots: int
) -> Iterator[tuple[Any, Any]]:
    """The keys of fragments of a view with their state, as users read it."""
    for run, fragment in parts:
        reducing, mask = scratch(), np.zeros(slots, dtype=bool)
        mask[run.start : run.stop] = True
        reducing.apply(fragment, mask)
        yield from reducing.items(mask)

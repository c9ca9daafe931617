"""Views: the state of one job at one committed epoch, for a scan that takes longer than an epoch.

To open a view costs nothing. Before a slot that the scan has not read yet is changed, the view
takes a snapshot of it (copy on write); so later epochs are merged without delay, and the scan still
sees its own. Slots that the node gives up are retained in the same way. A view that is not read for
three minutes expires: a read whose answer is lost is repeated after a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, common, mask_of, runs_of
from millstream.state.protocol import State
from millstream.wire.replication import SlotsNotHeldError
from millstream.wire.state_reads import ScanBrokenError
from millstream.work.unit import ReduceOperator

_LEASE = 180.0


@dataclass
class View:
    """What a scan has yet to read: ``unchanged`` slots, and ``snapshots`` of changed ones."""

    job: int
    epoch: int
    unchanged: SlotMask
    last_read: float
    snapshots: list[tuple[range, Any]] = field(default_factory=list)


class Views:
    """The open views of a node."""

    def __init__(self, operators: Mapping[int, ReduceOperator[Any]], slots: int) -> None:
        self._operators = operators
        self._slots = slots
        self._views: dict[str, View] = {}

    def open(self, scan: str, job: int, epoch: int, now: float) -> None:
        """Open the view of a scan; idempotent."""
        self._expire(now)
        if scan not in self._views:
            self._views[scan] = View(job, epoch, np.ones(self._slots, dtype=bool), now)

    def close(self, scan: str) -> None:
        """Close a view."""
        self._views.pop(scan, None)

    def _expire(self, now: float) -> None:
        for scan in [s for s, view in self._views.items() if now - view.last_read > _LEASE]:
            del self._views[scan]

    def clear(self) -> None:
        self._views.clear()

    def preserve(self, slots: SlotMask, through: npt.NDArray[np.int64]) -> None:
        """Snapshot slots that are about to change, for the views that have yet to read them."""
        for view in self._views.values():
            due = view.unchanged & slots & (through == view.epoch)
            for run in runs_of(due, range(self._slots)):
                view.snapshots.append((run, self._operators[view.job].state.snapshot(run)))
            view.unchanged &= ~due

    def of(self, scan: str, start: int, now: float) -> View:
        """An open view, of which the slots before ``start`` were read."""
        view = self._views.get(scan)
        if view is None:
            raise ScanBrokenError(
                "its view expired, because it was not read for three minutes, or those who held "
                "its slots have left"
            )
        view.last_read = now
        view.unchanged[:start] = False
        view.snapshots = [(run, part) for run, part in view.snapshots if run.stop > start]
        return view

    def parts(
        self, view: View, slots: range, through: npt.NDArray[np.int64]
    ) -> Iterator[tuple[range, Any]]:
        """The state of some slots at the epoch of a view, as immutable fragments."""
        for run, fragment in view.snapshots:
            if both := common(run, slots):
                yield both, fragment
        for run in runs_of(view.unchanged, slots):
            reached = through[run.start : run.stop]
            which = f"slots {run.start} to {run.stop - 1}"
            if (reached < view.epoch).any():
                raise SlotsNotHeldError(f"{which} are not at epoch {view.epoch} yet")
            if (reached > view.epoch).any():
                raise ScanBrokenError(f"{which} are past epoch {view.epoch} on their new owner")
            yield run, self._operators[view.job].state.snapshot(run)


def shown_items(
    scratch: Callable[[], State[Any]], parts: Iterator[tuple[range, Any]], slots: int
) -> Iterator[tuple[Any, Any]]:
    """The keys of fragments of a view, with their state as users read it."""
    for run, fragment in parts:
        state, mask = scratch(), mask_of(run, slots)
        state.apply(fragment, mask)
        yield from state.items(mask)

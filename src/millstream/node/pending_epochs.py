"""The shelf: units of committed epochs that are not merged into master yet.

On a primary, and on a backup that gets deltas, a unit stays here for a moment; while a new copy
waits for its snapshot, or a backup keeps tuple logs, for longer. Eviction goes by epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from millstream.node.held_units import Unit, covered
from millstream.ring.masks import SlotMask, mask_of, runs_of


@dataclass
class PendingEpoch:
    """The units of one committed epoch."""

    epoch: int
    units: list[Unit]
    complete: SlotMask


class PendingEpochs:
    """Committed units by epoch, oldest first."""

    def __init__(self, jobs: Sequence[int], slots: int) -> None:
        self._jobs = jobs
        self._slots = slots
        self._epochs: dict[int, PendingEpoch] = {}

    def put(self, epoch: int, units: list[Unit]) -> None:
        """Keep the units of an epoch that was just committed."""
        complete = covered(units, self._jobs, self._slots, effective=False)
        self._epochs[epoch] = PendingEpoch(epoch, units, complete)

    def oldest_first(self) -> Iterator[PendingEpoch]:
        """The epochs in their order, as they are now."""
        # Copied in one step: others may put and evict meanwhile.
        return iter(sorted(self._epochs.values(), key=lambda pending_epoch: pending_epoch.epoch))

    def divide(self, unit: Unit, part: Unit) -> None:
        """Let a part of a unit stand for itself, beside what is left of the unit."""
        rest = mask_of(unit.slots, self._slots) & ~mask_of(part.slots, self._slots)
        left = [replace(unit, receipt=unit.receipt.part(run)) for run in runs_of(rest)]
        for pending_epoch in self._epochs.values():
            pending_epoch.units = [
                each
                for one in pending_epoch.units
                for each in ((part, *left) if one is unit else (one,))
            ]

    def evict(self, held: SlotMask, through: npt.NDArray[np.int64]) -> list[PendingEpoch]:
        """Give up the epochs that every copy held here has passed."""
        passed = [e for e in self._epochs if not (held & (through < e)).any()]
        return [self._epochs.pop(epoch) for epoch in passed]

    def reach(self, through: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How far each slot could be brought with what is kept here."""
        reach = through.copy()
        for pending_epoch in self.oldest_first():
            reach[pending_epoch.complete & (reach == pending_epoch.epoch - 1)] = pending_epoch.epoch
        return reach

    @property
    def log_bytes(self) -> int:
        return sum(
            unit.log.bytes
            for pending_epoch in self.oldest_first()
            for unit in pending_epoch.units
            if unit.log is not None
        )

    def clear(self) -> None:
        self._epochs.clear()

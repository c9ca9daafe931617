"""Pending epochs: committed, with units that are not merged into the state yet.

On a primary, and on a backup that gets units, an epoch is pending for milliseconds; while a new
copy waits for its snapshot, or a backup holds tuple logs, for longer. Eviction is by epoch.
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
        """Add the units of an epoch that was just committed."""
        complete = covered(units, self._jobs, self._slots, effective=False)
        self._epochs[epoch] = PendingEpoch(epoch, units, complete)

    def oldest_first(self) -> Iterator[PendingEpoch]:
        """The epochs in order; a copy, so that others may put and evict meanwhile."""
        return iter(sorted(self._epochs.values(), key=lambda pending: pending.epoch))

    def divide(self, unit: Unit, part: Unit) -> None:
        """Divide a unit into a part that was replayed and the rest."""
        rest = mask_of(unit.slots, self._slots) & ~mask_of(part.slots, self._slots)
        others = [replace(unit, receipt=unit.receipt.part(run)) for run in runs_of(rest)]
        for pending in self._epochs.values():
            pending.units = [
                each
                for one in pending.units
                for each in ((part, *others) if one is unit else (one,))
            ]

    def evict(self, held: SlotMask, through: npt.NDArray[np.int64]) -> list[PendingEpoch]:
        """Evict the epochs that are merged into every slot held here."""
        merged = [e for e in self._epochs if not (held & (through < e)).any()]
        return [self._epochs.pop(epoch) for epoch in merged]

    def reach(self, through: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Up to which epoch each slot can be merged with what is pending here."""
        reach = through.copy()
        for pending in self.oldest_first():
            reach[pending.complete & (reach == pending.epoch - 1)] = pending.epoch
        return reach

    @property
    def log_bytes(self) -> int:
        return sum(
            unit.log.bytes
            for pending in self.oldest_first()
            for unit in pending.units
            if unit.log is not None
        )

    def clear(self) -> None:
        self._epochs.clear()

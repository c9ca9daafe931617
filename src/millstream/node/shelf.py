"""The shelf: units of committed epochs that are not merged into master yet.

On a primary, and on a backup that gets deltas, a unit stays here for a moment; while a new copy
waits for its snapshot, or a backup keeps tuple logs, for longer. Eviction goes by epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from millstream.node.units import Unit, covered
from millstream.ring.masks import SlotMask, mask_of, runs_of


@dataclass
class Lot:
    """The units of one committed epoch."""

    epoch: int
    units: list[Unit]
    complete: SlotMask


class Shelf:
    """Committed units by epoch, oldest first."""

    def __init__(self, jobs: Sequence[int], slots: int) -> None:
        self._jobs = jobs
        self._slots = slots
        self._lots: dict[int, Lot] = {}

    def put(self, epoch: int, units: list[Unit]) -> None:
        """Keep the units of an epoch that was just committed."""
        complete = covered(units, self._jobs, self._slots, effective=False)
        self._lots[epoch] = Lot(epoch, units, complete)

    def lots(self) -> Iterator[Lot]:
        """The epochs in their order, as they are now."""
        # Copied in one step: others may put and evict meanwhile.
        return iter(sorted(self._lots.values(), key=lambda lot: lot.epoch))

    def divide(self, unit: Unit, part: Unit) -> None:
        """Let a part of a unit stand for itself, beside what is left of the unit."""
        rest = mask_of(unit.slots, self._slots) & ~mask_of(part.slots, self._slots)
        left = [replace(unit, receipt=unit.receipt.part(run)) for run in runs_of(rest)]
        for lot in self._lots.values():
            lot.units = [
                each for one in lot.units for each in ((part, *left) if one is unit else (one,))
            ]

    def evict(self, held: SlotMask, through: npt.NDArray[np.int64]) -> list[Lot]:
        """Give up the epochs that every copy held here has passed."""
        passed = [e for e in self._lots if not (held & (through < e)).any()]
        return [self._lots.pop(epoch) for epoch in passed]

    def reach(self, through: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How far each slot could be brought with what is kept here."""
        reach = through.copy()
        for lot in self.lots():
            reach[lot.complete & (reach == lot.epoch - 1)] = lot.epoch
        return reach

    @property
    def log_bytes(self) -> int:
        return sum(
            unit.log.bytes for lot in self.lots() for unit in lot.units if unit.log is not None
        )

    def clear(self) -> None:
        self._lots.clear()

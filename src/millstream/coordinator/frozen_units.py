"""The units of a try that owners have frozen: a digest for each slot of each job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, equal_runs
from millstream.wire.commit import CommittedUnit
from millstream.wire.receipts import CopyReceipt, Receipt


class Frozen:
    """The digests as numbers, which are compared for all slots at once."""

    NONE = -1

    def __init__(self, jobs: Iterable[int], slots: int) -> None:
        self.by_job: dict[int, npt.NDArray[np.int64]] = {
            job: np.full(slots, self.NONE, np.int64) for job in jobs
        }
        self._numbers: dict[str, int] = {}
        self._digests: list[str] = []

    def add(self, receipt: Receipt, owned: SlotMask) -> None:
        """Add a receipt for those of its slots that are ``owned``."""
        number = self._numbers.setdefault(receipt.digest, len(self._digests))
        if number == len(self._digests):
            self._digests.append(receipt.digest)
        self.by_job[receipt.job][receipt.slots.start : receipt.slots.stop][owned] = number

    def matches(
        self, copies: Iterable[CopyReceipt], slots: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.bool_]:
        """For some slots, in increasing order, whether copies of all jobs have these digests."""
        same = {job: np.zeros(len(slots), dtype=bool) for job in self.by_job}
        for copy in copies:
            number = self._numbers.get(copy.digest)
            if number is not None:
                first, last = np.searchsorted(slots, [copy.slots.start, copy.slots.stop])
                frozen = self.by_job[copy.job][slots[first:last]]
                same[copy.job][first:last] |= frozen == number
        return np.asarray(np.all([*same.values(), np.ones(len(slots), dtype=bool)], axis=0))

    def units(self) -> Iterator[CommittedUnit]:
        """The units, if every slot of every job has one."""
        for job, numbers in self.by_job.items():
            for run in equal_runs(range(len(numbers)), numbers):
                digest = self._digests[numbers[run.start]]
                yield CommittedUnit(job, run.start, run.stop, digest)

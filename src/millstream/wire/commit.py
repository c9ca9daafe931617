"""A committed epoch, as every process of a run knows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from millstream.wire.pickled_once import PickledOnce
from millstream.wire.request import Request

UNITS = np.dtype([("job", "<i4"), ("start", "<i4"), ("stop", "<i4"), ("fingerprint", "<u8")])
"""The units of a commit as a table; a run with many nodes has thousands."""


class CommittedUnit(NamedTuple):
    """Slots of a job, and the fingerprint of the unit that is their committed change."""

    job: int
    start: int
    stop: int
    fingerprint: int


def fingerprint(digest: str) -> int:
    """A short form of a unit's digest: it tells the few units apart that a slot has in a try."""
    return xxhash.xxh3_64_intdigest(digest.encode())


@dataclass(frozen=True)
class Commit:
    """A committed epoch, the try that was committed, and the units that it consists of.

    Every other unit of the epoch is void on all nodes. A commit read from a store names no units.
    Nearly every message carries a commit and few receivers need its units, so these are packed
    once.
    """

    epoch: int
    try_: int
    packed: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, epoch: int, try_: int, units: Iterable[CommittedUnit]) -> Commit:
        """Return a commit that names these units."""
        return cls(epoch, try_, np.array(list(units), UNITS).tobytes())

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the try."""
        return self.epoch, self.try_

    @property
    def units(self) -> tuple[CommittedUnit, ...]:
        """The units; unpacked on every access."""
        return tuple(CommittedUnit(*row) for row in self._table.tolist())

    def naming(self, digests: Iterable[str]) -> list[CommittedUnit]:
        """The units that it names with one of these digests."""
        table = self._table
        wanted = np.array([fingerprint(digest) for digest in digests], np.uint64)
        found = table[np.isin(table["fingerprint"], wanted)]
        return [CommittedUnit(*row) for row in found.tolist()]

    @property
    def _table(self) -> npt.NDArray[np.void]:
        return np.frombuffer(self.packed, UNITS)


NOTHING_COMMITTED = Commit(-1, 0)


@dataclass(frozen=True)
class Seal(PickledOnce, Request[None]):
    """Tells a node that an epoch is committed: it merges the units that the commit names."""

    commit: Commit

"""A committed epoch, as every process of a run knows it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.wire.request import Request


class CommittedUnit(NamedTuple):
    """Slots of a job, and the digest of the unit that is their committed change."""

    job: int
    start: int
    stop: int
    digest: str


@dataclass(frozen=True)
class Commit:
    """A committed epoch, the try that was committed, and the units that it consists of.

    Every other unit of the epoch is void on all nodes. A commit read from a store names no units.
    Nearly every message carries a commit and few receivers need its units, so these are pickled
    once.
    """

    epoch: int
    try_: int
    packed: bytes = field(default=b"", compare=False, repr=False)

    @classmethod
    def of(cls, epoch: int, try_: int, units: Iterable[CommittedUnit]) -> Commit:
        """Return a commit that names these units."""
        return cls(epoch, try_, pickle.dumps([tuple(unit) for unit in units], 5))

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the try."""
        return self.epoch, self.try_

    @property
    def units(self) -> tuple[CommittedUnit, ...]:
        """The units; unpickled on every access."""
        units = pickle.loads(self.packed) if self.packed else ()
        return tuple(CommittedUnit(*unit) for unit in units)


NOTHING_COMMITTED = Commit(-1, 0)


@dataclass(frozen=True)
class Seal(Request[None]):
    """Tells a node that an epoch is committed: it merges the units that the commit names."""

    commit: Commit

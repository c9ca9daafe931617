"""The backlog of a source: what it has, and no epoch has read yet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SourceBacklog:
    """What waits at a source: ``amount`` is in rows or files, and None if it is not known.

    ``per_epoch`` is how much of that an epoch reads at most, if the source has a limit.
    """

    source: str
    unit: str = "rows"
    amount: int | None = None
    per_epoch: int | None = None

    @property
    def epochs(self) -> int | None:
        """How many epochs it takes to read it, if the source has a limit."""
        if self.amount is None or self.per_epoch is None:
            return None
        return math.ceil(self.amount / self.per_epoch)

    @property
    def beyond_next(self) -> float:
        """How many epochs it takes to read what the next one leaves; 0 if that is not known."""
        if self.amount is None or self.per_epoch is None:
            return 0.0
        return max(0.0, self.amount / self.per_epoch - 1)


def total(backlogs: Iterable[SourceBacklog]) -> int | None:
    """What waits at all sources that report it; None if none does, or they count other things."""
    reported = [(each.unit, each.amount) for each in backlogs if each.amount is not None]
    if len({unit for unit, _ in reported}) != 1:
        return None
    return sum(amount for _, amount in reported)

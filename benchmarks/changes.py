"""A change of parallelism: what of outputs and epochs was disturbed by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median

PACE = timedelta(seconds=0.5)
PATIENCE = timedelta(seconds=120)
BEFORE = 20  # small epochs before a change
AFTER = 6  # and after it
_RESOLUTION = 0.001  # seconds: no gap counts as shorter


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of parallelism: when outputs came, and how long epochs took around it.

    Times are on one clock, in seconds: ``called`` is when the change was asked for, ``done`` when
    it was complete. ``epochs`` has the end and the duration of each.
    """

    called: float
    done: float
    outputs: Sequence[float]
    epochs: Sequence[tuple[float, float]] = ()

    @property
    def usual(self) -> float:
        """The usual time between two outputs."""
        earlier = [at for at in self.outputs if at <= self.called]
        return median(b - a for a, b in pairwise(earlier[-BEFORE:]))

    @property
    def gap(self) -> float:
        """By how much the longest time between two outputs exceeds the usual one."""
        gaps = [b - a for a, b in pairwise(self.outputs) if b > self.called]
        return max(_RESOLUTION, max(gaps) - self.usual)

    @property
    def before(self) -> list[float]:
        """How long the epochs before the call took."""
        return [took for ended, took in self.epochs if ended <= self.called][-BEFORE:]

    @property
    def during(self) -> list[float]:
        """How long the epochs took of which a part lies between the call and the end."""
        return [
            took for ended, took in self.epochs if ended > self.called and ended - took < self.done
        ]

"""What something costs: measurements with it and without it, in pairs that were taken in turn.

A machine drifts by more than what is measured, but less between the two of a pair.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """A median, and half of the interval that holds the true one with 95 % confidence."""

    median: float
    uncertainty: float


def cost_of(with_it: Sequence[float], without: Sequence[float]) -> Cost:
    """How much longer it takes, as a part of what it takes without."""
    ratios = [one / other - 1 for one, other in zip(with_it, without, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Cost(median, 1.57 * (high - low) / math.sqrt(len(ratios)))

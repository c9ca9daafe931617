"""Loads that rise and fall: the rate at every moment, and when each row is due."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np
import numpy.typing as npt

PEAK = 6_000  # rows per second
LEAST = 600  # of the sine
STEPS = (0.1, 0.5, 1.0, 0.3, 0.1)  # of the peak
Floats = npt.NDArray[np.float64]
Rate = Callable[[Floats], Floats]


def sine(seconds: float) -> Rate:
    """Rises from the least to the peak, and falls again."""
    middle, swing = (PEAK + LEAST) / 2, (PEAK - LEAST) / 2
    return lambda at: middle - swing * np.cos(2 * pi * at / seconds)


def steps(seconds: float) -> Rate:
    """Jumps from one level to the next."""
    levels = PEAK * np.array(STEPS)
    return lambda at: levels[np.minimum(at * len(levels) // seconds, len(levels) - 1).astype(int)]


SHAPES: dict[str, Callable[[float], Rate]] = {"sine": sine, "steps": steps}


def arrivals(rate: Rate, seconds: float) -> Floats:
    """When each row is due: so many per second at every moment."""
    moments = np.linspace(0.0, seconds, round(seconds * 100) + 1)
    rates = rate(moments)
    widths = np.diff(moments)
    due = np.concatenate([[0.0], np.cumsum((rates[1:] + rates[:-1]) / 2 * widths)])
    return np.interp(np.arange(1, int(due[-1]) + 1), due, moments)

"""A rate limit: a bucket of requests for each caller, refilled at a constant rate."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable


class RateLimit:
    """Lets ``burst`` requests of a caller pass at once, and ``rate`` a second in the long run."""

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float], *, callers: int = 1024
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._callers = callers
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def admit(self, caller: Hashable) -> bool:
        """Whether a request of the caller may pass; it is counted if so."""
        now = self._clock()
        level, then = self._buckets.pop(caller, (self._burst, now))
        level = min(self._burst, level + (now - then) * self._rate)
        passes = level >= 1
        self._buckets[caller] = (level - passes, now)
        if len(self._buckets) > self._callers:
            self._buckets.popitem(last=False)
        return passes

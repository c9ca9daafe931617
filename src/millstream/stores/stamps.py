"""Rising numbers that order the values of a key: the value with the highest one is the newest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Stamps:
    """Numbers that only rise: the time in nanoseconds, or one more than the last."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        """A stamp that is higher than all that were taken or seen."""
        return self.take(1)[0]

    def take(self, many: int) -> range:
        """As many stamps, higher than all that were taken or seen."""
        with self._lock:
            first = max(self._last + 1, self._clock())
            self._last = first + many - 1
            return range(first, first + many)

    def saw(self, stamp: int) -> None:
        """Record a stamp of another writer, whose clock may be ahead of ours."""
        with self._lock:
            self._last = max(self._last, stamp)

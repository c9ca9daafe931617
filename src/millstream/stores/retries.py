"""Retries while a store is unavailable."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from millstream.stores.store import StoreUnavailableError

T = TypeVar("T")

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


class UnavailableError(Exception):
    """The store cannot be reached at the moment; raised by back-ends, for ``wait_for`` only."""


def wait_for(place: str, patience: float, act: Callable[[], T]) -> T:
    """Call ``act`` and retry while it raises ``UnavailableError``, for so many seconds at most."""
    deadline = time.monotonic() + patience
    pause = _FIRST_PAUSE
    while True:
        try:
            return act()
        except UnavailableError as problem:
            left = deadline - time.monotonic()
            if left <= 0:
                raise StoreUnavailableError(
                    f"{place} did not answer for {patience:g} s ({problem}); check that it runs "
                    f"and is reachable, or raise ?patience= in its URL"
                ) from problem.__cause__
        # Jitter: callers do not all retry at the same moment.
        time.sleep(min(left, pause * random.uniform(0.5, 1.0)))
        pause = min(2 * pause, _LONGEST_PAUSE)

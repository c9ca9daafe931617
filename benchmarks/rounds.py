"""Repeating measurements in rounds, within a given time."""

from __future__ import annotations

import time
from collections.abc import Iterator


def rounds(number: int, seconds: float) -> Iterator[int]:
    """Count rounds: always one, and others while they should end within the time."""
    ends = time.monotonic() + seconds
    for done in range(number):
        begun = time.monotonic()
        yield done
        if 2 * time.monotonic() - begun > ends:
            return

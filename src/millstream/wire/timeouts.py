"""How long the processes of a run wait for each other, in seconds.

One place for coordinator, nodes and tasks. What a user can configure is not here:
``node_timeout`` is :class:`~millstream.coordinator.failure_evidence.Patience`.
"""

from __future__ import annotations

PING_TIMEOUT = 1.0
MAX_PING_TIMEOUT = 8.0
"""Repeated pings wait twice as long each time, up to this."""
CALL_TIMEOUT = 5.0
"""Of a request that is answered without long work."""
REPORT_TIMEOUT = 60.0
"""Of ``ReportUnreachable``, which waits until the coordinator has decided."""
RETRY_PAUSE = 0.05
POLL_PAUSE = 0.001
"""Between two looks at something that another thread changes within milliseconds."""

# What a busy process receives at least, in bytes per second.
_MIN_RATE = 4 * 2**20


def ping_timeout(failures: int, first: float = PING_TIMEOUT) -> float:
    """The timeout of a ping after so many failed ones."""
    return min(first * 2.0**failures, MAX_PING_TIMEOUT)


def timeout_for(size: int) -> float:
    """The timeout of a call that carries so many bytes."""
    return CALL_TIMEOUT + size / _MIN_RATE

"""Points in time: whole microseconds since 1970 in UTC, and the datetimes they stand for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

LOCAL_EPOCH: Final = datetime(1970, 1, 1)
EPOCH: Final = LOCAL_EPOCH.replace(tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
FIRST: Final = (datetime.min - LOCAL_EPOCH) // MICROSECOND
"""The first microsecond that a datetime can represent."""
LAST: Final = (datetime.max - LOCAL_EPOCH) // MICROSECOND
"""The last microsecond that a datetime can represent."""
BEGINNING: Final = -(2**62)
"""Before all event times: no window is closed."""
END: Final = 2**62
"""After all event times: every window is closed."""


def micros(length: timedelta) -> int:
    """The length of a timedelta in microseconds."""
    return length // MICROSECOND


def since_epoch(time: datetime) -> int:
    """An aware datetime in microseconds since 1970."""
    return (time - EPOCH) // MICROSECOND


def instant(time: int) -> datetime:
    """Microseconds since 1970 as an aware datetime in UTC."""
    return EPOCH + timedelta(microseconds=time)

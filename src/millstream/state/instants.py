"""Conversion between datetimes and Arrow timestamps.

Arrow looks up the time zone of every timestamp that it decodes; here they are added to one epoch,
at a thirtieth of the cost, and UTC is ``datetime.UTC``. Nanoseconds and other zones are decoded by
Arrow.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.times import EPOCH, FIRST, LAST, LOCAL_EPOCH

_COARSE = ("s", "ms", "us")  # a datetime has no nanoseconds
_STEADY = (None, "UTC", "+00:00")  # where no hour is skipped


def datetimes(column: pa.Array) -> list[Any]:
    """The values of a column of timestamps."""
    kind = column.type
    if kind.unit not in _COARSE or kind.tz not in _STEADY or column.null_count == len(column):
        return list(column.to_pylist())
    exact = pa.timestamp("us", kind.tz)
    try:
        micros = column.cast(exact).view(pa.int64())
    except pa.ArrowInvalid:  # more than microseconds can count
        return list(column.to_pylist())
    bounds = pc.min_max(micros).as_py()
    if bounds["min"] < FIRST or bounds["max"] > LAST:
        return list(column.to_pylist())
    start = LOCAL_EPOCH if kind.tz is None else EPOCH
    times = micros.fill_null(0).to_numpy().view("timedelta64[us]").tolist()
    found: list[Any] = list(map(start.__add__, times))
    if column.null_count:
        for at in pc.indices_nonzero(column.is_null()).to_pylist():
            found[at] = None
    return found


def timestamp_of(values: Sequence[dt.datetime | None]) -> pa.DataType | None:
    """The type that decodes to exactly these datetimes, if there is one."""
    found = [value for value in values if value is not None]
    zone = found[0].tzinfo
    # By identity: GMT with a name of its own is equal to UTC, and a user's zone may compare badly.
    if not (zone is None or zone is dt.UTC) or any(v.tzinfo is not zone or v.fold for v in found):
        return None
    return pa.timestamp("us", None if zone is None else "UTC")

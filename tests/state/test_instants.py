"""Timestamps as datetimes, against what Arrow gives for them."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.state.instants import datetimes

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
ZONES = st.sampled_from([None, "UTC", "+00:00", "utc", "+02:30", "Europe/Zurich"])
PER_MICROSECOND = {"s": 10**-6, "ms": 10**-3, "us": 1, "ns": 1000}


def outcome(column: pa.Array, decode: Any) -> Any:
    """Values as clocks show them, or the kind of the error."""
    try:
        return [(value, str(value)) for value in decode(column)]
    except (OverflowError, ValueError) as problem:
        return type(problem)


@given(
    micros=st.lists(st.none() | st.integers(FIRST, LAST) | st.integers(-(2**62), 2**62)),
    unit=st.sampled_from(list(PER_MICROSECOND)),
    zone=ZONES,
    cut=st.integers(0, 3),
)
def test_times_are_those_that_arrow_gives(
    micros: list[int | None], unit: str, zone: str | None, cut: int
) -> None:
    bound = 2**63 - 1
    times = [
        None if m is None else max(-bound, min(bound, int(m * PER_MICROSECOND[unit])))
        for m in micros
    ]
    column = pa.array(times, pa.int64()).view(pa.timestamp(unit, zone)).slice(cut)

    assert outcome(column, datetimes) == outcome(column, pa.Array.to_pylist)


@pytest.mark.parametrize("zone", ["UTC", "+00:00"])
def test_utc_is_the_one_of_python(zone: str) -> None:
    [time] = datetimes(pa.array([5], pa.int64()).view(pa.timestamp("ms", zone)))

    assert time.tzinfo is dt.UTC


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_the_first_and_the_last_moment_of_datetimes(zone: str | None) -> None:
    column = pa.array([FIRST, LAST], pa.int64()).view(pa.timestamp("us", zone))

    first, last = datetimes(column)

    assert first.replace(tzinfo=None) == dt.datetime.min
    assert last.replace(tzinfo=None) == dt.datetime.max
    assert pickle.loads(pickle.dumps(last)) == last

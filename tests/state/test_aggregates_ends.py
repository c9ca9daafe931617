"""first and last: event time decides, then arrival."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millstream.state import aggregates as agg
from millstream.state.aggregates import Aggregate

ONE_GROUP = np.zeros(4, np.int64)
VALUES = pa.array(["a", "b", "c", "d"])


def stamps(*micros: int | None) -> pa.Array:
    return pa.array(micros, pa.timestamp("us"))


@pytest.mark.parametrize(("aggregate", "value"), [(agg.first(), "a"), (agg.last(), "d")])
def test_without_times_arrival_decides(aggregate: Aggregate, value: str) -> None:
    columns = aggregate.fold(VALUES, None, ONE_GROUP, 1)

    assert aggregate.result(columns).to_pylist() == [value]
    assert columns[1].to_pylist() == [None]


@pytest.mark.parametrize(("aggregate", "value"), [(agg.first(), "c"), (agg.last(), "b")])
def test_with_times_event_time_decides(aggregate: Aggregate, value: str) -> None:
    columns = aggregate.fold(VALUES, stamps(3, 9, 1, 2), ONE_GROUP, 1)

    assert aggregate.result(columns).to_pylist() == [value]


@pytest.mark.parametrize(("aggregate", "value"), [(agg.first(), "b"), (agg.last(), "c")])
def test_at_equal_times_arrival_decides(aggregate: Aggregate, value: str) -> None:
    tied = stamps(5, 1, 1, 5) if aggregate == agg.first() else stamps(1, 5, 5, 1)

    columns = aggregate.fold(VALUES, tied, ONE_GROUP, 1)

    assert aggregate.result(columns).to_pylist() == [value]


@pytest.mark.parametrize(("aggregate", "value"), [(agg.first(), "b"), (agg.last(), "c")])
def test_a_value_without_a_time_gives_way_to_one_with_a_time(
    aggregate: Aggregate, value: str
) -> None:
    columns = aggregate.fold(VALUES, stamps(None, 1, 2, None), ONE_GROUP, 1)

    assert aggregate.result(columns).to_pylist() == [value]


@pytest.mark.parametrize(
    ("aggregate", "times", "value"),
    [
        (agg.first(), [10, 3], "second"),
        (agg.first(), [3, 10], "first"),
        (agg.first(), [3, 3], "first"),
        (agg.last(), [10, 3], "first"),
        (agg.last(), [3, 10], "second"),
        (agg.last(), [3, 3], "second"),
    ],
)
def test_accumulators_merge_by_their_times_and_then_by_arrival(
    aggregate: Aggregate, times: list[int], value: str
) -> None:
    columns = [pa.array(["first", "second"]), pa.array(times)]

    merged = aggregate.merge(columns, np.zeros(2, np.int64), 1)

    assert aggregate.result(merged).to_pylist() == [value]


def test_a_null_value_never_wins_even_at_the_best_time() -> None:
    values = pa.array([None, "b"])

    columns = agg.first().fold(values, stamps(1, 2), np.zeros(2, np.int64), 1)

    assert [column.to_pylist() for column in columns] == [["b"], [2]]


def test_times_with_a_zone_or_another_unit_are_understood() -> None:
    seconds = pa.array([2, 1], pa.timestamp("s", "UTC"))

    columns = agg.first().fold(pa.array([20, 10]), seconds, np.zeros(2, np.int64), 1)

    assert [column.to_pylist() for column in columns] == [[10], [1_000_000]]

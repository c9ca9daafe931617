from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.state.values import (
    ValueTypeError,
    decode_column,
    encode_column,
    is_pickled,
    may_mix_types,
    unify,
    unify_nulls,
    value_text,
)
from tests.state.python_values import ODD, Level, nested, same, scalars, untimed

UTC = pa.timestamp("us", "UTC")
DAY = dt.date(2024, 5, 1)
NOON = dt.datetime(2024, 5, 1, 12)


def round_trip(values: list[Any], declared: pa.DataType | None = None) -> list[Any]:
    return decode_column(*encode_column("x", values, declared))


@untimed
@given(st.lists(nested, max_size=6))
def test_any_python_values_come_back_as_they_were(values: list[Any]) -> None:
    assert same(round_trip(values), values)


@untimed
@given(scalars, st.integers(0, 5))
def test_columns_of_one_kind_come_back_as_they_were(value: Any, count: int) -> None:
    assert same(round_trip([value, None] * count), [value, None] * count)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_what_arrow_would_change_is_pickled(value: Any) -> None:
    field, column = encode_column("x", [value, None])

    assert is_pickled(field)
    assert same(decode_column(field, column), [value, None])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None], pa.int64()),
        ([1.5, math.nan], pa.float64()),
        (["é", ""], pa.string()),
        ([b"\x00", b""], pa.binary()),
        ([True, None], pa.bool_()),
        ([DAY], pa.date32()),
        ([None, None], pa.null()),
        ([], pa.null()),
    ],
)
def test_values_of_one_plain_type_travel_as_arrow(values: list[Any], expected: pa.DataType) -> None:
    field, column = encode_column("x", values)

    assert field.type == column.type == expected
    assert not is_pickled(field)
    assert same(decode_column(field, column), values)


@pytest.mark.parametrize("time", [NOON, NOON.replace(tzinfo=dt.UTC)])
def test_datetimes_travel_as_arrow_and_may_mix_with_other_types(time: dt.datetime) -> None:
    field, column = encode_column("x", [time, None])

    assert pa.types.is_timestamp(field.type)
    assert not is_pickled(field)
    assert may_mix_types(field)
    assert same(decode_column(field, column), [time, None])
    assert decode_column(field, column)[0].tzinfo is time.tzinfo


def test_naive_and_aware_datetimes_stay_what_they_are() -> None:
    times = [NOON, NOON.replace(tzinfo=dt.UTC)]

    assert [time.tzinfo for time in round_trip(times)] == [None, dt.UTC]


def test_one_true_and_one_point_zero_stay_three_values() -> None:
    assert same(round_trip([1, True, 1.0]), [1, True, 1.0])


def test_an_integer_subclass_keeps_its_class() -> None:
    assert round_trip([Level.LOW])[0] is Level.LOW


def test_a_value_that_cannot_be_pickled_is_named_with_its_row() -> None:
    with pytest.raises(ValueTypeError) as caught:
        encode_column("x", [1, "a", threading.Lock()])

    assert caught.value.row == 2
    assert "lock" in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (pa.int64(), 1, True),
        (pa.int64(), 1, 1.5),
        (pa.int64(), 1, 1.0),
        (pa.int64(), 1, decimal.Decimal("1.5")),
        (pa.int64(), 1, "1"),
        (pa.int64(), 1, 2**63),
        (pa.int32(), 1, 2**31),
        (pa.float64(), 1.5, True),
        (pa.float64(), 1.5, "1.5"),
        (pa.float64(), 1.5, 2**53 + 1),
        (pa.bool_(), True, 1),
        (pa.bool_(), True, 0.0),
        (pa.string(), "a", b"a"),
        (pa.string(), "a", 1),
        (pa.string(), "a", "\ud800"),
        (pa.binary(), b"a", "a"),
        (pa.date32(), DAY, NOON),
        (pa.date32(), DAY, 5),
        (UTC, NOON.replace(tzinfo=dt.UTC), 5),
        (UTC, NOON.replace(tzinfo=dt.UTC), DAY),
        (pa.decimal128(38, 2), decimal.Decimal("1.5"), True),
        (pa.list_(pa.int64()), [1], [1, True]),
        (pa.list_(pa.int64()), [1], [1.5]),
        (pa.list_(pa.list_(pa.int64())), [[1]], [[1], [1.5]]),
        (pa.struct([("a", pa.int64())]), {"a": 1}, {"a": 1.5}),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_the_declared_type_is_named(
    declared: pa.DataType, good: Any, bad: Any
) -> None:
    assert encode_column("x", [good, None], declared)[1].type == declared

    with pytest.raises(ValueTypeError) as caught:
        encode_column("x", [good, None, bad, good], declared)

    problem = caught.value
    assert (problem.column, problem.row) == ("x", 2)
    assert problem.expected == str(declared)
    assert repr(bad)[:20] in str(problem) and type(bad).__name__ in str(problem)


def test_integers_fit_a_declared_float_column() -> None:
    assert same(round_trip([1, 2.5], pa.float64()), [1.0, 2.5])


def test_the_error_of_a_misfit_survives_pickling() -> None:
    error = ValueTypeError("x", "int64", "1.5 (float)", 3)

    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == str(error)
    assert (copy.column, copy.expected, copy.value, copy.row) == ("x", "int64", "1.5 (float)", 3)


def test_long_values_are_shown_short() -> None:
    text = value_text("a" * 1000)

    assert len(text) < 100
    assert text.endswith("… (str)")


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([], pa.null()),
        ([pa.null(), pa.null()], pa.null()),
        ([pa.null(), pa.string()], pa.string()),
        ([pa.int64(), pa.float64()], pa.float64()),
        ([pa.float32(), pa.float64(), pa.null()], pa.float64()),
        ([pa.int32(), pa.int64()], pa.int64()),
        ([pa.int64(), pa.bool_()], None),
        ([pa.string(), pa.int64()], None),
        ([pa.timestamp("us"), UTC], None),
    ],
    ids=str,
)
def test_types_unify_where_nothing_changes_its_meaning(
    types: list[pa.DataType], expected: pa.DataType | None
) -> None:
    assert unify(types) == expected
    assert unify(reversed(types)) == expected


def _tuple_of(*types: pa.DataType) -> pa.DataType:
    return pa.struct([(f"f{at}", kind) for at, kind in enumerate(types)])


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([], pa.null()),
        ([pa.null(), pa.int64()], pa.int64()),
        ([pa.int64(), pa.float64()], None),
        ([_tuple_of(pa.int64(), pa.null()), _tuple_of(pa.null(), pa.string())], "both"),
        ([_tuple_of(pa.int64(), pa.null()), pa.null()], _tuple_of(pa.int64(), pa.null())),
        ([_tuple_of(pa.int64()), _tuple_of(pa.bool_())], None),
        ([_tuple_of(pa.int64()), _tuple_of(pa.int64(), pa.int64())], None),
        ([_tuple_of(pa.int64()), pa.int64()], None),
    ],
    ids=str,
)
def test_key_types_unify_only_where_one_of_them_is_unknown(
    types: list[pa.DataType], expected: pa.DataType | str | None
) -> None:
    if expected == "both":
        expected = _tuple_of(pa.int64(), pa.string())

    assert unify_nulls(types) == expected

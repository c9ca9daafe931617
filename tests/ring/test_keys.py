from __future__ import annotations

import datetime as dt
import enum
import math
import pickle
import struct
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given

from millstream.ring.key_types import describe
from millstream.ring.keys import (
    NAN,
    KeyTypeError,
    canonical_key,
    decode_keys,
    encode_keys,
    infer_type,
)
from tests.ring.key_strategies import columns, untimed

PARIS = ZoneInfo("Europe/Paris")


def same(left: object, right: object) -> bool:
    """Compare strictly: 1, True and 1.0 differ, NaN equals NaN, and so within tuples."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return left == right


def floats_in(key: object) -> list[float]:
    """Return the floats of a key, also those inside tuples."""
    if isinstance(key, tuple):
        return [value for part in key for value in floats_in(part)]
    return [key] if isinstance(key, float) else []


@untimed
@given(columns)
def test_keys_of_every_type_survive_the_round_trip(
    column: tuple[pa.DataType, list[object]],
) -> None:
    type, keys = column

    array = encode_keys(keys, type)
    array.validate(full=True)

    assert array.type == type
    assert all(map(same, decode_keys(array), keys))
    assert len(array) == len(keys)


@untimed
@given(columns)
def test_a_single_key_becomes_what_decoding_gives(
    column: tuple[pa.DataType, list[object]],
) -> None:
    type, keys = column

    decoded = decode_keys(encode_keys(keys, type))

    assert all(
        same(canonical_key(key, type), found) for key, found in zip(keys, decoded, strict=True)
    )
    assert {canonical_key(key, type): None for key in keys} == dict.fromkeys(decoded)


@untimed
@given(columns)
def test_decoded_floats_are_never_minus_zero_and_nan_is_one_object(
    column: tuple[pa.DataType, list[object]],
) -> None:
    type, keys = column

    for key in decode_keys(encode_keys(keys, type)):
        for value in floats_in(key):
            assert value is NAN or not math.isnan(value)
            assert value != 0 or math.copysign(1, value) == 1


def test_a_dict_finds_nan_and_zero_whatever_bits_they_came_with() -> None:
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    raw = pa.array([odd_nan, -0.0], pa.float64())
    pairs = pa.StructArray.from_arrays([raw], names=["_1"])

    for decoded in (decode_keys(raw), [key[0] for key in decode_keys(pairs)]):  # type: ignore[index]
        assert decoded[0] is NAN
        assert str(decoded[1]) == "0.0"
    assert canonical_key(odd_nan, pa.float64()) is NAN
    assert str(canonical_key(-0.0, pa.float64())) == "0.0"
    assert {NAN: 1}[canonical_key(odd_nan, pa.float64())] == 1  # type: ignore[index]


@untimed
@given(columns)
def test_an_inferred_type_is_the_declared_one_when_all_parts_are_seen(
    column: tuple[pa.DataType, list[object]],
) -> None:
    type, keys = column
    inferred = infer_type(keys)

    # What only ever was None cannot be known; everything else must agree.
    assert describe(inferred) == describe(type) or "None" in describe(inferred)
    assert all(map(same, decode_keys(encode_keys(keys)), keys))


@pytest.mark.parametrize(
    ("keys", "offender"),
    [
        ([1, True], "True"),
        ([True, 1], "1"),
        ([1.5, True], "True"),
        ([True, 1.0], "1.0"),
        ([1, 1.0], "1.0"),
        ([None, 2.5, 1], "1"),
        ([(1, "x"), (1.0, "x")], "(1.0, 'x')"),
        (["a", b"a"], "b'a'"),
        (["a", 1], "1"),
        ([1, "a"], "'a'"),
        ([b"a", "a"], "'a'"),
        ([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)], "datetime.datetime(2024, 1, 1, 0, 0)"),
        ([dt.datetime(2024, 1, 1), dt.date(2024, 1, 1)], "datetime.date(2024, 1, 1)"),
        ([("a", 1), ("a", True)], "('a', True)"),
        ([("a", 1), ("a",)], "('a',)"),
        ([("a",), "a"], "'a'"),
        (["a", ("a",)], "('a',)"),
    ],
)
def test_mixed_types_are_refused_and_the_offender_named(keys: list[object], offender: str) -> None:
    with pytest.raises(KeyTypeError) as caught:
        encode_keys(keys)

    assert caught.value.key == offender
    assert caught.value.expected == describe(infer_type(keys))


def test_naive_and_aware_datetimes_do_not_mix() -> None:
    naive, aware = dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

    for keys in ([naive, aware], [aware, naive]):
        with pytest.raises(KeyTypeError, match="datetime"):
            encode_keys(keys)


def test_one_true_and_one_point_zero_encode_to_three_types() -> None:
    types = [encode_keys([key]).type for key in (1, True, 1.0)]

    assert types == [pa.int64(), pa.bool_(), pa.float64()]


def test_an_integer_is_no_float_also_for_a_look_up() -> None:
    with pytest.raises(KeyTypeError, match="key 1 is int, expected float"):
        canonical_key(1, pa.float64())


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1])
def test_an_integer_beyond_64_bits_is_refused(key: int) -> None:
    for attempt in (lambda: encode_keys([1, key]), lambda: canonical_key(key, pa.int64())):
        with pytest.raises(KeyTypeError, match="beyond 64 bits"):
            attempt()


@pytest.mark.parametrize("key", [[1], {"a": 1}, {1}, bytearray(b"a"), 1j, object(), dt.time(1)])
def test_other_types_are_refused(key: object) -> None:
    for keys in ([key], [("a", key)]):
        with pytest.raises(KeyTypeError):
            encode_keys(keys)
    with pytest.raises(KeyTypeError):
        encode_keys(["a", key])


def test_a_string_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="not valid Unicode"):
        encode_keys(["fine", "\ud800"])


def test_subclasses_become_plain_keys() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Level(enum.IntEnum):
        LOW = 1

    keys: list[list[object]] = [
        [Colour.RED],
        [Level.LOW],
        [np.float64(1.5)],
        [pd.Timestamp("2024-01-01")],
    ]
    decoded = [decode_keys(encode_keys(column))[0] for column in keys]

    assert decoded == ["red", 1, 1.5, dt.datetime(2024, 1, 1)]
    assert [type(key) for key in decoded] == [str, int, float, dt.datetime]
    alone = [canonical_key(column[0], infer_type(column)) for column in keys]
    assert [type(key) for key in alone] == [str, int, float, dt.datetime]


NANO = "2024-01-01 00:00:00.000000001"


@pytest.mark.parametrize("key", [pd.Timestamp(NANO), np.datetime64(NANO)])
def test_times_finer_than_a_microsecond_are_refused(key: object) -> None:
    with pytest.raises(KeyTypeError):
        encode_keys([dt.datetime(2024, 1, 1), key])
    with pytest.raises(KeyTypeError):
        encode_keys([key])


@pytest.mark.parametrize("missing", [pd.NaT, pd.NA, np.datetime64("NaT")], ids=repr)
def test_what_is_missing_to_numpy_or_pandas_is_none(missing: object) -> None:
    assert decode_keys(encode_keys([missing, 1])) == [None, 1]
    assert decode_keys(encode_keys([("a", missing), ("b", 2)])) == [("a", None), ("b", 2)]
    assert decode_keys(encode_keys([missing])) == [None]


def test_one_instant_is_one_key_whatever_its_zone() -> None:
    paris = dt.datetime(2024, 7, 1, 14, tzinfo=PARIS)
    utc = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)

    decoded = decode_keys(encode_keys([paris, utc]))

    assert decoded == [utc, utc]
    assert {key.tzinfo for key in decoded if isinstance(key, dt.datetime)} == {dt.UTC}


def test_the_two_passes_of_an_hour_at_the_end_of_summer_are_two_keys() -> None:
    first = dt.datetime(2024, 10, 27, 2, 30, tzinfo=PARIS)

    early, late = decode_keys(encode_keys([first, first.replace(fold=1)]))

    assert early == dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)
    assert late == dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC)


def test_a_naive_datetime_has_no_second_pass() -> None:
    key = canonical_key(dt.datetime(2024, 10, 27, 2, 30, fold=1), pa.timestamp("us"))

    assert isinstance(key, dt.datetime)
    assert key.fold == 0


def test_a_datetime_that_leaves_the_calendar_in_utc_is_refused() -> None:
    west = dt.timezone(dt.timedelta(hours=-5))

    with pytest.raises(KeyTypeError, match="years 1 to 9999"):
        encode_keys([dt.datetime(9999, 12, 31, 23, tzinfo=west)])


def test_empty_tuples_and_no_keys_are_fine() -> None:
    assert decode_keys(encode_keys([(), None, ()])) == [(), None, ()]
    assert decode_keys(encode_keys([])) == []
    assert decode_keys(encode_keys([], encode_keys([("a", 1)]).type)) == []
    assert decode_keys(encode_keys([None, None])) == [None, None]


def test_a_declared_type_is_made_canonical() -> None:
    assert encode_keys([1], pa.int16()).type == pa.int64()
    assert encode_keys(["a"], pa.large_string()).type == pa.string()


def test_a_slice_decodes_to_its_own_rows() -> None:
    array = encode_keys([("a", 1), None, ("b", None), (None, 4)])

    assert decode_keys(array.slice(1, 2)) == [None, ("b", None)]


def test_a_column_that_is_not_canonical_is_not_decoded() -> None:
    with pytest.raises(KeyTypeError, match="canonical"):
        decode_keys(pa.array([1], pa.int8()))


def test_a_long_key_is_cut_short_in_the_error() -> None:
    with pytest.raises(KeyTypeError) as caught:
        encode_keys([1, "x" * 10_000])

    assert len(caught.value.key) <= 100


def test_the_error_survives_pickling_and_says_what_to_do() -> None:
    error = KeyTypeError("True", "int", "bool")

    copy = pickle.loads(pickle.dumps(error))

    assert (copy.key, copy.expected, copy.found) == ("True", "int", "bool")
    assert "key True is bool, expected int" in str(copy)
    assert "convert the key" in str(copy)

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given

from millstream.ring.keys import KeyTypeError, canonical_column, decode_keys, encode_keys
from tests.ring.key_strategies import columns, untimed

INSTANT = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
LOCAL = dt.datetime(2024, 7, 1, 12)


@pytest.mark.parametrize(
    "type",
    [
        *[pa.int8(), pa.int16(), pa.int32(), pa.int64()],
        *[pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    ],
)
def test_integers_of_every_width_become_int64(type: pa.DataType) -> None:
    found = canonical_column(pa.array([1, None, 100], type))

    assert found.equals(encode_keys([1, None, 100]))


@pytest.mark.parametrize(
    "type",
    [
        *[pa.string(), pa.large_string(), pa.string_view()],
        *[pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())],
    ],
)
def test_strings_of_every_layout_become_string(type: pa.DataType) -> None:
    array = pa.array(["a", None, "é", "a"], pa.string()).cast(type)

    assert canonical_column(array).equals(encode_keys(["a", None, "é", "a"]))


@pytest.mark.parametrize("type", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)])
def test_bytes_of_every_layout_become_binary(type: pa.DataType) -> None:
    found = canonical_column(pa.array([b"ab", None], type))

    assert found.equals(encode_keys([b"ab", None]))


def test_run_end_encoded_columns_are_expanded() -> None:
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([7, 8], pa.int32()))

    assert canonical_column(runs).equals(encode_keys([7, 7, 8]))


@pytest.mark.parametrize("type", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_become_float64_without_minus_zero(type: pa.DataType) -> None:
    found = canonical_column(pa.array([-0.0, 1.5, None, float("nan")], type))

    assert found.type == pa.float64()
    assert list(map(str, found.to_pylist())) == ["0.0", "1.5", "None", "nan"]


def test_every_nan_gets_the_same_bits() -> None:
    odd = pa.array([0xFFF8000000000001, 0x7FF8000000000000], pa.uint64()).view(pa.float64())

    bits = canonical_column(odd).view(pa.uint64())

    assert bits.to_pylist() == [0x7FF8000000000000] * 2


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris", "+05:30"])
def test_timestamps_of_every_unit_and_zone_keep_their_instant(unit: str, zone: str | None) -> None:
    key = LOCAL if zone is None else INSTANT

    found = canonical_column(pa.array([key, None], pa.timestamp(unit, tz=zone)))

    assert found.equals(encode_keys([key, None]))


@pytest.mark.parametrize("type", [pa.date32(), pa.date64()])
def test_dates_become_date32(type: pa.DataType) -> None:
    day = dt.date(2024, 2, 29)

    assert canonical_column(pa.array([day, None], type)).equals(encode_keys([day, None]))


def test_structs_become_tuples_whatever_their_field_names() -> None:
    array = pa.array(
        [{"x": 1, "y": {"z": "a"}}, None, {"x": None, "y": None}],
        pa.struct({"x": pa.int8(), "y": pa.struct({"z": pa.large_string()})}),
    )

    found = canonical_column(array.slice(1))
    found.validate(full=True)

    assert decode_keys(canonical_column(array)) == [(1, ("a",)), None, (None, None)]
    assert decode_keys(found) == [None, (None, None)]
    assert [field.name for field in found.type] == ["_1", "_2"]


def test_what_a_null_struct_hides_is_not_checked() -> None:
    far = pa.array([2**62, 0], pa.timestamp("us"))
    array = pa.StructArray.from_arrays([far], names=["x"], mask=pa.array([True, False]))

    assert decode_keys(canonical_column(array)) == [None, (dt.datetime(1970, 1, 1),)]


@untimed
@given(columns)
def test_a_canonical_column_stays_as_it_is(column: tuple[pa.DataType, list[object]]) -> None:
    type, keys = column
    array = encode_keys(keys, type)

    found = canonical_column(array)

    assert found.type == array.type
    assert list(map(str, decode_keys(found))) == list(map(str, decode_keys(array)))


def test_a_column_of_nulls_stays_null() -> None:
    assert canonical_column(pa.nulls(3)).equals(pa.nulls(3))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([2**63], pa.uint64()),
        pa.array([1_001], pa.timestamp("ns")),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([2**62], pa.timestamp("us", tz="UTC")),
        pa.array([-(2**62)], pa.timestamp("us")),
        pa.array([2**30], pa.int32()).view(pa.date32()),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_exactly_is_refused(array: pa.Array) -> None:
    with pytest.raises(KeyTypeError, match=r"not exact|years 1 to 9999"):
        canonical_column(array)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([Decimal("1.5")]),
        pa.array([[1]]),
        pa.array([dt.timedelta(1)]),
        pa.array([dt.time(1)]),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([{"x": [1]}]),
    ],
    ids=lambda array: str(array.type),
)
def test_a_column_that_cannot_be_keys_is_refused(array: pa.Array) -> None:
    with pytest.raises(KeyTypeError, match="keys are str"):
        canonical_column(array)

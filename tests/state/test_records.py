from __future__ import annotations

import datetime as dt
import pickle
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.state.records import (
    decode_records,
    encode_records,
    plain_columns,
    row_type,
    shape_of,
)
from millstream.state.values import ValueTypeError
from tests.state.python_values import ODD, Basket, Point, nested, same, untimed

MIDNIGHT = dt.datetime(2024, 2, 29)
MIDNIGHT64 = np.datetime64(MIDNIGHT)
PAIRS = pa.schema([("word", pa.string()), ("n", pa.int64())])


def round_trip(records: list[Any], schema: pa.Schema | None = None) -> list[Any]:
    return decode_records(encode_records(records, schema))


@untimed
@given(st.lists(nested, min_size=1, max_size=5))
def test_any_records_come_back_as_they_were(records: list[Any]) -> None:
    assert same(round_trip(records), records)


@untimed
@given(st.lists(st.tuples(nested, nested), min_size=1, max_size=5))
def test_pairs_come_back_as_they_were(records: list[Any]) -> None:
    assert same(round_trip(records), records)


@untimed
@given(st.lists(st.fixed_dictionaries({"a": nested, "b": nested}), min_size=1, max_size=5))
def test_dictionaries_come_back_as_they_were(records: list[Any]) -> None:
    assert same(round_trip(records), records)


@pytest.mark.parametrize(
    ("records", "shape", "names"),
    [
        ([("a", 1)], "pair", ["key", "value"]),
        ([("a", 1, 2.0)], "tuple", ["_1", "_2", "_3"]),
        ([("a",)], "tuple", ["_1"]),
        ([{"b": 1, "a": 2}], "dict", ["b", "a"]),
        ([1, 2], "value", ["value"]),
        ([(1,), (1, 2)], "value", ["value"]),
        ([()], "value", ["value"]),
        ([{}], "value", ["value"]),
        ([{1: 2}], "value", ["value"]),
        ([{"a": 1}, {"b": 1}], "value", ["value"]),
        ([("a", 1), {"a": 1}], "value", ["value"]),
        ([OrderedDict(a=1)], "value", ["value"]),
        ([Point(1, 2.0)], "value", ["value"]),
        ([], "value", ["value"]),
    ],
    ids=repr,
)
def test_the_shape_of_records_is_kept(records: list[Any], shape: str, names: list[str]) -> None:
    batch = encode_records(records)

    assert shape_of(batch.schema) == shape
    assert batch.schema.names == names
    assert same(decode_records(batch), records)


def test_a_declared_schema_names_and_types_the_columns() -> None:
    batch = encode_records([("a", 1), ("b", None)], PAIRS)

    assert batch.schema.remove_metadata() == PAIRS
    assert decode_records(batch) == [("a", 1), ("b", None)]


def test_dictionaries_are_put_in_the_order_of_the_schema() -> None:
    batch = encode_records([{"n": 1, "word": "a"}], PAIRS)

    assert batch.to_pylist() == [{"word": "a", "n": 1}]


def test_a_misfit_names_the_column_and_the_row() -> None:
    with pytest.raises(ValueTypeError) as caught:
        encode_records([("a", 1), ("b", 1.5)], PAIRS)

    assert (caught.value.column, caught.value.row) == ("n", 1)


def test_dictionaries_with_other_names_are_not_renamed_to_those_of_the_schema() -> None:
    batch = encode_records([{"a": "x", "b": 1}], PAIRS)

    assert batch.to_pylist() == [{"a": "x", "b": 1}]


def test_tuples_do_not_take_the_names_of_dictionaries_seen_before() -> None:
    learnt = encode_records([{"word": "a", "n": 1}]).schema

    batch = encode_records([("a", 1)], learnt)

    assert batch.schema.names == ["key", "value"]
    assert decode_records(batch) == [("a", 1)]


def test_no_records_with_a_schema_have_its_columns() -> None:
    batch = encode_records([], PAIRS)

    assert batch.schema.remove_metadata() == PAIRS
    assert decode_records(batch) == []


def test_rows_of_a_frame_are_read_by_name_and_by_position() -> None:
    batch = pa.record_batch({"id": [1], "class": ["x"]})

    [row] = decode_records(batch)

    assert (row.id, row["id"], row[0], row["class"]) == (1, 1, 1, "x")
    assert row == (1, "x")


def test_a_frame_with_one_column_gives_bare_values() -> None:
    assert decode_records(pa.record_batch({"line": ["a", "b"]})) == ["a", "b"]


def test_rows_survive_pickling() -> None:
    row = row_type(("id", "class"))(1, "x")

    copy = pickle.loads(pickle.dumps(row))

    assert type(copy) is type(row)
    assert copy["class"] == "x"


def test_rows_keep_their_column_names_when_spelled_out() -> None:
    # Python can spell neither name, so namedtuple calls these fields _0 and _1.
    row = row_type(("class", "a b"))(1, "x")

    assert plain_columns(encode_records([row])).to_pylist() == [{"class": 1, "a b": "x"}]


def test_plain_batches_are_left_alone() -> None:
    batch = encode_records([("a", 1)])

    assert plain_columns(batch) is batch


def test_objects_are_spelled_out_as_columns() -> None:
    class Pair(NamedTuple):
        a: int
        b: str

    assert plain_columns(encode_records([Basket(["egg"])])).to_pylist() == [
        {"items": ["egg"], "open": True}
    ]
    assert plain_columns(encode_records([Pair(1, "x")])).to_pylist() == [{"a": 1, "b": "x"}]


def test_dictionaries_with_different_names_lose_nothing_when_spelled_out() -> None:
    batch = plain_columns(encode_records([{"a": 1}, {"a": 2, "b": 3}, {}]))

    assert batch.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 3}, {"a": None, "b": None}]


def test_a_column_called_value_is_not_taken_for_the_record_itself() -> None:
    batch = plain_columns(encode_records([{"value": {"a": 1}}]))

    assert batch.to_pylist() == [{"value": {"a": 1}}]


def test_mixed_numbers_are_spelled_out_as_floats() -> None:
    assert plain_columns(encode_records([("a", 1), ("b", 1.5)])).column(1).type == pa.float64()


@pytest.mark.parametrize(
    "values", [[1, True], ["a", b"a"], [1, "a"], [print], [2**70], ["\ud800"]], ids=repr
)
def test_what_arrow_cannot_carry_is_named(values: list[Any]) -> None:
    with pytest.raises(ValueTypeError) as caught:
        plain_columns(encode_records([("k", value) for value in [*values, None]]))

    assert caught.value.column == "value"


def test_pickled_values_keep_their_shape_beside_plain_ones() -> None:
    records = [(1, value) for value in ODD]

    batch = encode_records(records)

    assert batch.schema.field(0).type == pa.int64()
    assert same(decode_records(batch), records)


def test_rows_within_rows_are_structs_to_arrow() -> None:
    row = row_type(("n", "name"))
    batch = encode_records([("a", row(1, "x")), ("b", None)])

    plain = plain_columns(batch)

    assert plain.column(1).to_pylist() == [{"n": 1, "name": "x"}, None]
    assert decode_records(batch)[0][1].name == "x"


NUMPY = [
    {"i": np.int64(1), "f": np.float32(0.5), "b": np.True_, "s": np.str_("a"), "t": MIDNIGHT64},
    {"i": np.int8(2), "f": np.float64(1.5), "b": np.False_, "s": np.str_("b"), "t": pd.NaT},
]


def test_scalars_of_numpy_and_pandas_travel_as_plain_values() -> None:
    batch = encode_records(NUMPY)

    assert batch.schema.types == [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.timestamp("us"),
    ]
    assert decode_records(batch)[0] == {"i": 1, "f": 0.5, "b": True, "s": "a", "t": MIDNIGHT}
    assert [type(value) for value in decode_records(batch)[0].values()] == [
        int,
        float,
        bool,
        str,
        dt.datetime,
    ]
    assert decode_records(batch)[1]["t"] is None


def test_scalars_of_numpy_fit_the_declared_type_of_their_value() -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.float64())])

    assert round_trip([("a", np.float64(1.5)), ("b", np.int64(2))], schema) == [
        ("a", 1.5),
        ("b", 2.0),
    ]
    with pytest.raises(ValueTypeError):
        round_trip([("a", np.True_)], schema)


def test_a_tuple_that_is_a_key_is_a_struct_to_arrow_and_a_tuple_again() -> None:
    records = [(("a", 1), 2), (("b", None), 3), (None, 4)]

    plain = plain_columns(encode_records(records))

    assert plain.schema.field("key").type == pa.struct([("_1", pa.string()), ("_2", pa.int64())])
    assert plain.column(0).to_pylist() == [{"_1": "a", "_2": 1}, {"_1": "b", "_2": None}, None]
    assert decode_records(plain.replace_schema_metadata({b"millstream.shape": b"pair"})) == records


def test_tuples_of_one_type_are_structs_as_keys_and_lists_as_values() -> None:
    plain = plain_columns(encode_records([((1, 2), (1, 2))]))

    assert plain.to_pylist() == [{"key": {"_1": 1, "_2": 2}, "value": [1, 2]}]


def test_tuples_within_tuples_are_structs_too() -> None:
    plain = plain_columns(encode_records([(("a", (1, np.datetime64("2024-01-01"))), 2)]))

    inner = pa.struct([("_1", pa.int64()), ("_2", pa.date32())])
    assert plain.schema.field("key").type == pa.struct([("_1", pa.string()), ("_2", inner)])


def test_a_value_that_is_a_tuple_of_several_types_is_a_struct() -> None:
    plain = plain_columns(encode_records([("k", ("a", 1)), ("l", ("b", 2))]))

    assert plain.column(1).to_pylist() == [{"_1": "a", "_2": 1}, {"_1": "b", "_2": 2}]

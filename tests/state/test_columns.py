from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.state.columns import ColumnFragment, ColumnState
from millstream.state.values import ValueTypeError
from tests.state.python_values import same, untimed


def fragment(
    rows: dict[Any, dict[str, Any]],
    *,
    schema: pa.Schema | None = None,
    forgotten: list[Any] | None = None,
    slot: int = 0,
) -> ColumnFragment:
    batch = pa.RecordBatch.from_pylist(list(rows.values()), schema=schema) if rows else None
    slots = np.full(len(rows), slot, np.int32)
    return ColumnFragment(list(rows), slots, batch, forgotten or [])


def contents(state: ColumnState) -> dict[Any, dict[str, Any]]:
    return {
        key: row
        for keys, batch in state.items(batch=3)
        for key, row in zip(keys, batch.to_pylist(), strict=True)
    }


MANY = pa.schema(
    [
        ("int", pa.int64()),
        ("small", pa.int8()),
        ("float", pa.float64()),
        ("bool", pa.bool_()),
        ("text", pa.string()),
        ("list", pa.list_(pa.int64())),
        ("when", pa.timestamp("us", "UTC")),
    ]
)
ROW = {
    "int": 2**62,
    "small": -1,
    "float": 1.5,
    "bool": True,
    "text": "é",
    "list": [1, None],
    "when": dt.datetime(2024, 5, 1, tzinfo=dt.UTC),
}
NOTHING = dict.fromkeys(ROW)


def test_rows_of_every_type_come_back_as_they_were_with_their_nulls() -> None:
    state = ColumnState()
    other = {**ROW, "float": math.nan, "list": [2, 3]}

    state.apply(fragment({"a": ROW, "b": NOTHING, "c": other}, schema=MANY), 0)

    assert same(contents(state), {"a": ROW, "b": NOTHING, "c": other})
    assert state.take(state.find(["b", "a"])).to_pylist() == [NOTHING, ROW]


def test_a_null_is_replaced_by_a_value_and_a_value_by_a_null() -> None:
    state = ColumnState()
    state.apply(fragment({"a": ROW, "b": NOTHING}, schema=MANY), 0)

    state.apply(fragment({"a": NOTHING, "b": ROW}, schema=MANY), 1)

    assert contents(state) == {"a": NOTHING, "b": ROW}


def test_unknown_keys_have_no_row() -> None:
    state = ColumnState()
    state.apply(fragment({"a": {"n": 1}}), 0)

    assert state.find(["x", "a", "y"]).tolist() == [-1, 0, -1]


def test_rows_of_forgotten_keys_are_used_again() -> None:
    state = ColumnState()
    state.apply(fragment({key: {"n": key} for key in range(10)}), 0)

    state.apply(fragment({}, forgotten=[3, 5, 99]), 1)
    assert state.keys == 8 and state.find([3]).tolist() == [-1]
    state.apply(fragment({"new": {"n": 7}, "newer": {"n": 8}, "newest": {"n": 9}}), 2)

    expected: dict[Any, Any] = {key: {"n": key} for key in range(10) if key not in (3, 5)}
    assert contents(state) == {**expected, "new": {"n": 7}, "newer": {"n": 8}, "newest": {"n": 9}}
    assert int(state.find(["new", "newer", "newest"]).max()) == 10


def test_the_state_grows_past_its_first_capacity() -> None:
    state = ColumnState()
    state.apply(fragment({key: {"n": key, "s": str(key)} for key in range(700)}), 0)
    state.apply(fragment({key: {"n": -key, "s": "x"} for key in range(600, 3000)}), 1)

    found = contents(state)

    assert len(found) == 3000
    assert found[599] == {"n": 599, "s": "599"}
    assert found[2999] == {"n": -2999, "s": "x"}


def test_a_batch_that_was_taken_does_not_change_with_the_state() -> None:
    state = ColumnState()
    state.apply(fragment({"a": {"n": 1}}), 0)
    taken = state.take(state.find(["a"]))

    state.apply(fragment({"a": {"n": 2}}), 1)

    assert taken.to_pylist() == [{"n": 1}]


def test_floats_after_integers_are_not_truncated() -> None:
    state = ColumnState()
    state.apply(
        fragment({"a": {"n": 1}, "z": {"n": None}}, schema=pa.schema([("n", pa.int64())])), 0
    )

    state.apply(fragment({"b": {"n": 1.5}}), 1)
    state.apply(fragment({"c": {"n": 2}}), 2)

    found = {"a": {"n": 1.0}, "z": {"n": None}, "b": {"n": 1.5}, "c": {"n": 2.0}}
    assert same(contents(state), found)
    assert state.schema is not None and state.schema.types == [pa.float64()]


def test_a_column_that_had_only_nulls_takes_the_type_of_its_first_value() -> None:
    state = ColumnState()
    state.apply(fragment({"a": {"n": None, "s": None}}), 0)

    state.apply(fragment({"b": {"n": 1, "s": "x"}}), 1)

    assert contents(state) == {"a": {"n": None, "s": None}, "b": {"n": 1, "s": "x"}}


def test_a_type_that_nothing_holds_beside_the_old_one_is_refused() -> None:
    state = ColumnState()
    state.apply(fragment({"a": {"n": 1}}), 0)

    with pytest.raises(ValueTypeError) as caught:
        state.apply(fragment({"b": {"n": "x"}}), 1)

    assert caught.value.column == "n"
    assert contents(state) == {"a": {"n": 1}}


def test_keys_alone_are_a_state_too() -> None:
    state = ColumnState()

    state.apply(fragment({"a": {}, "b": {}}), 0)
    state.apply(fragment({}, forgotten=["a"]), 1)

    assert state.find(["a", "b"]).tolist() == [-1, 1]


def test_idle_keys_are_those_of_the_given_slots_not_touched_since() -> None:
    state = ColumnState()
    state.apply(fragment({"a": {"n": 1}, "b": {"n": 1}}, slot=1), 10)
    state.apply(fragment({"c": {"n": 1}}, slot=2), 10)
    state.apply(fragment({"b": {"n": 2}}, slot=1), 20)
    slots = np.array([1], np.int32)

    assert state.idle_since(slots, before=10) == []
    assert state.idle_since(slots, before=11) == ["a"]
    assert state.idle_since(slots, before=21) == ["a", "b"]
    state.apply(fragment({}, forgotten=["a"]), 21)
    assert state.idle_since(slots, before=21) == ["b"]


KEYS = st.integers(0, 6)
EPOCHS = st.lists(
    st.tuples(
        st.dictionaries(KEYS, st.none() | st.integers(-9, 9), max_size=5),
        st.sets(KEYS, max_size=3),
    ),
    max_size=10,
)


@untimed
@given(EPOCHS)
def test_the_state_is_a_dictionary_over_any_epochs(
    epochs: list[tuple[dict[int, int | None], set[int]]],
) -> None:
    state, truth = ColumnState(), dict[int, int | None]()
    schema = pa.schema([("n", pa.int64())])
    for time, (written, forgotten) in enumerate(epochs):
        gone = sorted(forgotten - written.keys())
        rows = {key: {"n": value} for key, value in written.items()}
        state.apply(fragment(rows, schema=schema, forgotten=gone), time)
        truth = {key: value for key, value in truth.items() if key not in gone} | written

    assert contents(state) == {key: {"n": value} for key, value in truth.items()}
    assert state.keys == len(truth)

from __future__ import annotations

import datetime as dt
import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.state.column_fragments import ColumnFragment
from millstream.state.columns import ColumnState
from millstream.state.values import ValueTypeError
from tests.state.python_values import same, untimed

SLOTS = 4
ALL = np.ones(SLOTS, dtype=bool)


def fragment(
    rows: dict[Any, dict[str, Any]],
    *,
    schema: pa.Schema | None = None,
    forgotten: list[Any] | None = None,
    slot: int = 0,
    time: int = 0,
) -> ColumnFragment:
    batch = pa.RecordBatch.from_pylist(list(rows.values()), schema=schema) if rows else None
    slots = np.full(len(rows), slot, np.int32)
    times = np.full(len(rows), time, np.int64)
    return ColumnFragment(list(rows), slots, batch, forgotten or [], times)


def contents(state: ColumnState) -> dict[Any, dict[str, Any]]:
    return {
        key: row
        for keys, batch in state.batches(ALL, size=3)
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
    state = ColumnState(SLOTS)
    other = {**ROW, "float": math.nan, "list": [2, 3]}

    state.apply(fragment({"a": ROW, "b": NOTHING, "c": other}, schema=MANY))

    assert same(contents(state), {"a": ROW, "b": NOTHING, "c": other})
    assert state.take(state.find(["b", "a"])).to_pylist() == [NOTHING, ROW]


def test_a_null_is_replaced_by_a_value_and_a_value_by_a_null() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": ROW, "b": NOTHING}, schema=MANY))

    state.apply(fragment({"a": NOTHING, "b": ROW}, schema=MANY))

    assert contents(state) == {"a": NOTHING, "b": ROW}


def test_unknown_keys_have_no_row() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"n": 1}}))

    assert state.find(["x", "a", "y"]).tolist() == [-1, 0, -1]


def test_rows_of_forgotten_keys_are_used_again() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({key: {"n": key} for key in range(10)}))

    state.apply(fragment({}, forgotten=[3, 5, 99]))
    assert state.count(ALL) == 8 and state.find([3]).tolist() == [-1]
    state.apply(fragment({"new": {"n": 7}, "newer": {"n": 8}, "newest": {"n": 9}}))

    expected: dict[Any, Any] = {key: {"n": key} for key in range(10) if key not in (3, 5)}
    assert contents(state) == {**expected, "new": {"n": 7}, "newer": {"n": 8}, "newest": {"n": 9}}
    assert int(state.find(["new", "newer", "newest"]).max()) == 10


def test_the_state_grows_past_its_first_capacity() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({key: {"n": key, "s": str(key)} for key in range(700)}))
    state.apply(fragment({key: {"n": -key, "s": "x"} for key in range(600, 3000)}))

    found = contents(state)

    assert len(found) == 3000
    assert found[599] == {"n": 599, "s": "599"}
    assert found[2999] == {"n": -2999, "s": "x"}


def test_a_batch_that_was_taken_does_not_change_with_the_state() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"n": 1}}))
    taken = state.take(state.find(["a"]))

    state.apply(fragment({"a": {"n": 2}}))

    assert taken.to_pylist() == [{"n": 1}]


def test_floats_after_integers_are_not_truncated() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"n": 1}, "z": {"n": None}}, schema=pa.schema([("n", pa.int64())])))

    state.apply(fragment({"b": {"n": 1.5}}))
    state.apply(fragment({"c": {"n": 2}}))

    found = {"a": {"n": 1.0}, "z": {"n": None}, "b": {"n": 1.5}, "c": {"n": 2.0}}
    assert same(contents(state), found)
    assert state.schema is not None and state.schema.types == [pa.float64()]


def test_a_column_that_had_only_nulls_takes_the_type_of_its_first_value() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"n": None, "s": None}}))

    state.apply(fragment({"b": {"n": 1, "s": "x"}}))

    assert contents(state) == {"a": {"n": None, "s": None}, "b": {"n": 1, "s": "x"}}


def test_a_type_that_nothing_holds_beside_the_old_one_is_refused() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"n": 1}}))

    with pytest.raises(ValueTypeError) as caught:
        state.apply(fragment({"b": {"n": "x"}}))

    assert caught.value.column == "n"
    assert contents(state) == {"a": {"n": 1}}


def test_keys_alone_are_a_state_too() -> None:
    state = ColumnState(SLOTS)

    state.apply(fragment({"a": {}, "b": {}}))
    state.apply(fragment({}, forgotten=["a"]))

    assert state.find(["a", "b"]).tolist() == [-1, 1]


def test_idle_keys_are_those_of_the_given_slots_not_touched_since() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"n": 1}, "b": {"n": 1}}, slot=1, time=10))
    state.apply(fragment({"c": {"n": 1}}, slot=2, time=10))
    state.apply(fragment({"b": {"n": 2}}, slot=1, time=20))
    slots = range(1, 2)

    assert state.idle_since(slots, before=10) == []
    assert state.idle_since(slots, before=11) == ["a"]
    assert state.idle_since(slots, before=21) == ["a", "b"]
    state.apply(fragment({}, forgotten=["a"], time=21))
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
    state, truth = ColumnState(SLOTS), dict[int, int | None]()
    schema = pa.schema([("n", pa.int64())])
    for time, (written, forgotten) in enumerate(epochs):
        gone = sorted(forgotten - written.keys())
        rows = {key: {"n": value} for key, value in written.items()}
        state.apply(fragment(rows, schema=schema, forgotten=gone, time=time))
        truth = {key: value for key, value in truth.items() if key not in gone} | written

    assert contents(state) == {key: {"n": value} for key, value in truth.items()}
    assert state.count(ALL) == len(truth)


# -- slots as copies: a part of a fragment, a snapshot, and nothing any more -----------------


def only(*slots: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(SLOTS), slots)


def two_slots() -> ColumnState:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"s": "x"}, "b": {"s": "y"}}, slot=0, time=5))
    state.apply(fragment({"c": {"s": "z"}, "d": {"s": None}}, slot=3, time=6))
    return state


def test_of_a_fragment_only_the_part_of_the_given_slots_arrives() -> None:
    rows = pa.record_batch({"n": [1, 2, 3]})
    slots, times = np.array([0, 3, 0], np.int32), np.array([7, 8, 9], np.int64)
    whole = ColumnFragment(["a", "b", "c"], slots, rows, [], times)
    state = ColumnState(SLOTS)

    state.apply(whole, only(1))
    assert state.schema is None
    state.apply(whole, only(0, 1))

    assert contents(state) == {"a": {"n": 1}, "c": {"n": 3}}
    assert state.idle_since(range(SLOTS), before=9) == ["a"]
    state.apply(whole, only(3))
    assert contents(state) == {"a": {"n": 1}, "c": {"n": 3}, "b": {"n": 2}}


def test_keys_of_other_slots_are_not_forgotten() -> None:
    state = two_slots()

    state.apply(fragment({}, forgotten=["a", "c", "unknown"]), only(0, 1))

    assert set(contents(state)) == {"b", "c", "d"}


def test_keys_and_items_are_those_of_the_given_slots() -> None:
    state = two_slots()
    state.apply(fragment({"c": {"s": "again"}}, slot=3))
    state.apply(fragment({}, forgotten=["a", "unknown"]))

    masks = [(), (0,), (1, 2), (3,), (0, 1, 2, 3)]
    assert [state.count(only(*slots)) for slots in masks] == [0, 1, 0, 2, 3]
    assert [keys for keys, _ in state.batches(only(1, 3))] == [["c", "d"]]
    assert list(state.items(only(1))) == []


def test_rows_of_dropped_slots_are_used_again() -> None:
    state = two_slots()

    state.drop(only(0, 1))

    assert contents(state) == {"c": {"s": "z"}, "d": {"s": None}}
    assert state.find(["a", "b"]).tolist() == [-1, -1]
    assert state.idle_since(range(SLOTS), before=99) == ["c", "d"]
    state.apply(fragment({"e": {"s": "new"}, "f": {"s": None}}, slot=1))
    assert sorted(state.find(["e", "f"]).tolist()) == [0, 1]
    assert contents(state)["f"] == {"s": None}


def test_dropped_values_are_let_go() -> None:
    class Text(str):
        """A string that can tell when it is gone."""

    key = Text("t")
    gone = weakref.ref(key)
    state = two_slots()
    state.apply(fragment({key: {"s": "x"}}, slot=1))
    [row] = state.find([key]).tolist()

    state.drop(only(1))
    del key

    assert gone() is None
    assert state.take(np.array([row])).to_pylist() == [{"s": None}]


def test_a_state_whose_slots_were_all_dropped_takes_other_types_and_columns() -> None:
    state = two_slots()

    state.drop(only(0))
    state.drop(only(3))
    assert state.schema is None and state.count(ALL) == 0
    state.apply(fragment({"a": {"n": 1, "m": 2}}))

    assert contents(state) == {"a": {"n": 1, "m": 2}}


def test_a_snapshot_has_the_given_slots_and_does_not_change_with_the_state() -> None:
    state, copied = two_slots(), ColumnState(SLOTS)

    snapshot = state.snapshot(range(2, 4))
    state.apply(fragment({"c": {"s": "changed"}}, slot=3, time=9))
    state.drop(only(3))
    copied.apply(snapshot)

    assert contents(copied) == {"c": {"s": "z"}, "d": {"s": None}}
    assert copied.idle_since(range(SLOTS), before=6) == []
    assert copied.idle_since(range(SLOTS), before=7) == ["c", "d"]


@pytest.mark.parametrize("slots", [range(1, 3), range(2, 2)])
def test_a_snapshot_of_slots_that_hold_nothing_is_empty(slots: range) -> None:
    copied = ColumnState(SLOTS)

    for state in (two_slots(), ColumnState(SLOTS)):
        copied.apply(state.snapshot(slots))

    assert copied.schema is None and copied.count(ALL) == 0


def test_columns_that_come_in_another_order_meet_by_name() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"x": 1, "y": 2}}))

    state.apply(fragment({"b": {"y": 20, "x": 10}}))

    assert contents(state) == {"a": {"x": 1, "y": 2}, "b": {"x": 10, "y": 20}}


def test_an_integer_that_no_float_equals_is_rounded_rather_than_refused() -> None:
    state = ColumnState(SLOTS)
    state.apply(fragment({"a": {"n": 1.5}}))

    state.apply(fragment({"b": {"n": 2**53 + 1}}))

    assert contents(state) == {"a": {"n": 1.5}, "b": {"n": float(2**53)}}


@untimed
@given(
    st.lists(st.integers(0, SLOTS - 1), max_size=20),
    st.integers(0, SLOTS),
    st.booleans(),
    st.booleans(),
)
def test_a_fragment_can_be_applied_a_few_slots_at_a_time(
    slots: list[int], cut: int, arranged: bool, bare: bool
) -> None:
    rows = {f"k{at}": {} if bare else {"n": at} for at in range(len(slots))}
    whole = fragment(rows, schema=pa.schema([]) if bare else None, forgotten=["old"], time=7)
    whole.slots[:] = slots
    at_once, in_parts = ColumnState(SLOTS), ColumnState(SLOTS)
    for state in (at_once, in_parts):
        state.apply(fragment({"old": {} if bare else {"n": 0}}, slot=1))
    low = np.arange(SLOTS) < cut

    at_once.apply(whole)
    given_ = whole.by_slot() if arranged else whole
    for part in (low, ~low):
        in_parts.apply(given_, part)

    for mask in (low, ~low, ALL):
        assert in_parts.count(mask) == at_once.count(mask)
    keys = [{k for found, _ in state.batches(ALL) for k in found} for state in (at_once, in_parts)]
    assert keys[0] == keys[1]
    if not bare:
        assert contents(in_parts) == contents(at_once)

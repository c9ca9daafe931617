from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.ring.keys import NAN
from millstream.state.column_fragments import (
    ColumnFragment,
    decode_columns,
    encode_columns,
    merge_columns,
)
from millstream.state.columns import ColumnState
from millstream.state.key_view import GONE, Change
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment, decode_keyed, encode_keyed, merge_keyed
from tests.state.python_values import Basket, same, untimed

few = settings(untimed, max_examples=150)
SLOTS = 4
ALL = np.ones(SLOTS, dtype=bool)
KEYS = st.integers(0, 5)  # a key's slot is what is left when it is divided by the slots


def only(*slots: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(SLOTS), slots)


# -- any epochs, of either state -------------------------------------------------------------

VALUES = st.sampled_from([1, 2, "x", None, True, 1.0, GONE, [1], [1, [2]], Basket(["egg"])])
KEYED_EPOCH = st.tuples(
    st.dictionaries(
        KEYS,
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
            # Too many entries for a plain dictionary to be handed out.
            | st.just({str(number): number for number in range(20)}),
            st.booleans(),
        ),
        max_size=5,
    ),
    st.sets(KEYS, max_size=3),
)
COLUMN_EPOCH = st.tuples(
    st.dictionaries(
        KEYS,
        st.tuples(st.sampled_from([None, 1, 2, 1.5]), st.sampled_from([None, "x", "y"])),
        max_size=5,
    ),
    st.sets(KEYS, max_size=3),
)


def by_slot(keys: Sequence[int]) -> dict[int, list[int]]:
    slots: dict[int, list[int]] = {}
    for key in keys:
        slots.setdefault(key % SLOTS, []).append(key)
    return slots


def keyed_fragment(epoch: Any, time: int) -> KeyedFragment:
    written, touched = epoch
    fragment = KeyedFragment()
    for key, (writes, cleared) in written.items():
        simple = all(
            type(value) in (int, str, bool, float, type(None)) for value in writes.values()
        )
        if simple and writes and not cleared:
            fragment.plain.setdefault(key % SLOTS, {})[key] = writes
        elif writes or cleared:
            change = Change(writes, cleared, plain=False)
            fragment.other.setdefault(key % SLOTS, {})[key] = change
    fragment.visits.append((time, by_slot([*written, *(touched - written.keys())])))
    return fragment


def column_fragment(epoch: Any, time: int) -> ColumnFragment:
    written, forgotten = epoch
    keys = list(written)
    gone = sorted(forgotten - written.keys())
    if not keys:
        return ColumnFragment.without_rows(gone)
    numbers, texts = (list(column) for column in zip(*written.values(), strict=True))
    if any(isinstance(number, float) for number in numbers):
        numbers = [None if number is None else float(number) for number in numbers]
    rows = pa.record_batch({"n": numbers, "text": texts})
    slots = np.array([key % SLOTS for key in keys], np.int32)
    return ColumnFragment(keys, slots, rows, gone, np.full(len(keys), time, np.int64))


def keyed_contents(state: KeyedState, slots: Sequence[int], until: int) -> Any:
    idle = [state.idle_since(slots, before) for before in range(until + 2)]
    return (
        {
            slot: {
                key: {name: (type(value), value) for name, value in entries.items()}
                for key, entries in state.items(only(slot))
            }
            for slot in slots
        },
        {slot: state.count(only(slot)) for slot in slots},
        {
            key
            for slot in slots
            for key, _ in state.items(only(slot))
            if key in state.slow_path.get(slot, ())
        },
        [{slot: sorted(keys) for slot, keys in found.items()} for found in idle],
    )


def column_contents(state: ColumnState, slots: Sequence[int], until: int) -> Any:
    rows = {
        slot: {
            key: row
            for keys, batch in state.batches(only(slot), size=2)
            for key, row in zip(keys, batch.to_pylist(), strict=True)
        }
        for slot in slots
    }
    found = [(slot, before) for slot in slots for before in range(until + 2)]
    return (
        rows,
        {slot: state.count(only(slot)) for slot in slots},
        [sorted(state.idle_since(range(s, s + 1), before)) for s, before in found],
    )


@dataclass(frozen=True)
class Form:
    """One of the two kinds of state, with what is done to its fragments."""

    state: Callable[[], Any]
    epoch: st.SearchStrategy[Any]
    fragment: Callable[[Any, int], Any]
    contents: Callable[[Any, Sequence[int], int], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes | pa.Buffer], Any]
    merge: Callable[[Sequence[Any]], Any]

    def fragments(self, data: st.DataObject) -> list[Any]:
        """The fragments of any epochs; time goes on, or stands still."""
        epochs = data.draw(st.lists(st.tuples(self.epoch, st.integers(0, 2)), max_size=6))
        times = np.cumsum([passed for _, passed in epochs], dtype=int).tolist()
        return [self.fragment(e, time) for (e, _), time in zip(epochs, times, strict=True)]

    def after(self, fragments: Sequence[Any]) -> Any:
        state = self.state()
        for fragment in fragments:
            state.apply(fragment)
        return state


UNTIL = 12
FORMS = {
    "keyed": Form(
        KeyedState,
        KEYED_EPOCH,
        keyed_fragment,
        keyed_contents,
        encode_keyed,
        decode_keyed,
        merge_keyed,
    ),
    "columns": Form(
        lambda: ColumnState(SLOTS),
        COLUMN_EPOCH,
        column_fragment,
        column_contents,
        encode_columns,
        decode_columns,
        merge_columns,
    ),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
MASKS = st.sets(st.integers(0, SLOTS - 1))


@forms
@few
@given(data=st.data(), slots=MASKS)
def test_a_copy_of_some_slots_that_applies_deltas_is_equal_to_the_original(
    form: Form, data: st.DataObject, slots: set[int]
) -> None:
    original, copy = form.state(), form.state()
    for fragment in form.fragments(data):
        original.apply(fragment)
        copy.apply(form.decode(form.encode(fragment)), only(*slots))

        assert form.contents(copy, sorted(slots), UNTIL) == form.contents(
            original, sorted(slots), UNTIL
        )
    rest = sorted(set(range(SLOTS)) - slots)
    assert form.contents(copy, rest, UNTIL) == form.contents(form.state(), rest, UNTIL)


@forms
@few
@given(data=st.data())
def test_a_merged_fragment_has_the_effect_of_its_parts_upon_any_state_between(
    form: Form, data: st.DataObject
) -> None:
    fragments = form.fragments(data)
    start = data.draw(st.integers(0, len(fragments)))
    known = data.draw(st.integers(start, len(fragments)))
    cut = data.draw(st.integers(start, len(fragments)))
    state = form.after(fragments[:known])

    parts = [form.merge(fragments[start:cut]), form.merge(fragments[cut:])]
    state.apply(form.decode(form.encode(form.merge(parts))))

    everything = range(SLOTS)
    expected = form.contents(form.after(fragments), everything, UNTIL)
    assert form.contents(state, everything, UNTIL) == expected


@forms
@few
@given(data=st.data(), first=st.integers(0, SLOTS), last=st.integers(0, SLOTS))
def test_a_snapshot_and_what_comes_after_it_make_a_copy(
    form: Form, data: st.DataObject, first: int, last: int
) -> None:
    fragments = form.fragments(data)
    at = data.draw(st.integers(0, len(fragments)))
    original, copy = form.after(fragments[:at]), form.state()
    slots = range(first, last)

    snapshot = original.snapshot(slots)
    for fragment in fragments[at:]:  # the snapshot must not change with the state
        original.apply(fragment)
    copy.apply(form.decode(form.encode(snapshot)))
    for fragment in fragments[at:]:
        copy.apply(fragment, only(*slots))

    assert form.contents(copy, slots, UNTIL) == form.contents(original, slots, UNTIL)
    rest = [slot for slot in range(SLOTS) if slot not in slots]
    assert form.contents(copy, rest, UNTIL) == form.contents(form.state(), rest, UNTIL)


@forms
@few
@given(data=st.data(), slots=MASKS)
def test_dropped_slots_are_empty_and_the_others_stay(
    form: Form, data: st.DataObject, slots: set[int]
) -> None:
    fragments = form.fragments(data)
    at = data.draw(st.integers(0, len(fragments)))
    rest = sorted(set(range(SLOTS)) - slots)

    state = form.after(fragments[:at])
    state.drop(only(*slots))
    assert form.contents(state, sorted(slots), UNTIL) == form.contents(
        form.state(), sorted(slots), UNTIL
    )
    for fragment in fragments[at:]:
        state.apply(fragment)

    dropped, kept = form.after(fragments[at:]), form.after(fragments)
    assert form.contents(state, sorted(slots), UNTIL) == form.contents(
        dropped, sorted(slots), UNTIL
    )
    assert form.contents(state, rest, UNTIL) == form.contents(kept, rest, UNTIL)


@forms
@few
@given(data=st.data())
def test_fragments_stay_as_they_are_when_they_are_applied_and_merged(
    form: Form, data: st.DataObject
) -> None:
    fragments = form.fragments(data)
    before = [form.encode(fragment) for fragment in fragments]

    form.merge(fragments)
    merged = form.merge(fragments)
    encoded = form.encode(merged)
    form.after([*fragments, merged, *fragments])

    assert [form.encode(fragment) for fragment in fragments] == before
    assert form.encode(merged) == encoded


@forms
def test_nothing_merged_is_nothing(form: Form) -> None:
    state = form.after([form.decode(form.encode(form.merge([])))])

    assert form.contents(state, range(SLOTS), UNTIL) == form.contents(
        form.state(), range(SLOTS), UNTIL
    )


# -- keys ------------------------------------------------------------------------------------

ALL_KINDS: list[list[Any]] = [
    ["a", "é", "", None],
    [1, -(2**63), None],
    [True, False],
    [1.0, 0.0, NAN, math.inf, None],
    [b"", b"\xff"],
    [dt.date(2024, 5, 1)],
    [dt.datetime(2024, 5, 1, 12), dt.datetime(2024, 5, 1, 12, 0, 0, 5)],
    [dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)],
    [(1, "a"), (None, "b"), None],
    [(1.5, (NAN, "a")), (NAN, (NAN, "a"))],
    [()],
]


def as_buffer(data: bytes) -> pa.Buffer:
    return pa.py_buffer(data)


@pytest.mark.parametrize("keys", ALL_KINDS, ids=repr)
@pytest.mark.parametrize("arrive", [bytes, as_buffer])
def test_keys_of_all_kinds_are_found_again(keys: list[Any], arrive: Any) -> None:
    entries = {key: {"n": at} for at, key in enumerate(keys)}
    other = {key: Change({"n": GONE}, plain=False) for key in keys}
    plain = KeyedFragment({0: entries}, {}, [(7, {0: keys})])
    rows = pa.record_batch({"n": list(range(len(keys)))})
    slots, times = np.zeros(len(keys), np.int32), np.zeros(len(keys), np.int64)
    columns = ColumnFragment(keys, slots, rows, [], times)
    keyed_state, column_state = KeyedState(), ColumnState(1)

    keyed_state.apply(decode_keyed(arrive(encode_keyed(plain))))
    column_state.apply(decode_columns(arrive(encode_columns(columns))))

    assert same(list(keyed_state.slots[0]), keys)
    assert [keyed_state.slots[0][key]["n"] for key in keys] == list(range(len(keys)))
    assert keyed_state.idle_since([0], before=8) == {0: keys}
    assert column_state.find(keys).tolist() == list(range(len(keys)))
    [(found, _)] = column_state.batches(np.ones(1, dtype=bool))
    assert same(found, keys)

    keyed_state.apply(decode_keyed(encode_keyed(KeyedFragment({}, {0: other}))))
    gone = ColumnFragment.without_rows(keys)
    column_state.apply(decode_columns(encode_columns(gone)))

    assert keyed_state.slots == {}
    assert column_state.find(keys).tolist() == [-1] * len(keys)


# -- keyed fragments as bytes ----------------------------------------------------------------


def round_trip(fragment: KeyedFragment) -> KeyedFragment:
    return decode_keyed(encode_keyed(fragment))


@pytest.mark.parametrize(
    "writes",
    [
        [{"n": 1}, {"n": "x"}, {"n": None}],
        [{"n": 1}, {"m": 1}],
        [{"n": 1}, {"n": 1, "m": 2}],
        [{"n": 1, "m": 2}, {"n": 3, "m": True}],
        [{"n": 1, "m": 2}, {"m": 3, "n": 4}],
        [{"n": 1, "m": 2}, {"n": 3, "x": 4}],
        [{str(number): number for number in range(30)}] * 2,
    ],
)
def test_what_keys_wrote_comes_back_whatever_the_names_and_their_order(writes: list[Any]) -> None:
    plain: dict[int, dict[Any, Any]] = {3: dict(enumerate(writes)), 1: {"k": writes[-1]}}

    found = round_trip(KeyedFragment(plain)).plain

    assert same(found, plain)
    shown = [[list(new) for new in slot.values()] for slot in found.values()]
    assert shown == [[list(new) for new in slot.values()] for slot in plain.values()]


def test_tombstones_and_clears_come_back_with_the_keys_that_have_them() -> None:
    other = {
        2: {"a": Change({"n": GONE}, False, False), "b": Change({}, True, False)},
        0: {"c": Change({"n": [1]}, True, False), "d": Change({"n": [1]}, False, False)},
    }

    found = round_trip(KeyedFragment({}, other)).other

    assert found == other
    assert found[2]["a"].writes["n"] is GONE


def test_values_of_classes_that_exist_by_value_only_come_back() -> None:
    made: dict[str, Any] = {}
    exec("class Local:\n    def __init__(self, n): self.n = n", made)  # in no module at all
    local = cloudpickle.loads(cloudpickle.dumps(made["Local"]))
    other = {0: {"a": Change({"v": local(3)}, False, False)}}

    assert round_trip(KeyedFragment({}, other)).other[0]["a"].writes["v"].n == 3


def plain(writes: dict[str, Any]) -> KeyedFragment:
    return KeyedFragment({0: {"k": writes}})


def other(writes: dict[str, Any], *, cleared: bool = False) -> KeyedFragment:
    return KeyedFragment({}, {0: {"k": Change(writes, cleared, plain=False)}})


@pytest.mark.parametrize(
    ("parts", "change"),
    [
        ([other({}, cleared=True), plain({"a": 1})], Change({"a": 1}, True, False)),
        ([other({}, cleared=True), other({"a": [1]})], Change({"a": [1]}, True, False)),
        ([plain({"a": 1}), other({"b": GONE})], Change({"a": 1, "b": GONE}, False, False)),
        ([other({"a": GONE}), plain({"a": 1})], Change({"a": 1}, False, False)),
        ([plain({"a": 1}), other({"b": 2}, cleared=True)], Change({"b": 2}, True, False)),
        ([other({"a": 1}, cleared=True), other({}, cleared=True)], Change({}, True, False)),
    ],
)
def test_a_key_has_one_change_in_a_merged_fragment(
    parts: list[KeyedFragment], change: Change
) -> None:
    merged = merge_keyed(parts)

    assert merged.other == {0: {"k": change}}
    assert not merged.plain.get(0)


def test_a_merged_fragment_has_only_the_last_visit_of_a_key() -> None:
    visits = [{0: ["a", "b"]}, {0: ["b"], 1: ["c"]}, {1: ["c"]}]

    merged = merge_keyed([KeyedFragment(visits=[(t, v)]) for t, v in enumerate(visits)])

    assert merged.visits == [(0, {0: ["a"]}), (1, {0: ["b"]}), (2, {1: ["c"]})]


# -- columns as bytes ------------------------------------------------------------------------


def rows_of(keys: list[Any], rows: pa.RecordBatch, *, time: int = 0) -> ColumnFragment:
    slots = np.zeros(len(keys), np.int32)
    return ColumnFragment(keys, slots, rows, [], np.full(len(keys), time, np.int64))


def test_rows_of_keys_alone_come_back_alone_merged_and_in_part() -> None:
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    first = ColumnFragment(
        ["a", "b"], np.array([0, 1], np.int32), nothing, [], np.zeros(2, np.int64)
    )
    second = rows_of(["c"], nothing)
    state = ColumnState(SLOTS)

    state.apply(decode_columns(encode_columns(merge_columns([first, second]))), only(0))

    assert state.find(["a", "b", "c"]).tolist() == [0, -1, 1]
    assert state.snapshot(range(SLOTS)).keys == ["a", "c"]


def test_the_columns_of_merged_rows_meet_by_name() -> None:
    first = rows_of(["a"], pa.record_batch({"x": [1], "y": [2]}))
    second = rows_of(["b"], pa.record_batch({"y": [20], "x": [10]}))

    merged = merge_columns([first, second])

    assert merged.rows is not None
    assert merged.rows.to_pylist() == [{"x": 1, "y": 2}, {"x": 10, "y": 20}]


def test_merged_rows_have_types_that_hold_them_all() -> None:
    parts = [
        rows_of(["a"], pa.record_batch({"n": pa.nulls(1), "l": pa.nulls(1)})),
        rows_of(["b"], pa.record_batch({"n": [1], "l": [["x"]]})),
        rows_of(["c"], pa.record_batch({"n": [1.5], "l": pa.nulls(1)})),
    ]

    merged = merge_columns(parts)

    assert merged.rows is not None
    assert merged.rows.schema.types == [pa.float64(), pa.list_(pa.string())]
    assert merged.rows.to_pylist() == [
        {"n": None, "l": None},
        {"n": 1.0, "l": ["x"]},
        {"n": 1.5, "l": None},
    ]


def test_the_times_of_rows_come_back_whether_they_are_one_or_several() -> None:
    one, other = (rows_of([key], pa.record_batch({"n": [1]}), time=t) for t, key in enumerate("ab"))

    for fragment in (one, merge_columns([one, other])):
        found = decode_columns(encode_columns(fragment))

        assert found.times.tolist() == fragment.times.tolist()
        assert found.times.dtype == np.int64


def test_a_key_is_either_written_or_forgotten_in_merged_rows() -> None:
    row = pa.record_batch({"n": [1]})
    gone = ColumnFragment.without_rows(["a"])

    back = merge_columns([gone, rows_of(["a"], row)])
    away = merge_columns([rows_of(["a"], row), gone])

    assert (back.keys, back.forgotten) == (["a"], [])
    assert (away.keys, away.forgotten) == ([], ["a"])

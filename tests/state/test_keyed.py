from __future__ import annotations

import copy
import datetime as dt
import gc
import pickle
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.state.key_view import (
    GONE,
    Change,
    KeyView,
    View,
    close_view,
    copy_entries,
    overwrites,
)
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment
from tests.state.python_values import Basket, nested, same, untimed

SLOTS = 4
ALL = np.ones(SLOTS, dtype=bool)


def committed(state: KeyedState, change: Change | None, key: Any = "k", time: int = 0) -> None:
    """Merge what one epoch did to one key."""
    fragment = KeyedFragment(visits=[(time, {0: [key]})])
    if change is not None and change.plain:
        fragment.plain[0] = {key: change.writes}
    elif change is not None:
        fragment.other[0] = {key: change}
    state.apply(fragment)


def state_of(**entries: Any) -> KeyedState:
    state = KeyedState()
    committed(state, close_view(dict(entries), None))
    return state


def open_view(state: KeyedState) -> View:
    """The view of key "k" that a reduce function gets."""
    base = state.slots.get(0, {}).get("k")
    if base is None:
        return {}
    return KeyView(base) if "k" in state.slow_path.get(0, ()) else dict(base)


def len_or_none(entries: dict[str, Any] | None) -> str:
    return "new" if entries is None else f"{len(entries)} entries"


def view(state: KeyedState) -> KeyView:
    return KeyView(state.slots.get(0, {}).get("k"))


# -- what a reduce function sees -------------------------------------------------------------


def test_a_read_of_a_mutable_value_is_a_private_copy() -> None:
    master = state_of(seen=[1])

    view(master)["seen"].append(2)

    assert master.get(0, "k") == {"seen": [1]}


def test_a_private_copy_reaches_into_nested_containers_and_user_classes() -> None:
    master = state_of(deep={"a": [(1, [2])]}, basket=Basket(["egg"]))
    state = view(master)

    state["deep"]["a"][0][1].append(3)
    state["basket"].items.append("salt")

    assert master.get(0, "k") == {"deep": {"a": [(1, [2])]}, "basket": Basket(["egg"])}


def test_two_reads_in_one_epoch_give_the_same_copy() -> None:
    state = view(state_of(seen=[1]))

    assert state["seen"] is state["seen"]
    assert state["seen"] is state.get("seen")


def named(value: Any) -> str:
    return "change" if callable(value) else repr(value)


@pytest.mark.parametrize(
    ("before", "mutate", "after"),
    [
        ([1], lambda value: value.append(2), [1, 2]),
        ({"a": {"b": 1}}, lambda value: value["a"].update(c=2), {"a": {"b": 1, "c": 2}}),
        ({1}, lambda value: value.add(2), {1, 2}),
        (([1],), lambda value: value[0].append(2), ([1, 2],)),
        (Basket(["egg"]), lambda value: value.items.append("salt"), Basket(["egg", "salt"])),
        (bytearray(b"a"), lambda value: value.append(98), bytearray(b"ab")),
    ],
    ids=named,
)
def test_a_value_mutated_in_place_counts_as_written(before: Any, mutate: Any, after: Any) -> None:
    master = state_of(value=before)
    state = view(master)

    mutate(state["value"])
    committed(master, state.close())

    assert same(master.get(0, "k"), {"value": after})


@pytest.mark.parametrize(("before", "after"), [(1, True), (True, 1), (1, 1.0), (0.0, -0.0)])
def test_a_mutation_that_equality_cannot_see_is_kept(before: Any, after: Any) -> None:
    master = state_of(value=[before])
    state = view(master)

    state["value"][0] = after
    committed(master, state.close())

    [kept] = master.get(0, "k")["value"]
    assert repr(kept) == repr(after)


def test_reading_alone_changes_nothing() -> None:
    state = view(state_of(n=1, seen=[1, "a"], basket=Basket(["egg"])))

    assert (state["n"], state["seen"], state["basket"].items) == (1, [1, "a"], ["egg"])
    assert state.close() is None


def test_a_mutated_copy_does_not_undo_a_later_write_or_delete() -> None:
    master = state_of(a=[1], b=[1])
    state = view(master)

    for name in ("a", "b"):
        state[name].append(2)
    state["a"] = [9]
    del state["b"]
    committed(master, state.close())

    assert master.get(0, "k") == {"a": [9]}


def test_what_was_written_can_be_mutated_until_the_call_ends_and_not_after() -> None:
    master = KeyedState()
    state = KeyView(None)
    value = [1]
    inner = {"x": value}

    state["v"], state["inner"] = value, inner
    value.append(2)
    change = state.close()
    value.append(3)
    inner["y"] = [4]
    committed(master, change)
    value.append(5)

    assert master.get(0, "k") == {"v": [1, 2], "inner": {"x": [1, 2]}}


def test_a_copy_that_the_user_kept_does_not_reach_the_committed_state() -> None:
    master = state_of(seen=[1])
    state = view(master)
    kept = state["seen"]
    kept.append(2)
    committed(master, state.close())

    kept.append(3)

    assert master.get(0, "k") == {"seen": [1, 2]}


def test_a_view_that_the_user_kept_does_not_reach_the_fragment() -> None:
    master = KeyedState()
    state = KeyView(None)
    state["n"] = 1
    change = state.close()

    state["n"] = 2
    state["m"] = 3
    committed(master, change)

    assert master.get(0, "k") == {"n": 1}


def test_a_look_up_from_outside_is_a_copy() -> None:
    master = state_of(seen=[1])

    found = master.get(0, "k")
    assert found is not None
    found["seen"].append(2)
    found["more"] = 1

    assert master.get(0, "k") == {"seen": [1]}


def test_deleted_entries_are_gone_for_good() -> None:
    master = state_of(a=1, b=[2])
    state = view(master)

    del state["a"]
    assert "a" not in state and list(state) == ["b"] and len(state) == 1
    assert state.get("a", "none") == "none"
    with pytest.raises(KeyError):
        state["a"]
    with pytest.raises(KeyError):
        del state["a"]
    committed(master, state.close())

    assert master.get(0, "k") == {"b": [2]}


def test_an_entry_can_be_written_again_after_it_was_deleted() -> None:
    master = state_of(a=1)
    state = view(master)

    del state["a"]
    state["a"] = 2
    committed(master, state.close())

    assert master.get(0, "k") == {"a": 2}


def test_clear_hides_everything_older_and_keeps_what_is_written_after() -> None:
    master = state_of(a=1, b=[2])
    state = view(master)
    state["b"].append(3)
    state["c"] = 4

    state.clear()
    assert dict(state) == {} and "b" not in state and state.get("b") is None
    state["a"] = 5
    assert dict(state) == {"a": 5}
    committed(master, state.close())

    assert master.get(0, "k") == {"a": 5}


def test_clear_alone_forgets_the_key() -> None:
    master = state_of(a=1)
    state = view(master)

    state.clear()
    committed(master, state.close())

    assert master.get(0, "k") is None
    assert master.count(ALL) == 0


def test_deleting_the_last_entry_forgets_the_key() -> None:
    master = state_of(a=1)
    state = view(master)

    del state["a"]
    committed(master, state.close())

    assert master.count(ALL) == 0


def test_an_entry_written_and_deleted_after_clear_leaves_nothing() -> None:
    master = state_of(a=1)
    state = view(master)

    state.clear()
    state["a"] = 2
    del state["a"]
    committed(master, state.close())

    assert master.count(ALL) == 0


def test_state_can_be_written_while_it_is_iterated() -> None:
    state = view(state_of(a=1, b=2, c=3))

    for name in state:
        state["c"] = 0
        state[f"{name}{name}"] = 1
        del state[name]

    assert sorted(state) == ["aa", "bb", "cc"]


def test_entries_come_in_the_order_in_which_they_were_first_written() -> None:
    state = view(state_of(a=1, b=2))

    state["c"] = 3
    state["a"] = 4

    assert list(state) == ["a", "b", "c"]


def test_the_usual_methods_of_a_mapping_work() -> None:
    master = state_of(n=1, seen=[1])
    state = view(master)

    state.setdefault("seen", []).append(2)
    state.setdefault("more", []).append(3)
    state.update(n=state.pop("n") + 1)
    committed(master, state.close())

    assert master.get(0, "k") == {"n": 2, "seen": [1, 2], "more": [3]}


@pytest.mark.parametrize("base", [None, {"n": 1}])
def test_scalars_of_numpy_and_pandas_are_stored_as_plain_values(base: Any) -> None:
    views: list[View] = [KeyView(base), {} if base is None else dict(base)]
    for view in views:
        view["n"], view["x"] = np.int64(2), np.float32(0.5)

        change = close_view(view, base)

        assert change is not None and change == Change({"n": 2, "x": 0.5})
        assert [type(value) for value in change.writes.values()] == [int, float]
    view = {"at": pd.Timestamp("2024-02-29"), "gone": pd.NaT}
    change = close_view(view, None)
    assert change is not None
    shown = copy_entries(change.writes)
    assert shown == {"at": dt.datetime(2024, 2, 29), "gone": None}
    assert type(shown["at"]) is dt.datetime


def test_none_is_a_value_like_any_other() -> None:
    master = state_of(a=None)
    state = view(master)

    assert "a" in state and state["a"] is None
    state["b"] = None
    committed(master, state.close())

    assert master.get(0, "k") == {"a": None, "b": None}


def test_the_tombstone_stays_the_one_it_is_when_pickled() -> None:
    assert pickle.loads(pickle.dumps(GONE)) is GONE


# -- simple state is handed out as a dictionary ----------------------------------------------


def after(before: dict[str, Any] | None, change: Any) -> Any:
    """What one call leaves of a key's state."""
    master = KeyedState() if before is None else state_of(**before)
    base = master.slots.get(0, {}).get("k")
    opened = open_view(master)
    change(opened)
    committed(master, close_view(opened, base))
    return master.get(0, "k")


SIMPLE = {"a": 1, "b": "x"}
WITH_LIST = {"a": 1, "b": "x", "l": [1]}
MANY = {f"n{number}": number for number in range(40)}


@pytest.mark.parametrize("before", [None, SIMPLE, WITH_LIST, MANY], ids=len_or_none)
@pytest.mark.parametrize(
    "change",
    [
        lambda state: None,
        lambda state: state.update(a=2, c=3),
        lambda state: state.pop("a", None),
        lambda state: state.clear(),
        lambda state: (state.clear(), state.update(a=5)),
        lambda state: (state.pop("a", None), state.update(a=1)),
        lambda state: state.update(a=True),
        lambda state: state.update(a=1.0, b=None),
        lambda state: state.setdefault("l", []).append(2),
        lambda state: state.update(dict(state)),
        lambda state: state.__ior__({"a": 7}),
        lambda state: state.update(m=(state | {"x": 1})["x"], n=len(state.copy())),
        lambda state: [state.pop(name) for name in list(state)],
    ],
)
def test_whatever_is_done_to_state_is_what_happens_to_a_dictionary(
    before: dict[str, Any] | None, change: Any
) -> None:
    truth = copy.deepcopy(before or {})
    change(truth)

    found = after(before, change)

    assert same(found or {}, truth)
    assert found != {}


def test_a_dictionary_that_the_user_kept_does_not_reach_the_committed_state() -> None:
    for before in (None, SIMPLE, WITH_LIST):
        kept: list[Any] = []
        value = [1]

        def keep(state: Any, value: list[int] = value, kept: list[Any] = kept) -> None:
            state["v"] = value
            kept.append(state)

        master = KeyedState() if before is None else state_of(**before)
        base = master.slots.get(0, {}).get("k")
        opened = open_view(master)
        keep(opened)
        change = close_view(opened, base)
        kept[0]["v"] = "changed"
        kept[0]["w"] = "new"
        value.append(2)
        committed(master, change)
        kept[0]["v"] = "again"

        assert master.get(0, "k") == {**(before or {}), "v": [1]}


def test_state_given_out_as_a_value_is_what_it_holds() -> None:
    for before in (SIMPLE, WITH_LIST):
        master = state_of(**before)
        base = master.slots[0]["k"]
        opened = open_view(master)
        opened["a"] = 2
        close_view(opened, base)

        given = pickle.loads(pickle.dumps(opened))

        assert same(given, {**before, "a": 2})


# -- against a dictionary, over several epochs -----------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])


class StateMachine(RuleBasedStateMachine):
    """Whatever is done to the state, epoch by epoch, is what would happen to a dictionary."""

    @initialize()
    def start(self) -> None:
        self.master = KeyedState()
        self.truth: dict[str, Any] = {}
        self.begin()

    def begin(self) -> None:
        self.before = copy.deepcopy(self.truth)
        self.base = self.master.slots.get(0, {}).get("k")
        self.state = self.open()

    def open(self) -> View:
        return open_view(self.master)

    def close(self) -> Change | None:
        return close_view(self.state, self.base)

    @rule(name=NAMES, value=nested)
    def write(self, name: str, value: Any) -> None:
        self.state[name] = value
        self.truth[name] = copy.deepcopy(value)

    @rule(name=NAMES)
    def read(self, name: str) -> None:
        assert (name in self.state) == (name in self.truth)
        assert same(self.state.get(name), self.truth.get(name))

    @rule(name=NAMES, value=nested)
    def mutate(self, name: str, value: Any) -> None:
        if isinstance(self.truth.get(name), list):
            self.state[name].append(copy.deepcopy(value))
            self.truth[name].append(value)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.truth:
            del self.state[name]
            del self.truth[name]

    @rule()
    def clear(self) -> None:
        self.state.clear()
        self.truth.clear()

    @rule()
    def commit(self) -> None:
        committed(self.master, self.close())
        self.begin()

    @rule()
    def fail(self) -> None:
        self.close()
        self.truth = copy.deepcopy(self.before)
        self.begin()

    @invariant()
    def the_committed_state_is_as_it_was(self) -> None:
        assert same(self.master.get(0, "k") or {}, self.before)
        assert sorted(self.state) == sorted(self.truth)


class OnlyViews(StateMachine):
    """The same where no state is simple enough to be handed out as a dictionary."""

    def open(self) -> View:
        return KeyView(self.base)


TestStateAgainstADictionary = StateMachine.TestCase
TestViewsAgainstADictionary = OnlyViews.TestCase
for case in (TestStateAgainstADictionary, TestViewsAgainstADictionary):
    case.settings = settings(deadline=None, max_examples=50, stateful_step_count=20)


def test_the_collector_has_nothing_to_walk_in_the_values_of_a_state() -> None:
    state = state_of(plain=1, seen=[1, [2]], counts={"a": {"b": 1}}, basket=Basket(["egg"]))

    entries = state.slots[0]["k"]

    assert not gc.is_tracked(entries)
    assert not any(map(gc.is_tracked, entries.values()))


# -- keys that were not touched for long -----------------------------------------------------


def visited(state: KeyedState, keys: list[Any], time: int, *, slot: int = 0) -> None:
    writes = {slot: {key: {"n": 1} for key in keys}}
    state.apply(KeyedFragment(writes, {}, [(time, {slot: list(keys)})]))


def test_keys_are_idle_from_their_last_visit_on() -> None:
    state = KeyedState()
    visited(state, ["a", "b"], 10)
    visited(state, ["a"], 20)

    assert state.idle_since([0], before=10) == {}
    assert state.idle_since([0], before=11) == {0: ["b"]}
    assert state.idle_since([0], before=21) == {0: ["b", "a"]}


def test_only_the_slots_that_are_asked_for_count() -> None:
    state = KeyedState()
    visited(state, ["a"], 10, slot=0)
    visited(state, ["b"], 10, slot=3)

    assert state.idle_since([3, 4], before=11) == {3: ["b"]}


def test_a_key_without_state_is_never_idle() -> None:
    state = KeyedState()
    committed(state, None, "a", 10)
    visited(state, ["b"], 10)
    committed(state, Change({}, cleared=True, plain=False), "b", 20)

    assert state.idle_since([0], before=100) == {}


@untimed
@given(st.lists(st.sets(st.integers(0, 5)), max_size=12), st.integers(0, 13))
def test_idle_keys_are_those_of_a_plain_table_of_last_visits(
    epochs: list[set[int]], before: int
) -> None:
    state = KeyedState()
    last: dict[int, int] = {}
    for time, keys in enumerate(epochs):
        visited(state, sorted(keys), time)
        last.update(dict.fromkeys(keys, time))

    idle = state.idle_since([0], before).get(0, [])

    assert sorted(idle) == sorted(key for key, time in last.items() if time < before)


def test_memory_of_last_visits_is_bounded_by_keys_and_not_by_visits() -> None:
    state = KeyedState()
    visited(state, ["rests"], 0)
    tracemalloc.start()
    try:
        for time in range(1, 201):
            visited(state, ["busy"], time)
        before, _ = tracemalloc.get_traced_memory()
        for time in range(201, 2_201):
            visited(state, ["busy"], time)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 20_000
    assert state.idle_since([0], before=2_200) == {0: ["rests"]}


# -- slots as copies: a part of a fragment, a snapshot, and nothing any more -----------------


def only(*slots: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(SLOTS), slots)


MANY_ENTRIES = {str(number): number for number in range(40)}


def some_of_everything() -> KeyedFragment:
    """Plain keys, odd keys and visits in two slots."""
    return KeyedFragment(
        {0: {"a": {"n": 1}, "m": dict(MANY_ENTRIES)}, 1: {"b": {"n": 2}}},
        {0: {"l": Change({"v": [1]}, plain=False)}, 1: {"k": Change({"v": [2]}, plain=False)}},
        [(5, {0: ["a", "m", "l"], 1: ["b", "k"]})],
    )


def test_of_a_fragment_only_the_part_of_the_given_slots_arrives() -> None:
    state, part = KeyedState(), KeyedFragment({0: {"x": {"n": 1}}})

    state.apply(some_of_everything(), only(1, 2))

    assert state.slots == {1: {"b": {"n": 2}, "k": {"v": [2]}}}
    assert state.slow_path == {1: {"k"}}
    assert state.idle_since(range(SLOTS), before=6) == {1: ["b", "k"]}
    state.apply(part, only())
    assert list(state.slots) == [1]


def test_slots_that_are_not_given_stay_as_they_are() -> None:
    state = KeyedState()
    state.apply(some_of_everything())

    forgets = {0: {"m": Change({}, cleared=True, plain=False)}}
    state.apply(KeyedFragment({0: {"a": {"n": 9}}}, forgets, [(9, {0: ["a", "m"]})]), only(1, 2))

    assert state.slots[0] == {"a": {"n": 1}, "m": MANY_ENTRIES, "l": {"v": [1]}}
    assert state.idle_since([0], before=6) == {0: ["a", "m", "l"]}


def test_a_state_whose_slots_were_all_dropped_is_as_new() -> None:
    state = KeyedState()
    state.apply(some_of_everything())

    state.drop(only(1))
    assert state.slow_path == {0: {"m", "l"}}
    state.drop(only(0, 3))

    assert vars(state) == vars(KeyedState())


def test_a_state_whose_keys_were_all_forgotten_is_as_new() -> None:
    state = KeyedState()
    state.apply(some_of_everything())
    gone = {
        slot: {key: Change({}, cleared=True, plain=False) for key in keys}
        for slot, keys in state.slots.items()
    }

    state.apply(KeyedFragment({}, gone, [(9, {slot: list(keys) for slot, keys in gone.items()})]))

    assert vars(state) == vars(KeyedState())


def test_keys_and_items_are_those_of_the_given_slots() -> None:
    state = KeyedState()
    state.apply(some_of_everything())

    assert [state.count(only(*slots)) for slots in ((), (0,), (1, 2), (0, 1, 2, 3))] == [0, 3, 2, 5]
    assert dict(state.items(only(1, 3))) == {"b": {"n": 2}, "k": {"v": [2]}}


def test_a_snapshot_has_the_given_slots_and_does_not_change_with_the_state() -> None:
    state, copied = KeyedState(), KeyedState()
    state.apply(some_of_everything())

    snapshot = state.snapshot(range(1, 3))
    state.apply(
        KeyedFragment({1: {"b": {"n": 9, "more": 1}, "k": {"v": 9}}}, {}, [(7, {1: ["b"]})])
    )
    state.drop(only(1))
    copied.apply(snapshot)

    assert copied.slots == {1: {"b": {"n": 2}, "k": {"v": [2]}}}
    assert copied.slow_path == {1: {"k"}}
    assert copied.idle_since(range(SLOTS), before=6) == {1: ["b", "k"]}


def test_a_snapshot_of_slots_that_hold_nothing_is_empty() -> None:
    assert KeyedState().snapshot(range(SLOTS)) == KeyedFragment()


def test_a_fragment_that_was_applied_does_not_change_with_the_state() -> None:
    state, fragment = KeyedState(), some_of_everything()

    state.apply(fragment)
    state.apply(KeyedFragment({0: {"a": {"n": 7}, "l": {"w": 8}}, 1: {"new": {"n": 1}}}))
    state.apply(KeyedFragment({}, {1: {"b": Change({"n": GONE}, plain=False)}}, [(8, {1: ["b"]})]))

    assert fragment == some_of_everything()


def test_a_key_is_on_the_slow_path_while_it_has_a_mutable_value_or_many_entries() -> None:
    state = KeyedState()
    state.apply(some_of_everything())

    state.apply(KeyedFragment({0: {"l": {"v": 1}}}))
    fewer = Change(dict.fromkeys(list(MANY_ENTRIES)[3:], GONE), plain=False)
    state.apply(KeyedFragment({}, {0: {"m": fewer}}))

    assert state.slow_path == {1: {"k"}}
    state.apply(KeyedFragment({0: {"a": dict(MANY_ENTRIES)}}))
    assert state.slow_path == {0: {"a"}, 1: {"k"}}


ENTRIES = st.dictionaries(
    st.sampled_from("abc"), st.integers(0, 2) | st.text(max_size=1) | st.just([1])
)


BASES = st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), min_size=1)


@given(base=BASES, view=ENTRIES)
def test_plain_overwrites_are_what_closing_a_view_finds(base: Any, view: Any) -> None:
    writes = overwrites(view, base)

    change = close_view(view, base)
    if writes is None:
        assert base is None or change is None or not change.plain or view.keys() != base.keys()
        assert base is not None or (change is not None and not change.plain)
    else:
        assert change is None or change.plain
        assert writes == ({} if change is None else change.writes)

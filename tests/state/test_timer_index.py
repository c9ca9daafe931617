"""Timers in keyed state against a plain dictionary: what is due, copies, snapshots, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.ring.keys import NAN
from millstream.state.key_view import GONE, Change
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.spill import Spilling, SpillingState
from millstream.state.timer_index import TimerIndex
from millstream.state.timers import TimeDomain, read_entries, timer_entry
from tests.state.test_spill import LimitedTable

SLOTS = 4
KEYS = [None, NAN, *"abcdefg"]
NAMES = ("x", "y")
DOMAINS: tuple[TimeDomain, ...] = ("processing", "event")

Waiting = dict[tuple[Any, TimeDomain, str], int]


def slot_of(key: Any) -> int:
    return 0 if key is None or key != key else ord(key) % SLOTS


steps = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.sampled_from(DOMAINS),
        st.sampled_from(NAMES),
        st.one_of(st.none(), st.integers(0, 20)),
        st.booleans(),
    ),
    max_size=8,
)
epochs = st.lists(steps, max_size=8)


def fragment_of(given: list[Any]) -> KeyedFragment:
    """The changes that set (or, without a time, cancel) timers; some clear all that a key has."""
    fragment = KeyedFragment()
    changes: dict[Any, Change] = {}
    for key, time, name, at, clears in given:
        writes = {timer_entry(time, name): GONE if at is None else at}
        change = Change(writes, clears, plain=at is not None and not clears)
        changes[key] = changes[key].then(change) if key in changes else change
    for key, change in changes.items():
        fragment.add(slot_of(key), key, change)
    return fragment


def expect(waiting: Waiting, given: list[Any]) -> None:
    for key, time, name, at, clears in given:
        if clears:
            for known in [known for known in waiting if known[0] is key]:
                del waiting[known]
        waiting.pop((key, time, name), None)
        if at is not None:
            waiting[key, time, name] = at


def due_in(index: TimerIndex, until: int) -> Waiting:
    found: Waiting = {}
    for time in DOMAINS:
        for slot, at, key, entry in index.due(range(SLOTS), time, until):
            assert slot == slot_of(key) and entry[1] == time
            assert (key, time, entry[2]) not in found
            found[key, time, entry[2]] = at
    return found


def due_of(waiting: Waiting, until: int) -> Waiting:
    return {known: at for known, at in waiting.items() if at <= until}


def timed() -> tuple[KeyedState, TimerIndex]:
    state = KeyedState(read_entries)
    return state, state.index_timers()


@given(epochs=epochs, until=st.integers(-1, 21), cut=st.integers(0, 8))
def test_what_is_due_follows_the_entries_on_every_copy(
    epochs: list[Any], until: int, cut: int
) -> None:
    state, index = timed()
    copy, of_copy = timed()
    waiting: Waiting = {}
    for number, step in enumerate(epochs):
        fragment = fragment_of(step)
        state.apply(fragment)
        expect(waiting, step)
        if number == cut:  # the copy begins with a snapshot, and may be sent what it has
            copy.apply(copy.decode(state.encode(state.snapshot(range(SLOTS)))))
        if number >= cut:
            copy.apply(copy.decode(state.encode(fragment)))

        assert due_in(index, until) == due_of(waiting, until)
        assert due_in(index, 99) == waiting
        if number >= cut:
            assert due_in(of_copy, until) == due_of(waiting, until)


@given(epochs=epochs, until=st.integers(-1, 21))
def test_merged_fragments_have_the_same_timers(epochs: list[Any], until: int) -> None:
    state, index = timed()
    waiting: Waiting = {}
    for step in epochs:
        expect(waiting, step)
    state.apply(state.merge([fragment_of(step) for step in epochs]))

    assert due_in(index, until) == due_of(waiting, until)


@given(epochs=epochs, until=st.integers(-1, 21))
def test_timers_of_keys_on_disk_are_due_like_others(epochs: list[Any], until: int) -> None:
    spilling = Spilling(0, lambda job: LimitedTable())
    state = SpillingState(spilling, LimitedTable(), read_entries)
    index = state.index_timers()
    waiting: Waiting = {}
    for step in epochs:
        state.apply(fragment_of(step))
        expect(waiting, step)
        state.spill(1.0)

    assert due_in(index, until) == due_of(waiting, until)


def test_dropped_slots_have_no_timers() -> None:
    state, index = timed()
    state.apply(fragment_of([(key, "event", "x", 5, False) for key in "abcd"]))
    state.drop(np.arange(SLOTS) != slot_of("b"))

    assert due_in(index, 9) == {("b", "event", "x"): 5}


def test_timers_that_move_take_no_more_memory_than_those_that_wait() -> None:
    state, index = timed()
    for time in range(5_000):
        state.apply(
            fragment_of([("a", "processing", "x", time, False), ("b", "event", "y", 9, False)])
        )

    assert len(index) <= 20


def test_a_million_timers_that_wait_are_not_visited() -> None:
    state, index = timed()
    entry = timer_entry("processing", "x")
    for slot in range(SLOTS):
        keys = {f"{slot}-{n}": {entry: 10**9 + n} for n in range(2_000)}
        state.apply(KeyedFragment({slot: keys}))
    [of_clock] = [index._domains["processing"]]
    of_clock.slots.clear()  # whoever visits one fails

    assert list(index.due(range(SLOTS), "processing", 10**9 - 1)) == []

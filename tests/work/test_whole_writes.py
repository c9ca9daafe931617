"""Writes of all entries of a key, and keys with one entry: the same state in every copy."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.spill import Spilling
from tests.state.python_values import untimed
from tests.state.test_spill import LimitedTable
from tests.work.running import ALL, Running, blocks_of_pairs, job_of


def write(key: str, values: list[tuple[str, Any]], state: Any) -> None:
    for name, value in values:
        if value is None:
            state.pop(name, None)
        else:
            state[name] = value


ENTRY = st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from([1, 2, True, "x", None, [1]]))
MANY = st.just([(f"n{number}", number) for number in range(20)]).flatmap(st.sampled_from)
EPOCH = st.lists(st.tuples(st.sampled_from(["k", "l", "m"]), ENTRY | MANY), max_size=6)


def entries_of(state: KeyedState) -> dict[Any, list[tuple[str, str]]]:
    """The entries of each key in their order, with their types."""
    return {
        key: [(name, repr(value)) for name, value in entries.items()]
        for key, entries in state.items(ALL)
    }


def as_stored_before(fragment: KeyedFragment, state: KeyedState) -> bytes:
    """A record of a version that knew neither of whole slots nor of singles."""
    parts = pickle.loads(state.encode(fragment.expanded()))
    return pickle.dumps(parts[:4])


@untimed
@given(st.lists(EPOCH, max_size=6))
def test_copies_of_every_kind_have_the_same_entries(
    epochs: list[list[tuple[str, tuple[str, Any]]]],
) -> None:
    running = Running(job_of(write), partitions=1, tasks=1)
    owner = running.operator.state
    assert isinstance(owner, KeyedState)
    copy, restored, merged = KeyedState(), KeyedState(), KeyedState()
    expected: dict[str, dict[str, Any]] = {}
    # One that has singles of another name, and one with most of its keys on disk.
    mixed, spilled = KeyedState(), Spilling(300, lambda _: LimitedTable()).state(0)
    mixed.apply(KeyedFragment(singles={slot: {"z": 1} for slot in range(len(ALL))}, name="z"))
    fragments: list[KeyedFragment] = []
    for epoch in epochs:
        blocks = blocks_of_pairs(running.job, epoch) if epoch else []
        (fragment,) = running.fragments(blocks, 0)
        fragments.append(fragment)
        owner.apply(fragment)
        copy.apply(copy.decode(copy.encode(fragment)))
        mixed.apply(fragment)
        spilled.apply(fragment)
        restored.apply(restored.decode(as_stored_before(fragment, restored)))
        for key, entry in epoch:
            write(key, [entry], expected.setdefault(key, {}))
    merged.apply(merged.decode(merged.encode(merged.merge(fragments))))
    snapshot = KeyedState()
    snapshot.apply(owner.snapshot(range(len(ALL))))

    found = entries_of(owner)
    assert [entries_of(other) for other in (copy, restored, snapshot)] == [found] * 3
    assert dict(merged.items(ALL)) == dict(owner.items(ALL)) == dict(spilled.items(ALL))
    assert entries_of(mixed) == {**found, "z": [("z", "1")]}
    for key, entries in found.items():
        for state in (owner, mixed, spilled):
            (got,) = [r for r in (state.get(slot, key) for slot in range(len(ALL))) if r]
            assert [(name, repr(value)) for name, value in got.items()] == entries
    assert {key: dict(entries) for key, entries in found.items()} == {
        key: {name: repr(value) for name, value in entries.items()}
        for key, entries in expected.items()
        if entries
    }


def test_a_committed_state_is_not_changed_by_later_epochs_through_its_fragments() -> None:
    running = Running(job_of(write), partitions=1, tasks=1)
    values = [("k", ("a", 1)), ("k", ("b", 1)), ("l", ("a", 1))]
    (first,) = running.fragments(blocks_of_pairs(running.job, values), 0)
    before = running.operator.state.encode(first)

    running.operator.state.apply(first)
    running.epoch([("k", ("a", 2)), ("l", ("a", 2)), ("l", ("b", 3))])

    assert first.whole
    assert first.singles
    assert running.operator.state.encode(first) == before
    assert running.state() == {"k": {"a": 2, "b": 1}, "l": {"a": 2, "b": 3}}

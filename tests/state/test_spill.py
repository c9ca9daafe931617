"""State that spills is the state that does not: the same to everybody who looks at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.ring.keys import NAN
from millstream.ring.masks import SlotMask
from millstream.state.key_view import Change, Entries, KeyView, close_view
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment, decode_keyed, encode_keyed, merge_keyed
from millstream.state.spill import ColdKeys, Spilling, SpillingState
from millstream.stores.rocksdb.cold import ColdTable
from millstream.stores.store import StoreFullError

SLOTS = 4
TINY = 1500  # a handful of keys
POOLS: tuple[tuple[Any, ...], ...] = (
    (None, "None", *(f"key {n}" for n in range(14))),
    (None, NAN, *(n / 2 for n in range(14))),
    tuple((name, number) for name in ("a", NAN, None) for number in range(5)),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdTable]:
    table = ColdTable(str(tmp_path_factory.mktemp("cold")), TINY)
    yield table
    table.close()


_jobs = count()


def tables(table: ColdTable) -> Callable[[int], ColdKeys]:
    """Tables of jobs that were never used before."""
    return lambda job: table.of(next(_jobs))


def mask(*slots: int) -> SlotMask:
    chosen = np.zeros(SLOTS, dtype=bool)
    chosen[list(slots)] = True
    return chosen


EVERYWHERE = mask(*range(SLOTS))


def changed(
    state: KeyedState, work: Mapping[Any, tuple[int, Callable[[Any], None]]], time: int | None
) -> KeyedFragment:
    """The fragment of a unit: what functions do to their keys."""
    slots = [slot for slot, _ in work.values()]
    masters = state.lookups(work, slots)
    fragment = KeyedFragment()
    for key, (slot, act) in work.items():
        master = masters.get(slot)
        base = None if master is None else master.get(key)
        slow = key in state.slow_path.get(slot, ())
        view: Any = {} if base is None else KeyView(base) if slow else base.copy()
        act(view)
        change = close_view(view, base)
        if change is not None and change.plain:
            fragment.plain.setdefault(slot, {})[key] = change.writes
        elif change is not None:
            fragment.other.setdefault(slot, {})[key] = change
    if time is not None:
        touched: dict[int, list[Any]] = {}
        for key, (slot, _) in work.items():
            touched.setdefault(slot, []).append(key)
        fragment.visits.append((time, touched))
    return fragment


def filled(state: KeyedState, keys: Iterable[Any], size: int = 10) -> None:
    """Give keys of slot 0 a text each, one fragment for each."""
    for key in keys:
        state.apply(KeyedFragment({0: {key: {"text": "x" * size}}}))


def contents(fragment: KeyedFragment) -> Any:
    """A fragment, without the order of its keys."""
    plain = {slot: keyed(writes) for slot, writes in fragment.plain.items() if writes}
    other = {slot: keyed(changes) for slot, changes in fragment.other.items() if changes}
    return plain, other, sorted(keyed(dict(fragment.visits)))


def keyed(table: Mapping[Any, Any]) -> list[str]:
    return sorted(f"{key!r}: {value!r}" for key, value in table.items())


@dataclass
class Twins:
    """A state that spills and one that does not, treated alike."""

    spilling: Spilling
    time: int = 0
    states: list[KeyedState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = [self.spilling.state(0), KeyedState()]

    def work(
        self, work: Mapping[Any, tuple[int, Callable[[Any], None]]], slots: SlotMask | None
    ) -> None:
        self.time += 1
        fragments = [changed(state, work, self.time) for state in self.states]
        assert contents(fragments[0]) == contents(fragments[1])
        for state, fragment in zip(self.states, fragments, strict=True):
            state.apply(fragment, slots)

    def install(self, slots: range) -> None:
        """Make slots anew from their snapshot, as it travels."""
        chosen = mask(*slots)
        for state in self.states:
            delta = encode_keyed(merge_keyed([state.snapshot(slots)]))
            state.drop(chosen)
            state.apply(decode_keyed(delta), chosen)

    def check(self, pool: Iterable[Any]) -> None:
        mine, twin = self.states
        for slot in range(SLOTS):
            assert mine.count(mask(slot)) == twin.count(mask(slot))
            assert mine.counts(mask(slot)).tolist() == [len(dict(twin.items(mask(slot))))]
            assert keyed(dict(mine.items(mask(slot)))) == keyed(dict(twin.items(mask(slot))))
            for key in pool:
                assert mine.get(slot, key) == twin.get(slot, key)
        known = dict.fromkeys(pool)  # which finds a NaN only if it is the one of all keys
        assert all(key in known for key, _ in mine.items(EVERYWHERE))
        everything = range(SLOTS)
        assert contents(mine.snapshot(everything)) == contents(twin.snapshot(everything))
        for before in (self.time - 2, self.time + 1):
            idle = [state.idle_since(everything, before) for state in self.states]
            assert [{s: Counter(keys) for s, keys in i.items()} for i in idle[:1]] == [
                {s: Counter(keys) for s, keys in i.items()} for i in idle[1:]
            ]
        assert self.spilling.weight <= self.spilling.limit
        assert self.spilling.problem is None


ACTS: tuple[Callable[[Any], None], ...] = (
    lambda view: view.update(n=view.get("n", 0) + 1),
    lambda view: view.update(m=[*view.get("m", []), 1]),
    lambda view: view.setdefault("m", []).append(2),
    lambda view: view.pop("n", None),
    lambda view: view.clear(),
    lambda view: view.get("n"),
    lambda view: view.update({f"entry {n}": n for n in range(18)}),
)


@settings(
    max_examples=settings().max_examples * 3 // 2,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_spilling_is_invisible_to_readers(table: ColdTable, data: st.DataObject) -> None:
    pool = data.draw(st.sampled_from(POOLS))
    slot_of = {key: at % SLOTS for at, key in enumerate(pool)}
    twins = Twins(Spilling(data.draw(st.sampled_from([1, TINY])), tables(table)))
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["work", "work", "work", "void", "drop", "install"]))
        if step in ("work", "void"):
            chosen = data.draw(st.lists(st.sampled_from(range(len(pool))), unique=True))
            work = {
                pool[at]: (slot_of[pool[at]], data.draw(st.sampled_from(ACTS))) for at in chosen
            }
            if step == "void":  # a try that is not committed
                twins.states[0].lookups(work, [slot for slot, _ in work.values()])
            else:
                twins.work(work, data.draw(st.sampled_from([None, EVERYWHERE, mask(0, 2)])))
        elif step == "drop":
            for state in twins.states:
                state.drop(mask(1, 2))
        else:
            twins.install(range(1, 3))
        twins.check(pool)


def test_the_keys_touched_longest_ago_go_first(table: ColdTable) -> None:
    spilling = Spilling(2000, tables(table))  # five of these keys
    state = spilling.state(0)
    filled(state, range(4))
    assert spilling.cold == 0

    filled(state, [0])
    filled(state, range(10, 12))

    assert spilling.cold > 0
    assert 0 in state.slots[0]
    assert 1 not in state.slots[0]
    assert state.count(mask(0)) == 6


def test_a_key_is_cold_or_in_memory(table: ColdTable) -> None:
    state = Spilling(TINY, tables(table)).state(0)
    filled(state, range(20))
    assert state.cold > 10
    cold = next(key for key in range(20) if key not in state.slots[0])

    found = state.lookups([cold], [0])[0].get(cold)

    assert found == {"text": "x" * 10}
    assert cold not in state.slots[0]
    state.apply(KeyedFragment())
    assert cold in state.slots[0]
    assert len(list(state.items(mask(0)))) == state.count(mask(0)) == 20
    assert len(state.slots[0]) + state.cold == 20


def test_jobs_share_the_limit(table: ColdTable) -> None:
    spilling = Spilling(TINY, tables(table))
    one, two = spilling.state(0), spilling.state(1)

    filled(one, range(4))
    filled(two, range(4))

    assert one.cold and two.cold
    assert spilling.cold == one.cold + two.cold
    assert one.count(EVERYWHERE) == two.count(EVERYWHERE) == 4


def test_large_values_count_for_what_they_take(table: ColdTable) -> None:
    spilling = Spilling(100_000, tables(table))
    state = spilling.state(0)

    filled(state, range(3), size=60_000)

    assert state.cold == 2
    assert spilling.weight > 60_000


def test_slots_with_few_keys_give_as_well(table: ColdTable) -> None:
    spilling = Spilling(20_000, tables(table))
    state = spilling.state(0)

    state.apply(KeyedFragment({slot: {f"key {slot}": {"n": 1}} for slot in range(1000)}))

    assert 900 < state.cold < 1000
    assert 0 < spilling.weight <= 20_000


def test_a_mutable_value_is_lent_also_when_its_key_is_cold(table: ColdTable) -> None:
    state = Spilling(1, tables(table)).state(0)
    state.apply(KeyedFragment(other={0: {"k": Change({"m": [1]}, plain=False)}}))
    assert state.cold == 1
    assert not state.slow_path

    base = state.lookups(["k"], [0])[0].get("k")

    assert "k" in state.slow_path[0]
    view = KeyView(base)
    view["m"].append(2)
    assert base == {"m": [1]}
    state.drop(mask(0))
    assert not state.slow_path


class FullTable:
    """A table on a disk without space."""

    def put(self, entries: Mapping[int, Mapping[Any, Entries]]) -> None:
        raise StoreFullError("no space")

    def get(self, keys: Mapping[int, Iterable[Any]]) -> dict[int, dict[Any, Entries]]:
        raise AssertionError("there is nothing cold")

    def remove(self, keys: Mapping[int, Iterable[Any]]) -> None:
        raise StoreFullError("no space")

    def drop(self, slots: Iterable[int]) -> None:
        raise AssertionError("there is nothing cold")

    def items(self, slot: int) -> Iterator[tuple[Any, Entries]]:
        raise AssertionError("there is nothing cold")


def test_keys_stay_in_memory_when_the_table_takes_no_more() -> None:
    spilling = Spilling(TINY, lambda job: FullTable())
    state = spilling.state(0)

    filled(state, range(20))

    assert isinstance(spilling.problem, StoreFullError)
    assert state.count(mask(0)) == len(state.slots[0]) == 20
    assert state.snapshot(range(1)).plain[0].keys() == set(range(20))


class LimitedTable:
    """A table on a disk that may be full: then nothing can be removed, and half of it is added."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[Any, Entries]] = {}
        self.is_full = False

    def put(self, entries: Mapping[int, Mapping[Any, Entries]]) -> None:
        for slot, of_slot in entries.items():
            part = len(of_slot) // 2 if self.is_full else None
            copies = {key: dict(found) for key, found in list(of_slot.items())[:part]}
            self.rows.setdefault(slot, {}).update(copies)
        self._require_space()

    def get(self, keys: Mapping[int, Iterable[Any]]) -> dict[int, dict[Any, Entries]]:
        found = {s: {k: self.rows[s][k] for k in ks if k in self.rows[s]} for s, ks in keys.items()}
        return {slot: here for slot, here in found.items() if here}

    def remove(self, keys: Mapping[int, Iterable[Any]]) -> None:
        self._require_space()
        for slot, of_slot in keys.items():
            for key in of_slot:
                self.rows[slot].pop(key, None)

    def drop(self, slots: Iterable[int]) -> None:
        self._require_space()
        for slot in slots:
            self.rows.pop(slot, None)

    def items(self, slot: int) -> Iterator[tuple[Any, Entries]]:
        yield from self.rows.get(slot, {}).items()

    def _require_space(self) -> None:
        if self.is_full:
            raise StoreFullError("no space")


def test_a_full_disk_loses_no_key_and_restores_no_removed_one() -> None:
    table = LimitedTable()
    spilling = Spilling(TINY, lambda job: table)
    state, plain = spilling.state(0), KeyedState()

    def apply(fragment: KeyedFragment) -> None:
        state.apply(fragment)
        plain.apply(fragment)
        assert dict(state.items(EVERYWHERE)) == dict(plain.items(EVERYWHERE))
        assert state.count(EVERYWHERE) == plain.count(EVERYWHERE)
        for key in range(20):
            assert state.get(0, key) == plain.get(0, key)

    apply(KeyedFragment(plain={0: {key: {"n": key} for key in range(20)}}))
    assert state.cold
    table.is_full = True
    apply(KeyedFragment(plain={0: {key: {"n": -key} for key in range(10)}}))
    gone = {key: Change({}, cleared=True, plain=False) for key in range(5)}
    apply(KeyedFragment(other={0: gone}))
    assert isinstance(spilling.problem, StoreFullError)
    table.is_full = False
    apply(KeyedFragment(plain={0: {key: {"n": key} for key in range(3, 30)}}))
    assert spilling.problem is None
    assert state.cold == len(table.rows[0])


def test_slots_dropped_while_the_disk_is_full_come_back_empty() -> None:
    table = LimitedTable()
    state = Spilling(TINY, lambda job: table).state(0)
    state.apply(KeyedFragment(plain={0: {key: {"n": key} for key in range(20)}}))
    table.is_full = True

    state.drop(mask(0))
    state.apply(KeyedFragment(plain={0: {20: {"n": 20}}}))

    assert dict(state.items(EVERYWHERE)) == {20: {"n": 20}}
    table.is_full = False
    state.apply(KeyedFragment(plain={0: {key: {"n": key} for key in range(20, 40)}}))
    assert state.cold == len(table.rows[0])
    assert dict(state.items(EVERYWHERE)).keys() == set(range(20, 40))


def test_a_table_is_scratch(tmp_path: Path) -> None:
    table = ColdTable(str(tmp_path), TINY)
    state = Spilling(1, table.of).state(0)
    assert isinstance(state, SpillingState)
    filled(state, range(5))
    assert list(tmp_path.iterdir()) == [table.path]

    table.close()

    assert list(tmp_path.iterdir()) == []

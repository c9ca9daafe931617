"""Keyed state that is larger than memory: least recently touched keys spill to a table on disk.

A key's committed entries are either in memory or *cold*, never both. Fragments stay in memory, and
so do the times of last touch of jobs with a time-to-live. The table is scratch space: it is lost
with the process, and its keys are restored as all state is, from copies or from the store.

Reading removes nothing from the table, because others may read concurrently; keys that an epoch has
touched are loaded into memory when its fragment is applied. Within a slot the keys that were
touched longest ago are spilled first (a dictionary preserves the order), of all slots equal parts.

A full disk accepts no writes, and so no deletions either. Keys that should have been removed from
the table, or may have been added before an error, are *void*: they are not read, and are removed
before anything else is added. So a table that fails costs memory, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from millstream.ring.masks import SlotCounts, SlotMask
from millstream.state.key_view import Change, Entries, copy_entries, is_slow_path
from millstream.state.keyed import KeyedState, Lookup
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.pickling import dumps

log = logging.getLogger("millstream")

Table = dict[int, dict[Any, Entries]]
_ROOM = 1 / 8  # the part that is freed when the limit is reached, so that spilling is rare
_AT_ONCE = 4096
_ENTRY = 100  # a dictionary's share of a key or a name
_OBJECT = 56


class ColdKeys(Protocol):
    """A job's table of cold keys, by slot, in scratch space."""

    def put(self, entries: Mapping[int, Mapping[Any, Entries]]) -> None:
        """Add keys; after an error, some may have been added."""

    def get(self, keys: Mapping[int, Iterable[Any]]) -> Table:
        """Look up keys in one call; only the keys found, and slots that have any."""

    def remove(self, keys: Mapping[int, Iterable[Any]]) -> None:
        """Remove keys."""

    def items(self, slot: int) -> Iterator[tuple[Any, Entries]]:
        """The keys of a slot."""

    def drop(self, slots: Iterable[int]) -> None:
        """Remove all keys of some slots."""


class Spilling:
    """The memory limit for the keys of a node, all its jobs together."""

    def __init__(self, limit: int, table: Callable[[int], ColdKeys]) -> None:
        self.limit = limit
        self.problem: Exception | None = None
        self._table = table
        self._states: list[SpillingState] = []

    def state(self, job: int, read: Callable[[Entries], Any] = copy_entries) -> SpillingState:
        """The state of one more job."""
        state = SpillingState(self, self._table(job), read)
        self._states.append(state)
        return state

    @property
    def weight(self) -> int:
        """The approximate size in bytes of the keys in memory."""
        return sum(state.weight for state in self._states)

    @property
    def cold(self) -> int:
        """The number of cold keys."""
        return sum(state.cold for state in self._states)

    def enforce_limit(self) -> None:
        """Spill keys if the limit is exceeded.

        An error of a table is logged, not raised: the keys are still in memory.
        """
        goal = int(self.limit * (1 - _ROOM))
        try:
            while (weight := self.weight) > self.limit:
                for state in self._states:
                    state.spill((weight - goal) / weight)
            self.problem = None
        except Exception as problem:
            self.failed(problem)

    def failed(self, problem: Exception) -> None:
        """Record that the disk cannot be written to; logged once."""
        if self.problem is None:
            log.warning("cannot spill keys to disk; they stay in memory: %s", problem)
        self.problem = problem


class _Overlaid:
    """A slot's keys in memory, over those that were read from the table."""

    __slots__ = ("_hot", "_warm")

    def __init__(self, hot: Mapping[Any, Entries], warm: Mapping[Any, Entries]) -> None:
        self._hot, self._warm = hot, warm

    def get(self, key: Any, /) -> Entries | None:
        found = self._hot.get(key)
        return self._warm.get(key) if found is None else found


class SpillingState(KeyedState):
    """The master state of one job on one node, in memory and in a table of cold keys."""

    keeps_singles = False

    def __init__(
        self, spilling: Spilling, table: ColdKeys, read: Callable[[Entries], Any] = copy_entries
    ) -> None:
        super().__init__(read)
        self._spilling = spilling
        self._table = table
        self.weight = 0
        self._cold: dict[int, int] = {}  # how many keys of each slot are cold
        self._warm: Table = {}  # cold keys that were read: still in the table, too
        self._void: dict[int, set[Any]] = {}  # keys in the table that are not read
        self._dropped: set[int] = set()  # slots whose keys in the table are not read
        self._carry = 0.0

    @property
    def cold(self) -> int:
        """The number of cold keys."""
        return sum(self._cold.values())

    def _lookups(self, keys: Iterable[Any], slots: Iterable[int]) -> Mapping[int, Lookup]:
        """The slots as a reduction reads them; cold keys are read in one call."""
        wanted: dict[int, list[Any]] = {}
        for key, slot in zip(keys, slots, strict=True):
            if self._may_be_cold(slot, key):
                wanted.setdefault(slot, []).append(key)
        for slot, found in self._table.get(wanted).items() if wanted else ():
            self._warm.setdefault(slot, {}).update(found)
            self._note_slow_path(slot, found)
        if not self._warm:
            return self._masters
        seen: dict[int, Lookup] = dict(self._masters)
        for slot, warm in self._warm.items():
            seen[slot] = _Overlaid(self._masters.get(slot, {}), warm)
        return seen

    def _may_be_cold(self, slot: int, key: Any) -> bool:
        """Whether a key must be looked up in the table."""
        return (
            slot in self._cold
            and key not in self._masters.get(slot, ())
            and key not in self._warm.get(slot, ())
            and key not in self._void.get(slot, ())
        )

    # -- applying ------------------------------------------------------------------------

    def apply(self, fragment: KeyedFragment, slots: SlotMask | None = None) -> None:
        chosen = None if slots is None else set(np.flatnonzero(slots).tolist())
        fragment = fragment.expanded()
        touched = _touched(fragment, chosen)
        self._load(touched, chosen)
        self.weight -= self._weight_of(touched)
        super().apply(fragment, slots)
        self.weight += self._weight_of(touched)
        self._mark_recent(touched)
        self._spilling.enforce_limit()

    def _load(self, touched: Mapping[int, Mapping[Any, None]], chosen: set[int] | None) -> None:
        """Load cold keys that are touched, and those that were read for the same slots."""
        wanted = {
            slot: [key for key in keys if self._may_be_cold(slot, key)]
            for slot, keys in touched.items()
            if slot in self._cold
        }
        loaded = self._table.get(wanted) if any(wanted.values()) else {}
        for slot in list(self._warm):
            if chosen is None or slot in chosen:
                loaded.setdefault(slot, {}).update(self._warm.pop(slot))
        if not loaded:
            return
        try:
            self._table.remove(loaded)
        except Exception as problem:
            self._make_void(loaded)
            self._spilling.failed(problem)
        for slot, found in loaded.items():
            self._count(slot, -len(found))
            self._masters.setdefault(slot, {}).update(found)
            self._note_slow_path(slot, found)
        self.weight += self._weight_of(loaded)

    def _note_slow_path(self, slot: int, found: Mapping[Any, Entries]) -> None:
        slow_path = {key for key, entries in found.items() if is_slow_path(entries)}
        if slow_path:
            self._slow_path.setdefault(slot, set()).update(slow_path)

    def _count(self, slot: int, more: int) -> None:
        number = self._cold.get(slot, 0) + more
        if number:
            self._cold[slot] = number
        else:
            self._cold.pop(slot, None)

    def _weight_of(self, keys: Mapping[int, Iterable[Any]]) -> int:
        """The size of those of some keys that are in memory."""
        weight = 0
        for slot, of_slot in keys.items():
            master = self._masters.get(slot)
            if master:
                weight += sum(_weigh(key, master[key]) for key in of_slot if key in master)
        return weight

    def _mark_recent(self, touched: Mapping[int, Iterable[Any]]) -> None:
        """Mark some keys as the most recently touched."""
        for slot, keys in touched.items():
            master = self._masters.get(slot, {})
            for key in keys:
                entries = master.pop(key, None)
                if entries is not None:
                    master[key] = entries

    def spill(self, part: float) -> None:
        """Spill a part of the keys."""
        batch: Table = {}
        size = 0
        for slot, master in self._masters.items():
            # Slots with few keys spill one now and then.
            self._carry += part * len(master)
            number = int(self._carry)
            self._carry -= number
            if number:
                batch[slot] = dict(islice(master.items(), number))
                size += number
            if size >= _AT_ONCE:
                self._spill_batch(batch)
                batch, size = {}, 0
        self._spill_batch(batch)
        self._masters = {slot: master for slot, master in self._masters.items() if master}
        if not self._masters:
            self.weight, self._carry = 0, 0.0

    def _spill_batch(self, batch: Table) -> None:
        if not batch:
            return
        self._remove_void()
        try:
            self._table.put(batch)
        except Exception:
            self._make_void(batch)  # some may have been added
            raise
        self.weight -= self._weight_of(batch)
        for slot, entries in batch.items():
            master = self._masters[slot]
            for key in entries:
                del master[key]
            self._count(slot, len(entries))
            self._forget_slow_path(slot, entries)

    def _make_void(self, keys: Mapping[int, Iterable[Any]]) -> None:
        for slot, of_slot in keys.items():
            self._void.setdefault(slot, set()).update(of_slot)

    def _remove_void(self) -> None:
        """Remove void keys from the table; raises if the disk still cannot be written to."""
        if self._dropped:
            self._table.drop(self._dropped)
            self._dropped.clear()
        if self._void:
            self._table.remove(self._void)
            self._void.clear()

    def _cold_items(self, slot: int) -> Iterator[tuple[Any, Entries]]:
        if slot in self._cold:
            void = self._void.get(slot, ())
            for key, entries in self._table.items(slot):
                if key not in void:
                    yield key, entries

    def _forget_slow_path(self, slot: int, keys: Iterable[Any]) -> None:
        slow_path = self._slow_path.get(slot)
        if slow_path is not None:
            slow_path.difference_update(keys)
            if not slow_path:
                del self._slow_path[slot]

    # -- snapshots and reading -------------------------------------------------------------

    def _snapshot(self, slots: range) -> KeyedFragment:
        taken = super()._snapshot(slots)
        for slot in slots:
            for key, entries in self._cold_items(slot):
                if is_slow_path(entries):
                    taken.other.setdefault(slot, {})[key] = Change(entries, plain=False)
                else:
                    taken.plain.setdefault(slot, {})[key] = entries
        return taken

    def drop(self, slots: SlotMask) -> None:
        dropped = np.flatnonzero(slots).tolist()
        here = {slot: self._masters[slot] for slot in dropped if slot in self._masters}
        self.weight -= self._weight_of(here)
        super().drop(slots)
        for slot in dropped:
            self._warm.pop(slot, None)
        for slot in dropped:
            in_table = self._cold.pop(slot, 0), self._void.pop(slot, None)
            if any(in_table):
                self._dropped.add(slot)
        try:
            self._remove_void()
        except Exception as problem:
            self._spilling.failed(problem)

    def get(self, slot: int, key: Any) -> Any:
        entries = self._masters.get(slot, {}).get(key)
        if entries is None and slot in self._cold and key not in self._void.get(slot, ()):
            entries = self._table.get({slot: [key]}).get(slot, {}).get(key)
        return None if entries is None else self._read(entries)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        yield from super().items(slots)
        for slot in np.flatnonzero(slots).tolist():
            for key, entries in self._cold_items(slot):
                yield key, self._read(entries)

    def counts(self, slots: SlotMask) -> SlotCounts:
        at = np.flatnonzero(slots).tolist()
        cold = np.fromiter((self._cold.get(slot, 0) for slot in at), np.int64, len(at))
        return super().counts(slots) + cold


def _touched(fragment: KeyedFragment, chosen: set[int] | None) -> dict[int, dict[Any, None]]:
    """The keys of a fragment, by slot."""
    touched: dict[int, dict[Any, None]] = {}
    tables: Iterable[Mapping[int, Iterable[Any]]] = (
        fragment.plain,
        fragment.other,
        *(visited for _, visited in fragment.visits),
    )
    for slot, keys in chain.from_iterable(table.items() for table in tables):
        if chosen is None or slot in chosen:
            touched.setdefault(slot, {}).update(dict.fromkeys(keys))
    return touched


def _weigh(key: Any, entries: Entries) -> int:
    """The approximate size of a key in bytes; equal for equal content."""
    return 2 * _ENTRY + _size(key) + sum(_ENTRY + _size(value) for value in entries.values())


def _size(value: Any) -> int:
    kind = type(value)
    if kind in (str, bytes, bytearray):
        return _OBJECT + len(value)
    if kind in (int, float, bool, type(None)):
        return 32
    if kind in (list, tuple, set, frozenset):
        return _OBJECT + sum(8 + _size(item) for item in value)
    if kind is dict:
        return _OBJECT + sum(_ENTRY + _size(k) + _size(v) for k, v in value.items())
    return _OBJECT + len(dumps(value))

"""Keyed state that is larger than memory: keys that rest a while go to a table on disk.

A key's committed entries are either in memory or *cold*, never both. Fragments stay in memory, and
so do the times of last touch of jobs with a time-to-live. The table is scratch: it is lost with
the process, and comes back as all state does, from copies or from the store.

Reading takes nothing out of the table, because others may look on meanwhile; what an epoch has
touched moves back into memory when it is applied. Within a slot the keys that were touched longest
ago go first (a dictionary keeps the order); all slots give in equal parts.

A disk that is full takes nothing, and gives no space back either. What should have been removed
from the table, or was perhaps added before an error, is *void*: nobody reads it, and it is removed
before anything else is added. So a table that fails costs memory, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from millstream.ring.masks import SlotMask
from millstream.state.key_view import Change, Entries, copy_entries, is_slow_path
from millstream.state.keyed import KeyedState, Lookup
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.pickling import dumps

log = logging.getLogger("millstream")

Table = dict[int, dict[Any, Entries]]
_ROOM = 1 / 8  # what is freed when the limit is reached, so that spilling is rare
_AT_ONCE = 4096
_ENTRY = 100  # a dictionary's share of a key or a name
_OBJECT = 56


class ColdKeys(Protocol):
    """A job's table of cold keys, by slot; scratch."""

    def put(self, entries: Mapping[int, Mapping[Any, Entries]]) -> None:
        """Add keys; all of them or, after an error, perhaps some."""

    def get(self, keys: Mapping[int, Iterable[Any]]) -> Table:
        """Those of some keys that are there, all looked up at once; only slots that have any."""

    def remove(self, keys: Mapping[int, Iterable[Any]]) -> None:
        """Forget keys."""

    def items(self, slot: int) -> Iterator[tuple[Any, Entries]]:
        """The keys of a slot."""

    def drop(self, slots: Iterable[int]) -> None:
        """Forget all keys of some slots."""


class Spilling:
    """What the keys of a node may take in memory, all its jobs together."""

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
        """About how many bytes the keys in memory take."""
        return sum(state.weight for state in self._states)

    @property
    def cold(self) -> int:
        """How many keys are cold."""
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
        """The disk cannot be written to at the moment; reported once."""
        if self.problem is None:
            log.warning("keys cannot be written to disk, and stay in memory: %s", problem)
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

    def __init__(
        self, spilling: Spilling, table: ColdKeys, read: Callable[[Entries], Any] = copy_entries
    ) -> None:
        super().__init__(read)
        self._spilling = spilling
        self._table = table
        self.weight = 0
        self._cold: dict[int, int] = {}  # how many keys of each slot are cold
        self._warm: Table = {}  # cold keys that were read: still in the table, too
        self._void: dict[int, set[Any]] = {}  # keys in the table that do not count
        self._dropped: set[int] = set()  # slots of which nothing in the table counts
        self._carry = 0.0

    @property
    def cold(self) -> int:
        """How many keys are cold."""
        return sum(self._cold.values())

    def lookups(self, keys: Iterable[Any], slots: Iterable[int]) -> Mapping[int, Lookup]:
        """The slots as a reduction reads them; all cold keys among those given come at once."""
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
        """Whether only the table can tell if there is a key."""
        return (
            slot in self._cold
            and key not in self._masters.get(slot, ())
            and key not in self._warm.get(slot, ())
            and key not in self._void.get(slot, ())
        )

    # -- applying ------------------------------------------------------------------------

    def apply(self, fragment: KeyedFragment, slots: SlotMask | None = None) -> None:
        chosen = None if slots is None else set(np.flatnonzero(slots).tolist())
        touched = _touched(fragment, chosen)
        self._heat(touched, chosen)
        self.weight -= self._weight_of(touched)
        super().apply(fragment, slots)
        self.weight += self._weight_of(touched)
        self._freshen(touched)
        self._spilling.enforce_limit()

    def _heat(self, touched: Mapping[int, Mapping[Any, None]], chosen: set[int] | None) -> None:
        """Bring back into memory what is touched, and what was read for the same slots."""
        wanted = {
            slot: [key for key in keys if self._may_be_cold(slot, key)]
            for slot, keys in touched.items()
            if slot in self._cold
        }
        heated = self._table.get(wanted) if any(wanted.values()) else {}
        for slot in list(self._warm):
            if chosen is None or slot in chosen:
                heated.setdefault(slot, {}).update(self._warm.pop(slot))
        if not heated:
            return
        try:
            self._table.remove(heated)
        except Exception as problem:
            self._make_void(heated)
            self._spilling.failed(problem)
        for slot, found in heated.items():
            self._count(slot, -len(found))
            self._masters.setdefault(slot, {}).update(found)
            self._note_slow_path(slot, found)
        self.weight += self._weight_of(heated)

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
        """What those of some keys that are in memory take there."""
        weight = 0
        for slot, of_slot in keys.items():
            master = self._masters.get(slot)
            if master:
                weight += sum(_weigh(key, master[key]) for key in of_slot if key in master)
        return weight

    def _freshen(self, touched: Mapping[int, Iterable[Any]]) -> None:
        """Make some keys the last to be spilled."""
        for slot, keys in touched.items():
            master = self._masters.get(slot, {})
            for key in keys:
                entries = master.pop(key, None)
                if entries is not None:
                    master[key] = entries

    def spill(self, part: float) -> None:
        """Let a part of the keys become cold."""
        batch: Table = {}
        size = 0
        for slot, master in self._masters.items():
            # Small slots give a key now and then.
            self._carry += part * len(master)
            number = int(self._carry)
            self._carry -= number
            if number:
                batch[slot] = dict(islice(master.items(), number))
                size += number
            if size >= _AT_ONCE:
                self._cool(batch)
                batch, size = {}, 0
        self._cool(batch)
        self._masters = {slot: master for slot, master in self._masters.items() if master}
        if not self._masters:
            self.weight, self._carry = 0, 0.0

    def _cool(self, batch: Table) -> None:
        if not batch:
            return
        self._clean()
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

    def _clean(self) -> None:
        """Remove from the table what does not count; raises if that is still not possible."""
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

    # -- all that slots hold ---------------------------------------------------------------

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
            self._clean()
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

    def count(self, slots: SlotMask) -> int:
        cold = self._cold
        return super().count(slots) + sum(cold.get(s, 0) for s in np.flatnonzero(slots).tolist())


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
    """About how many bytes a key takes: always as many for the same content."""
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

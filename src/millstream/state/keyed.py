"""Keyed state in Python dictionaries: a mapping of names to values for every key.

Layers as in Floe, with the epoch in place of a clock: *master* holds what is committed, a
*fragment* holds the changes of one epoch and is private to its attempt until frozen. Older
layers never change under a reader: a read of a mutable value returns a private copy, and a
copy that was mutated without being written back counts as written.

What may be mutable is kept pickled, in a ``bytearray``; a user's own one is pickled as well, so the
type tells. A read unpickles it, which is the private copy. Nothing that is kept can then be part of
a reference cycle, and the garbage collector, which would stop the process for more than a second to
walk a million lists, need never look at the state.

A fragment holds absolute values, and is never changed once it is reduced: it may be merged with
others (:mod:`millstream.state.deltas`), and be applied to several copies of its slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from millstream.ring.masks import SlotMask
from millstream.ring.scalars import plain_value
from millstream.state.pickling import dumps, loads

T = TypeVar("T")
Entries = dict[str, Any]
"""One flag for every slot of the job."""


class _Gone:
    """The mark of a removed entry (a tombstone)."""

    _instance: _Gone | None = None

    def __new__(cls) -> _Gone:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __reduce__(self) -> Any:
        return _Gone, ()

    def __repr__(self) -> str:
        return "GONE"


GONE: Final = _Gone()
_EMPTY: Final[Entries] = {}
_NONE: Final[frozenset[Any]] = frozenset()
_FROZEN_TYPES: Final = frozenset({int, float, str, bytes, bool, type(None), complex})


@dataclass(slots=True)
class Change:
    """What one epoch did to a key; it writes something, or clears.

    ``cleared`` hides all older layers of the key; ``plain`` tells that the entries are only
    written over those that are there: nothing is cleared or removed, and no value is mutable.
    """

    writes: Entries
    cleared: bool = False
    plain: bool = True


class State(MutableMapping[str, Any]):
    """A key's own state, as its reduce function sees it during one epoch."""

    __slots__ = ("_base", "_cleared", "_loans", "_writes")

    def __init__(self, base: Entries | None) -> None:
        self._base = base if base is not None else _EMPTY
        self._writes: Entries = {}
        self._cleared = False
        self._loans: dict[str, tuple[Any, Any]] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """The entry's value, or ``default``."""
        found = self._writes.get(name, _EMPTY)
        if found is not _EMPTY:
            return default if found is GONE else found
        if self._cleared or name not in self._base:
            return default
        value = self._base[name]
        return value if type(value) in _FROZEN_TYPES else self._lend(name, value)

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, GONE)
        if value is GONE:
            raise KeyError(name)
        return value

    def _lend(self, name: str, value: Any) -> Any:
        if self._loans is None:
            self._loans = {}
        if name not in self._loans:
            blob = value if type(value) is bytearray else dumps(value)
            self._loans[name] = (loads(blob), blob)
        return self._loans[name][0]

    def __setitem__(self, name: str, value: Any) -> None:
        self._writes[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._writes[name] = GONE
        if self._loans is not None:
            self._loans.pop(name, None)

    def clear(self) -> None:
        """Forget the key: all its entries, whatever came before."""
        self._writes = {}
        self._cleared = True
        self._loans = None

    def __contains__(self, name: object) -> bool:
        if name in self._writes:
            return self._writes[name] is not GONE
        return not self._cleared and name in self._base

    def __iter__(self) -> Iterator[str]:
        # A list, because users write to the state while they go through it.
        older = () if self._cleared else self._base
        return iter([name for name in dict.fromkeys((*older, *self._writes)) if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"State({dict(self)!r})"

    # What a plain dictionary can do besides: a key's state is one as long as it is simple.

    def copy(self) -> Entries:
        """The entries as a dictionary."""
        return dict(self)

    def __or__(self, other: Mapping[str, Any]) -> Entries:
        return dict(self) | dict(other)

    def __ior__(self, other: Mapping[str, Any]) -> State:
        self.update(other)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # given out as a value, it is what it holds

    def settle(self) -> Change | None:
        """Close the view: what changed, with mutable values pickled."""
        writes = self._writes.copy()  # the function may have kept the view
        plain = _own(writes)
        if self._loans is not None:
            for name, (copy, blob) in self._loans.items():
                if name not in writes and (now := dumps(copy)) != blob:
                    writes[name], plain = bytearray(now), False
        if not writes:
            return Change({}, True, False) if self._cleared else None
        return Change(writes, self._cleared, plain and not self._cleared)


View = dict[str, Any] | State
_SMALL = 16


def close_view(view: View, base: Entries | None) -> Change | None:
    """What a reduce function changed, with mutable values pickled.

    A view is a ``State``, or, if all entries are plain, a copy of ``base`` (see ``slow_path``).
    """
    if type(view) is not dict:  # not isinstance: for an abstract class that takes long
        return view.settle()  # type: ignore[union-attr]
    if base is None:
        writes = view.copy()  # the function may have kept the view
    else:
        writes = {
            name: value
            for name, value in view.items()
            if name not in base or base[name] is not value
        }
        if not view:
            return Change(writes, True, False)
        if not base.keys() <= view.keys():
            writes.update(dict.fromkeys(base.keys() - view.keys(), GONE))
    return Change(writes, False, _own(writes)) if writes else None


def _own(writes: Entries) -> bool:
    """Pickle mutable values; True if there was neither one nor a tombstone."""
    if _FROZEN_TYPES.issuperset(map(type, writes.values())):
        return True
    plain = True
    for name, value in writes.items():
        found = plain_value(value)  # a scalar of numpy or pandas is what it says
        if type(found) in _FROZEN_TYPES:
            writes[name] = found
            continue
        plain = False
        if found is not GONE:
            writes[name] = bytearray(dumps(found))
    return plain


def shown_entries(entries: Entries) -> Entries:
    """Committed entries as their user knows them: a copy that may be changed."""
    return {
        name: loads(value) if type(value) is bytearray else value for name, value in entries.items()
    }


Visits = list[tuple[int, dict[int, list[Any]]]]


@dataclass(slots=True)
class KeyedFragment:
    """The changes of one or several epochs to some slots. A key has at most one change.

    ``plain`` has the writes of plain changes, which are nearly all and take no object beside
    them; ``other`` has all other changes. ``visits`` tells which keys were touched when, by
    slot, oldest first.
    """

    plain: dict[int, dict[Any, Entries]] = field(default_factory=dict)
    other: dict[int, dict[Any, Change]] = field(default_factory=dict)
    visits: Visits = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is any change."""
        return any(self.plain.values()) or any(self.other.values()) or bool(self.visits)

    def part(self, slots: range) -> KeyedFragment:
        """What it has for some slots."""
        visits = [(time, _part(visited, slots)) for time, visited in self.visits]
        return KeyedFragment(_part(self.plain, slots), _part(self.other, slots), visits)

    def among(self, slots: list[int]) -> KeyedFragment:
        """What it has for slots that are named one by one."""
        visits = [(time, dict(_chosen(visited, slots))) for time, visited in self.visits]
        plain, other = dict(_chosen(self.plain, slots)), dict(_chosen(self.other, slots))
        return KeyedFragment(plain, other, visits)


def tables_of(fragment: object) -> list[Any]:
    """The tables of a fragment that are large, to be freed one by one."""
    if not isinstance(fragment, KeyedFragment):
        return []
    return [*fragment.plain.values(), *fragment.other.values()]


def _part(table: dict[int, T], slots: range) -> dict[int, T]:
    if len(slots) < len(table):
        return {slot: table[slot] for slot in slots if slot in table}
    return {slot: value for slot, value in table.items() if slot in slots}


def _chosen(table: dict[int, T], slots: list[int] | None) -> Iterable[tuple[int, T]]:
    if slots is None or len(slots) > len(table):
        chosen = None if slots is None else set(slots)
        return [item for item in table.items() if chosen is None or item[0] in chosen]
    return [(slot, table[slot]) for slot in slots if slot in table]


class Lookup(Protocol):
    """The committed keys of a slot, for those who only look up."""

    def get(self, key: Any, /) -> Entries | None:
        """A key's entries; not to be changed."""


def is_slow_path(entries: Entries) -> bool:
    """Whether entries are many, or any of them is mutable."""
    return len(entries) > _SMALL or not _FROZEN_TYPES.issuperset(map(type, entries.values()))


class KeyedState:
    """The master state of one job on one node, by slot."""

    def __init__(self) -> None:
        self._masters: dict[int, dict[Any, Entries]] = {}
        self._slow_path: dict[int, set[Any]] = {}
        # When each key was last touched, by slot; the longest ago comes first.
        self._seen: dict[int, dict[Any, int]] = {}

    @property
    def slots(self) -> Mapping[int, Mapping[Any, Entries]]:
        """The committed keys of each slot that has any; not to be changed by the caller."""
        return self._masters

    @property
    def slow_path(self) -> Mapping[int, Set[Any]]:
        """Keys with mutable values or many entries, by slot: only a ``State`` may show them."""
        return self._slow_path

    def reading(self, keys: Iterable[Any], slots: Iterable[int]) -> Mapping[int, Lookup]:
        """The slots as a reduction of some keys, each of its slot, reads them."""
        return self._masters

    def apply(self, fragment: KeyedFragment, slots: SlotMask | None = None) -> None:
        """Merge a sealed fragment into master, or what it has for some slots."""
        chosen = None if slots is None else np.flatnonzero(slots).tolist()
        for slot, writes in _chosen(fragment.plain, chosen):
            self._write(slot, writes)
        for slot, changes in _chosen(fragment.other, chosen):
            self._change(slot, changes)
        for time, visited in fragment.visits:
            for slot, keys in _chosen(visited, chosen):
                self._visit(slot, keys, time)

    def _write(self, slot: int, writes: Mapping[Any, Entries]) -> None:
        if not writes:
            return
        master, slow_path = self._masters.setdefault(slot, {}), self._slow_path.get(slot)
        for key, new in writes.items():
            entries = master.get(key)
            if entries is None:
                master[key] = entries = new.copy()
            else:
                entries.update(new)
            if len(entries) > _SMALL or (slow_path and key in slow_path):
                self._judge(slot, key, entries)

    def _change(self, slot: int, changes: Mapping[Any, Change]) -> None:
        master = self._masters.setdefault(slot, {})
        for key, change in changes.items():
            entries = None if change.cleared else master.get(key)
            if entries is None:
                entries = {n: v for n, v in change.writes.items() if v is not GONE}
            else:
                for name, value in change.writes.items():
                    if value is GONE:
                        entries.pop(name, None)
                    else:
                        entries[name] = value
            if entries:
                master[key] = entries
            else:
                master.pop(key, None)
            self._judge(slot, key, entries)
        if not master:
            del self._masters[slot]

    def _judge(self, slot: int, key: Any, entries: Entries) -> None:
        """Tell whether a key is odd from what it holds, not from how that came about."""
        slow_path = self._slow_path.get(slot)
        if is_slow_path(entries):
            if slow_path is None:
                slow_path = self._slow_path[slot] = set()
            slow_path.add(key)
        elif slow_path is not None:
            slow_path.discard(key)
            if not slow_path:
                del self._slow_path[slot]

    def _visit(self, slot: int, keys: list[Any], time: int) -> None:
        master, seen = self._masters.get(slot, {}), self._seen.setdefault(slot, {})
        for key in keys:
            if key not in master:
                seen.pop(key, None)
            elif seen.get(key) != time:  # a merged fragment may tell again what is known
                seen.pop(key, None)
                seen[key] = time
        if not seen:
            del self._seen[slot]

    def idle_since(self, slots: Iterable[int], before: int) -> dict[int, list[Any]]:
        """Keys of these slots whose last touch came before the given time, oldest first."""
        idle: dict[int, list[Any]] = {}
        for slot in slots:
            keys = []
            for key, time in self._seen.get(slot, _EMPTY).items():
                if time >= before:
                    break
                keys.append(key)
            if keys:
                idle[slot] = keys
        return idle

    def snapshot(self, slots: range) -> KeyedFragment:
        """All that some slots hold, as a fragment that makes empty slots equal to them.

        Entries are copied, values are shared: nothing changes a committed value in place.
        """
        taken = KeyedFragment()
        for slot in slots:
            master, slow_path = self._masters.get(slot), self._slow_path.get(slot, _NONE)
            if master is None:
                continue
            plain = {key: entries.copy() for key, entries in master.items() if key not in slow_path}
            if plain:
                taken.plain[slot] = plain
            if len(plain) < len(master):
                taken.other[slot] = {
                    key: Change(entries.copy(), plain=False)
                    for key, entries in master.items()
                    if key in slow_path
                }
        taken.visits = visits_of({slot: self._seen[slot] for slot in slots if slot in self._seen})
        return taken

    def drop(self, slots: SlotMask) -> None:
        """Forget all that some slots hold."""
        for slot in np.flatnonzero(slots).tolist():
            self._masters.pop(slot, None)
            self._slow_path.pop(slot, None)
            self._seen.pop(slot, None)

    def get(self, slot: int, key: Any) -> Entries | None:
        """A copy of a key's committed entries."""
        entries = self._masters.get(slot, {}).get(key)
        return None if entries is None else shown_entries(entries)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Entries]]:
        """The committed keys of some slots with copies of their entries."""
        for slot in np.flatnonzero(slots).tolist():
            for key, entries in self._masters.get(slot, {}).items():
                yield key, shown_entries(entries)

    def keys(self, slots: SlotMask) -> int:
        """How many keys some slots hold."""
        return sum(len(self._masters.get(slot, ())) for slot in np.flatnonzero(slots).tolist())


def visits_of(seen: Mapping[int, Mapping[Any, int]]) -> Visits:
    """The visits that leave every key of some slots with the given time."""
    visits: dict[int, dict[int, list[Any]]] = {}
    for slot, times in seen.items():
        for key, time in times.items():
            visits.setdefault(time, {}).setdefault(slot, []).append(key)
    return sorted(visits.items(), key=lambda visit: visit[0])

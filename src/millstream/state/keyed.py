"""Keyed state in Python dictionaries: a mapping of names to values for every key.

Layers as in Floe, with the epoch in place of a clock: *master* holds what is committed, a
*fragment* holds the changes of one epoch and is private to its attempt until frozen. Older
layers never change under a reader: a read of a mutable value returns a private copy, and a
copy that was mutated without being written back counts as written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

from millstream.state.pickling import dumps, loads

Entries = dict[str, Any]


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
_FROZEN_TYPES: Final = frozenset({int, float, str, bytes, bool, type(None), complex})


@dataclass(slots=True)
class Change:
    """What one epoch did to a key.

    ``cleared`` hides all older layers of the key; ``plain`` tells that no value is mutable.
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
        self._loans: dict[str, tuple[Any, bytes]] | None = None

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
            blob = dumps(value)
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
        """Close the view: what changed, with private copies of mutable values."""
        writes = self._writes.copy()  # the function may have kept the view
        if self._loans is not None:
            for name, (copy, blob) in self._loans.items():
                if name not in writes and dumps(copy) != blob:
                    writes[name] = copy
        if not writes:
            return Change({}, True) if self._cleared else None
        return Change(writes, self._cleared, _own(writes))


View = dict[str, Any] | State
_SMALL = 16


def close_view(view: View, base: Entries | None) -> Change | None:
    """What a reduce function changed, with private copies of mutable values.

    A view is a ``State``, or, of entries that are all plain, a copy of ``base`` (see ``odd``).
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
            return Change(writes, True)
        if not base.keys() <= view.keys():
            writes.update(dict.fromkeys(base.keys() - view.keys(), GONE))
    return Change(writes, False, _own(writes)) if writes else None


def _own(writes: Entries) -> bool:
    """Replace mutable values by private copies; True if there were none."""
    if _FROZEN_TYPES.issuperset(map(type, writes.values())):
        return True
    plain = True
    for name, value in writes.items():
        if type(value) not in _FROZEN_TYPES and value is not GONE:
            writes[name] = loads(dumps(value))
            plain = False
    return plain


@dataclass(slots=True)
class KeyedFragment:
    """The changes of one epoch to the slots of one unit."""

    changes: dict[int, dict[Any, Change]] = field(default_factory=dict)
    touched: dict[int, list[Any]] = field(default_factory=dict)

    @property
    def keys(self) -> int:
        return sum(map(len, self.changes.values()))


class KeyedState:
    """The master state of one job on one node, by slot."""

    def __init__(self) -> None:
        self._masters: dict[int, dict[Any, Entries]] = {}
        self._odd: set[Any] = set()
        self._seen: dict[int, dict[Any, int]] = {}
        self._visits: dict[int, deque[tuple[int, list[Any]]]] = {}

    @property
    def slots(self) -> Mapping[int, Mapping[Any, Entries]]:
        """The committed keys of each slot that has any; not to be changed by the caller."""
        return self._masters

    @property
    def odd(self) -> Set[Any]:
        """Keys with mutable values or many entries: only a ``State`` may show them."""
        return self._odd

    def apply(self, fragment: KeyedFragment, time: int) -> None:
        """Merge a sealed fragment into master."""
        for slot, changes in fragment.changes.items():
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
                if not entries:
                    master.pop(key, None)
                    self._odd.discard(key)
                    continue
                master[key] = entries
                if not change.plain or len(entries) > _SMALL:
                    self._odd.add(key)
        for slot, keys in fragment.touched.items():
            self._visit(slot, keys, time)

    def _visit(self, slot: int, keys: list[Any], time: int) -> None:
        master, seen = self._masters.get(slot, {}), self._seen.setdefault(slot, {})
        visits = self._visits.setdefault(slot, deque())
        for key in keys:
            if key in master:
                seen[key] = time
            else:
                seen.pop(key, None)
        visits.append((time, keys))
        while visits and not any(seen.get(key) == visits[0][0] for key in visits[0][1]):
            visits.popleft()

    def idle_since(self, slots: Iterable[int], before: int) -> dict[int, list[Any]]:
        """Keys of these slots whose last touch came before the given time."""
        idle: dict[int, list[Any]] = {}
        for slot in slots:
            seen = self._seen.get(slot, {})
            for time, keys in self._visits.get(slot, ()):
                if time >= before:
                    break
                idle.setdefault(slot, []).extend(k for k in keys if seen.get(k) == time)
        return {slot: keys for slot, keys in idle.items() if keys}

    def get(self, slot: int, key: Any) -> Entries | None:
        """A copy of a key's committed entries."""
        entries = self._masters.get(slot, {}).get(key)
        return None if entries is None else loads(dumps(entries))

    def items(self, slots: Iterable[int]) -> Iterator[tuple[Any, Entries]]:
        """The committed keys of some slots with their entries; not to be changed."""
        for slot in slots:
            yield from self._masters.get(slot, {}).items()

    @property
    def keys(self) -> int:
        return sum(map(len, self._masters.values()))

"""A key's entries during one epoch: what a reduce function reads and writes, and what it changed.

Committed entries never change under a reader. A read of a mutable value returns a private copy; a
copy that was changed without being written back counts as written.

What may be mutable is stored pickled, in a ``bytearray``; a user's ``bytearray`` is pickled as
well, so the type identifies it. A read unpickles it, which is the private copy. Nothing that is
stored can then be part of a reference cycle, so the garbage collector, which would stop the process
for more than a second to walk a million lists, never has to traverse the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from millstream.ring.scalars import plain_value
from millstream.state.immutable import SCALARS
from millstream.state.pickling import dumps, loads

Entries = dict[Any, Any]
"""The entries of a key by name; users' names are strings, those of timers are not."""


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


@dataclass(slots=True)
class Change:
    """The changes of one epoch to a key: it writes entries, or clears them.

    ``cleared`` hides all older layers of the key. A ``plain`` change only overwrites entries:
    it clears and removes nothing, and no value is mutable.
    """

    writes: Entries
    cleared: bool = False
    plain: bool = True

    def then(self, later: Change) -> Change:
        """This change and a later one of the same key as one."""
        if later.cleared:
            return later
        return Change(self.writes | later.writes, self.cleared, self.plain and later.plain)


class KeyView(MutableMapping[str, Any]):
    """A key's state, as its reduce function sees it during one epoch."""

    __slots__ = ("_base", "_cleared", "_copies", "_writes")

    def __init__(self, base: Entries | None) -> None:
        self._base = base if base is not None else _EMPTY
        self._writes: Entries = {}
        self._cleared = False
        self._copies: dict[str, tuple[Any, Any]] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """The entry's value, or ``default``."""
        found = self._writes.get(name, _EMPTY)
        if found is not _EMPTY:
            return default if found is GONE else found
        if self._cleared or name not in self._base:
            return default
        value = self._base[name]
        return value if type(value) in SCALARS else self._copy_of(name, value)

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, GONE)
        if value is GONE:
            raise KeyError(name)
        return value

    def _copy_of(self, name: str, value: Any) -> Any:
        if self._copies is None:
            self._copies = {}
        if name not in self._copies:
            blob = value if type(value) is bytearray else dumps(value)
            self._copies[name] = (loads(blob), blob)
        return self._copies[name][0]

    def __setitem__(self, name: str, value: Any) -> None:
        self._writes[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._writes[name] = GONE
        if self._copies is not None:
            self._copies.pop(name, None)

    def clear(self) -> None:
        """Remove the key with all its entries."""
        self._writes = {}
        self._cleared = True
        self._copies = None

    def __contains__(self, name: object) -> bool:
        if name in self._writes:
            return self._writes[name] is not GONE
        return not self._cleared and name in self._base

    def __iter__(self) -> Iterator[str]:
        # A list, because users write to the state while they iterate over it.
        older = () if self._cleared else self._base
        return iter([name for name in dict.fromkeys((*older, *self._writes)) if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"State({dict(self)!r})"

    # Methods of a dictionary that are not of a mapping: off the slow path the view is a dictionary.

    def copy(self) -> Entries:
        """The entries as a dictionary."""
        return dict(self)

    def __or__(self, other: Mapping[str, Any]) -> Entries:
        return dict(self) | dict(other)

    def __ior__(self, other: Mapping[str, Any]) -> KeyView:
        self.update(other)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # as a value in an output, it is a dictionary

    def close(self) -> Change | None:
        """The changes, with mutable values pickled."""
        writes = self._writes.copy()  # the function may still refer to the view
        plain = _pickle_mutable(writes)
        if self._copies is not None:
            for name, (copy, blob) in self._copies.items():
                if name not in writes and (now := dumps(copy)) != blob:
                    writes[name], plain = bytearray(now), False
        if not writes:
            return Change({}, True, False) if self._cleared else None
        return Change(writes, self._cleared, plain and not self._cleared)


View = dict[str, Any] | KeyView
COPIED_ENTRIES = 16
"""A reduce function gets a copy of up to so many entries, and a ``KeyView`` of more."""


def close_view(view: View, base: Entries | None) -> Change | None:
    """The changes that a reduce function made, with mutable values pickled.

    A view is a ``KeyView``, or, off the slow path, a copy of ``base`` (see ``is_slow_path``).
    """
    if type(view) is not dict:  # not isinstance, which is slow for an abstract class
        return view.close()  # type: ignore[union-attr]
    if base is None:
        writes = view.copy()  # the function may still refer to the view
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
    return Change(writes, False, _pickle_mutable(writes)) if writes else None


def overwrites(view: Entries, base: Entries | None) -> Entries | None:
    """What a reduce function overwrote in a copy of ``base``, if all that is plain.

    None if entries were added or removed, or values are not plain: see ``close_view``.
    """
    if base is None:
        writes = view.copy()
    elif view.keys() == base.keys():
        writes = dict([entry for entry in view.items() if base[entry[0]] is not entry[1]])
    else:
        return None
    for value in writes.values():
        if type(value) not in SCALARS:
            return None
    return writes


def _pickle_mutable(writes: Entries) -> bool:
    """Pickle mutable values in place; True if there was neither one nor a tombstone."""
    if SCALARS.issuperset(map(type, writes.values())):
        return True
    plain = True
    for name, value in writes.items():
        found = plain_value(value)  # a scalar of numpy or pandas is a Python value
        if type(found) in SCALARS:
            writes[name] = found
            continue
        plain = False
        if found is not GONE:
            writes[name] = bytearray(dumps(found))
    return plain


def copy_entries(entries: Entries) -> Entries:
    """Committed entries as users read them: a copy that may be changed."""
    return {
        name: loads(value) if type(value) is bytearray else value for name, value in entries.items()
    }


def is_slow_path(entries: Entries) -> bool:
    """Whether entries are many, or any of them is mutable: they are read through a ``KeyView``."""
    return len(entries) > COPIED_ENTRIES or not SCALARS.issuperset(map(type, entries.values()))

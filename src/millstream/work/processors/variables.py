"""The state variables of Spark's processors, as entries of the key that is being reduced.

A variable is made once, in ``init``, and serves every key: it works on the entries of the key that
its scope is bound to. An entry holds a scalar, or bytes that are pickled; the name of an entry
begins with that of its variable:

    count              the only field of a value, or how many items a list has
    count.total        a field of a value with several
    seen[0]            some items of a list
    pages[home]        the value of a text or number in a map, if both are single fields
    pages(('a', 1))    a key of a map with its value
    count@ttl          when a value expires, in milliseconds

A value with a time-to-live is invisible from the time on at which it expires, and is removed by a
timer of its key.
"""

# ruff: noqa: N802, N803 (the names are those of Spark)
from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from millstream.state.key_view import View
from millstream.state.pickling import dumps, loads
from millstream.work.processors.state_schema import StateSchema

_MISSING: Final = object()
_SEGMENT: Final = 64
_ESCAPED: Final = str.maketrans({char: f"%{ord(char):02x}" for char in "%.[(@"})


class Scope:
    """What a processor works on at the moment: the state of one key, in one epoch."""

    __slots__ = ("epoch", "expires", "now", "view", "watermark")

    def __init__(self) -> None:
        self.view: Any = None  # any, as a check of each call would be for the type checker alone
        self.epoch = 0
        self.now = -1
        self.watermark = -1
        self.expires: int | None = None
        """When the first of the values that were written expires, in milliseconds."""

    def bind(self, view: View) -> None:
        """Work on the state of a key."""
        self.view = view
        self.expires = None


class Unbound:
    """Stands for the state of a key where there is none: in ``init`` and ``close``."""

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError(
            "state can be read and written while a key is processed only, not in init or close"
        )

    __getattr__ = __setitem__ = __getitem__ = __delitem__ = __contains__ = __iter__ = _refuse


UNBOUND: Final[Any] = Unbound()


class Variable:
    """What all kinds share."""

    __slots__ = ("_at", "_scope", "_ttl", "name")

    def __init__(self, name: str, scope: Scope, ttl: int | None) -> None:
        self.name = name
        self._at = escaped(name)
        self._scope = scope
        self._ttl = ttl

    @property
    def expires(self) -> bool:
        """Whether its values have a time-to-live."""
        return self._ttl is not None

    def _expiry(self) -> int:
        """When what is written now expires."""
        assert self._ttl is not None
        at = self._scope.now + self._ttl
        if self._scope.expires is None or at < self._scope.expires:
            self._scope.expires = at
        return at

    def purge(self) -> int | None:
        """Remove what has expired; when the next part of the rest does."""
        return None


def escaped(name: str) -> str:
    """How the names of the entries of a variable begin."""
    return name.translate(_ESCAPED)


def entries_of(view: View, name: str) -> list[str]:
    """The entries of a variable, whatever its kind is."""
    at = escaped(name)
    parts = tuple(at + mark for mark in ".[(@")
    return [entry for entry in view if entry == at or entry.startswith(parts)]


class ValueVariable(Variable):
    """A single value for each key."""

    __slots__ = ("_first", "_names", "_schema", "_until")

    def __init__(self, name: str, scope: Scope, schema: StateSchema, ttl: int | None) -> None:
        super().__init__(name, scope, ttl)
        self._schema = schema
        at = self._at
        only = schema.only
        self._names = [at] if only else [f"{at}.{escaped(f.name)}" for f in schema.fields]
        self._first = self._names[0]
        self._until = f"{at}@ttl"

    def exists(self) -> bool:
        return self._first in self._scope.view and not self._is_expired()

    def get(self) -> tuple[Any, ...] | None:
        view = self._scope.view
        if self._first not in view or self._is_expired():
            return None
        return self._schema.decode([view.get(name) for name in self._names])

    def update(self, newValue: Any) -> None:
        stored = self._schema.encode(newValue)
        view = self._scope.view
        for name, item in zip(self._names, stored, strict=True):
            view[name] = item
        if self._ttl is not None:
            view[self._until] = self._expiry()

    def clear(self) -> None:
        view = self._scope.view
        for name in (*self._names, self._until):
            if name in view:
                del view[name]

    def _is_expired(self) -> bool:
        if self._ttl is None:
            return False
        until = self._scope.view.get(self._until)
        return until is not None and until <= self._scope.now

    def purge(self) -> int | None:
        until: int | None = self._scope.view.get(self._until)
        if until is not None and until <= self._scope.now:
            self.clear()
            return None
        return until


class ScalarVariable(Variable):
    """A single value of one field for each key, without a time-to-live: the usual kind."""

    __slots__ = ("_field", "_schema")

    def __init__(self, name: str, scope: Scope, schema: StateSchema) -> None:
        super().__init__(name, scope, None)
        assert schema.only is not None
        self._schema = schema
        self._field = schema.only

    def exists(self) -> bool:
        return self._at in self._scope.view

    def get(self) -> tuple[Any, ...] | None:
        stored = self._scope.view.get(self._at, _MISSING)
        return None if stored is _MISSING else (self._field.decode(stored),)

    def update(self, newValue: Any) -> None:
        if type(newValue) is tuple and len(newValue) == 1:
            self._scope.view[self._at] = self._field.encode(newValue[0])
        else:
            [self._scope.view[self._at]] = self._schema.encode(newValue)

    def clear(self) -> None:
        if self._at in self._scope.view:
            del self._scope.view[self._at]


class ScalarsVariable(ValueVariable):
    """A single value of several scalar fields for each key, without a time-to-live."""

    __slots__ = ("_kinds", "_read")

    def __init__(self, name: str, scope: Scope, schema: StateSchema) -> None:
        super().__init__(name, scope, schema, None)
        self._read = itemgetter(*self._names)
        self._kinds = tuple(f.of_all for f in schema.fields)

    def get(self) -> tuple[Any, ...] | None:
        try:
            found: tuple[Any, ...] = self._read(self._scope.view)
        except KeyError:
            return super().get()  # none, or one that was stored with fewer fields
        return found

    def update(self, newValue: Any) -> None:
        if type(newValue) is tuple and len(newValue) == len(self._names):
            view = self._scope.view
            for name, kind, item, field in zip(
                self._names, self._kinds, newValue, self._schema.fields, strict=True
            ):
                view[name] = item if type(item) is kind else field.encode(item)
        else:
            super().update(newValue)


class ListVariable(Variable):
    """A list of values for each key, some of them in an entry."""

    __slots__ = ("_schema",)

    def __init__(self, name: str, scope: Scope, schema: StateSchema, ttl: int | None) -> None:
        super().__init__(name, scope, ttl)
        self._schema = schema

    def _segment(self, number: int) -> str:
        return f"{self._at}[{number}]"

    def _items(self) -> list[tuple[Any, ...]]:
        """All items; with a time-to-live each begins with the time at which it expires."""
        count = self._scope.view.get(self._at, 0)
        names = map(self._segment, range(-(-count // _SEGMENT)))
        return list(chain.from_iterable(loads(self._scope.view[name]) for name in names))

    def _write(self, items: list[tuple[Any, ...]], first: int = 0) -> None:
        """Store the items from a segment on; the last ones of the list."""
        view = self._scope.view
        before = -(-view.get(self._at, 0) // _SEGMENT)
        for start in range(0, len(items), _SEGMENT):
            view[self._segment(first + start // _SEGMENT)] = dumps(items[start : start + _SEGMENT])
        count = first * _SEGMENT + len(items)
        for number in range(-(-count // _SEGMENT), before):
            del view[self._segment(number)]
        if count:
            view[self._at] = count
        elif self._at in view:
            del view[self._at]

    def _checked(self, values: Any) -> list[tuple[Any, ...]]:
        if values is None or isinstance(values, str | bytes):
            raise TypeError(f"{self._schema.role} was given {values!r}; give a list of tuples")
        found = [self._schema.plain(value) for value in values]
        if not found:
            raise ValueError(f"{self._schema.role} was given an empty list; call clear() instead")
        if self._ttl is None:
            return found
        until = self._expiry()
        return [(until, *value) for value in found]

    def exists(self) -> bool:
        if self._ttl is None:
            return self._at in self._scope.view
        return any(item[0] > self._scope.now for item in self._items())

    def get(self) -> Iterator[tuple[Any, ...]]:
        items = self._items()
        if self._ttl is not None:
            now = self._scope.now
            items = [item[1:] for item in items if item[0] > now]
        return map(self._schema.read, items)

    def put(self, newState: Any) -> None:
        self._write(self._checked(newState))

    def appendValue(self, newState: Any) -> None:
        self.appendList([newState])

    def appendList(self, newState: Any) -> None:
        more = self._checked(newState)
        count = self._scope.view.get(self._at, 0)
        last, within = divmod(count, _SEGMENT)
        known = loads(self._scope.view[self._segment(last)]) if within else []
        self._write(known + more, last)

    def clear(self) -> None:
        self._write([])

    def purge(self) -> int | None:
        items = self._items()
        kept = [item for item in items if item[0] > self._scope.now]
        if len(kept) < len(items):
            self._write(kept)
        return min((item[0] for item in kept), default=None)


class MapVariable(Variable):
    """A map for each key, with an entry for every key of the map."""

    __slots__ = ("_is_plain", "_keys", "_of_plain", "_of_text", "_pairs", "_values")

    def __init__(
        self, name: str, scope: Scope, keys: StateSchema, values: StateSchema, ttl: int | None
    ) -> None:
        super().__init__(name, scope, ttl)
        self._keys, self._values = keys, values
        self._of_plain, self._pairs = f"{self._at}[", f"{self._at}("
        key, value = keys.only, values.only
        of_scalars = key is not None and value is not None and value.is_scalar and ttl is None
        self._of_text = key is not None and key.scalar is str
        self._is_plain = of_scalars and key is not None and key.scalar in (str, int)

    def _entry(self, key: Any) -> tuple[str, tuple[Any, ...]]:
        """The entry of a key of the map, and the key itself, checked."""
        found = self._keys.plain(key)
        if self._is_plain and found[0] is not None:
            return f"{self._of_plain}{found[0]}]", found
        return f"{self._pairs}{found!r})", found

    def _live(self, name: str) -> tuple[Any, ...] | None:
        """The value of an entry, unless it has expired."""
        stored = self._scope.view.get(name, _MISSING)
        if stored is _MISSING:
            return None
        if name.startswith(self._of_plain):
            return (stored,)
        _, value, until = loads(stored)
        if until is not None and until <= self._scope.now:
            return None
        return self._values.read(value)

    def _names(self) -> list[str]:
        parts = (self._of_plain, self._pairs)
        return [name for name in self._scope.view if name.startswith(parts)]

    def _pair(self, name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        value = self._live(name)
        if value is None:
            return None
        if name.startswith(self._of_plain):
            text = name[len(self._of_plain) : -1]
            return ((text if self._of_text else int(text)),), value
        return self._keys.read(loads(self._scope.view[name])[0]), value

    def exists(self) -> bool:
        return any(self._live(name) is not None for name in self._names())

    def getValue(self, key: Any) -> Any:
        found = self._live(self._entry(key)[0])
        # A row, as on Spark; the values of its iterator are tuples.
        return None if found is None else self._values.row(found)

    def containsKey(self, key: Any) -> bool:
        return self._live(self._entry(key)[0]) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        name, found = self._entry(key)
        if name.startswith(self._of_plain):
            [self._scope.view[name]] = self._values.encode(value)
        else:
            until = None if self._ttl is None else self._expiry()
            self._scope.view[name] = dumps((found, self._values.plain(value), until))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        pairs = [self._pair(name) for name in self._names()]
        return iter([pair for pair in pairs if pair is not None])

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([key for key, _ in self.iterator()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([value for _, value in self.iterator()])

    def removeKey(self, key: Any) -> None:
        name, _ = self._entry(key)
        if name in self._scope.view:
            del self._scope.view[name]

    def clear(self) -> None:
        for name in self._names():
            del self._scope.view[name]

    def purge(self) -> int | None:
        times = []
        for name in self._names():
            until = loads(self._scope.view[name])[2]
            if until <= self._scope.now:
                del self._scope.view[name]
            else:
                times.append(until)
        return min(times, default=None)

"""State that a reducer declares as a dataclass: its fields are the entries of a key.

The function gets an object, and what it changed is written back by field, so that the declaration
may change between two starts: a field that a key has no entry for has its default, and an entry
without a field is removed when its key is next reduced. A field that still has its default is not
stored.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import MutableMapping
from typing import Any, Union

from millstream.errors import DataError, Place
from millstream.flow.functions import Function, place_of
from millstream.ring.scalars import plain_types, plain_value
from millstream.state.pickling import dumps
from millstream.state.values import value_text
from millstream.work.function_outputs import extend_outputs

_MISSING = object()
_View = MutableMapping[str, Any]


class StateTypeError(DataError):
    """A field of a key's state has another type than its dataclass declares."""

    def __init__(
        self,
        job: str,
        key: str,
        field: str,
        expected: str,
        value: str,
        stored: bool,
        place: Place | None,
    ) -> None:
        super().__init__(job, key, field, expected, value, stored, place)
        self.job, self.key, self.field, self.expected = job, key, field, expected
        self.value, self.stored, self.place = value, stored, place

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        how = "is stored as" if self.stored else "was set to"
        fix = (
            "keep the type of a field once there is state of it: give the new type another name"
            if self.stored
            else "convert the value, or declare the field with its type"
        )
        return (
            f"{where}job {self.job!r}, key {self.key}: the field {self.field!r} {how} {self.value},"
            f" but is declared as {self.expected}; {fix}"
        )


@dataclasses.dataclass(frozen=True)
class _Field:
    """A field of the dataclass; ``accepts`` is empty where anything may be stored."""

    name: str
    accepts: tuple[type, ...]
    declared: str
    init: bool
    default: Any
    blank: bytes | None

    def fits(self, value: Any) -> bool:
        return not self.accepts or isinstance(value, self.accepts)

    def is_default(self, value: Any) -> bool:
        """Whether a field that was not stored needs not be stored now."""
        if self.blank is None:
            return value is self.default
        return dumps(value) == self.blank


class _TypedState:
    """What the state of a key has beside the fields that the user declared."""

    # Names that no field has.
    _millstream_view: Any
    _millstream_cleared: bool

    @property
    def timers(self) -> Any:
        """The timers of the key."""
        return self._millstream_view.timers

    def clear(self) -> None:
        """Remove the key with all its fields: they have their defaults again."""
        fresh = _declared(type(self))()
        for field in dataclasses.fields(fresh):
            setattr(self, field.name, getattr(fresh, field.name))
        self._millstream_cleared = True

    def __reduce__(self) -> Any:
        declared = _declared(type(self))
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(declared)}
        return _plain, (declared, values)  # as a value in an output, it is what was declared


def _declared(cls: type) -> Any:
    return cls.__mro__[2]


def _plain(declared: Any, values: dict[str, Any]) -> Any:
    made = declared.__new__(declared)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class StateType:
    """Reads a dataclass from the entries of a key, and writes what changed."""

    def __init__(self, declared: type, job: str, place: Place | None) -> None:
        self._class: Any = type(declared.__name__, (_TypedState, declared), {})
        self._fields = _fields_of(declared)
        self._names = frozenset(field.name for field in self._fields)
        self._job = job
        self._place = place

    def read(self, key: Any, view: _View) -> Any:
        """The state of a key as an object."""
        given: dict[str, Any] = {}
        late: dict[str, Any] = {}
        if view:
            for field in self._fields:
                value = view.get(field.name, _MISSING)
                if value is _MISSING:
                    continue
                if not field.fits(value):
                    raise self._misfit(key, field, value, stored=True)
                (given if field.init else late)[field.name] = value
        state = self._class(**given)
        for name, value in late.items():
            setattr(state, name, value)
        state._millstream_view, state._millstream_cleared = view, False
        return state

    def write(self, key: Any, state: Any, view: _View) -> None:
        """Write the fields that changed; a value that was changed in place is found later on."""
        if state._millstream_cleared:
            view.clear()
        for field in self._fields:
            value = getattr(state, field.name)
            known = view.get(field.name, _MISSING)
            if known is value or (known is _MISSING and field.is_default(value)):
                continue
            if not field.fits(value) and not field.fits(value := plain_value(value)):
                raise self._misfit(key, field, value, stored=False)
            view[field.name] = value
        for name in view.keys() - self._names:
            del view[name]

    def _misfit(self, key: Any, field: _Field, value: Any, *, stored: bool) -> StateTypeError:
        return StateTypeError(
            self._job,
            value_text(key),
            field.name,
            field.declared,
            value_text(value),
            stored,
            self._place,
        )


def _fields_of(declared: Any) -> list[_Field]:
    try:
        hints = typing.get_type_hints(declared)
    except Exception:  # a name for the type checker only: then no field is checked
        hints = {}
    return [_field_of(field, hints.get(field.name)) for field in dataclasses.fields(declared)]


def _field_of(field: dataclasses.Field[Any], hint: object) -> _Field:
    factory: Any = field.default_factory
    # By type: a class that was pickled by value has a copy of the mark.
    is_made = not isinstance(factory, type(dataclasses.MISSING))
    return _Field(
        field.name,
        _accepted(hint),
        hint.__name__ if isinstance(hint, type) else str(hint),
        field.init,
        field.default,
        dumps(factory()) if is_made else None,
    )


def _accepted(hint: object) -> tuple[type, ...]:
    """The classes of values that fit a plain annotation; empty if it is not plain.

    A scalar of numpy or pandas is stored as a plain value, so that its annotation accepts both.
    """
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        parts = [_accepted(part) for part in typing.get_args(hint)]
        return () if not all(parts) else tuple(kind for part in parts for kind in part)
    if hint is None:
        return (type(None),)
    found = hint if origin is None else origin
    if not isinstance(found, type) or getattr(found, "_is_protocol", False):
        return ()
    try:
        isinstance(None, found)
    except Exception:  # Any, or a TypedDict: nothing is an instance of it
        return ()
    return (float, int) if found is float else (found, *plain_types(found))


def with_typed_state(function: Function, declared: type | None, job: str) -> Function:
    """A function that gets a dataclass for the mapping that it is called with as ``state``."""
    if declared is None:
        return function
    kind = StateType(declared, job, place_of(function))

    @functools.wraps(function)
    def typed(key: Any, *given: Any, **named: Any) -> list[Any]:
        is_named = "state" in named
        view: _View = named["state"] if is_named else given[-1]
        state = kind.read(key, view)
        outputs: list[Any] = []
        if is_named:
            extend_outputs(outputs, function(key, *given, **{**named, "state": state}))
        else:
            extend_outputs(outputs, function(key, *given[:-1], state))
        kind.write(key, state, view)
        return outputs

    return typed

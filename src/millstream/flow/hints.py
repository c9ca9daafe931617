"""From Python annotations and declared types to Arrow types.

A type that an annotation does not determine is None, and is inferred from the first epoch.
"""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

import pyarrow as pa

from millstream.errors import Place, WorkflowError
from millstream.flow.functions import original
from millstream.ring.key_types import struct_of
from millstream.ring.keys import KeyTypeError, canonical_type
from millstream.state.values import value_text

_SCALARS: dict[Any, pa.DataType] = {
    str: pa.string(),
    bytes: pa.binary(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us", "UTC"),
    decimal.Decimal: pa.decimal128(38, 18),
    type(None): pa.null(),
}
_KEYS = (str, bytes, int, float, bool, datetime.date, datetime.datetime, type(None), tuple)
_UNIONS = (Union, types.UnionType)
_STREAMS = (
    list,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
)

ALLOWED_KEYS = "str, bytes, int, float, bool, date, datetime, None and tuples of these"


def arrow_type(hint: object) -> pa.DataType | None:
    """Translate an annotation; None when it does not determine one Arrow type."""
    hint = _plain(hint)
    if isinstance(hint, pa.DataType):
        return hint
    if isinstance(hint, type) and hint in _SCALARS:
        # A datetime may be aware or naive: that depends on the data.
        return None if hint is datetime.datetime else _SCALARS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        only = _only(args)
        return arrow_type(only) if only is not None else None
    if origin is list and len(args) == 1:
        item = arrow_type(args[0])
        return pa.list_(item) if item is not None else None
    return None


def key_type(hint: object, role: str, place: Place | None) -> pa.DataType | None:
    """Translate the annotation of a key; reject types that cannot be keys."""
    hint = _plain(hint)
    if isinstance(hint, pa.DataType):
        try:
            return canonical_type(hint)
        except KeyTypeError:
            raise _not_a_key(hint, role, place) from None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args and Ellipsis not in args:
        fields = [key_type(arg, role, place) for arg in args]
        if any(field is None for field in fields):
            return None
        return struct_of(fields)
    if origin in _UNIONS:
        only = _only(args)
        return key_type(only, role, place) if only is not None else None
    if not _may_be_key(hint if origin is None else origin):
        raise _not_a_key(hint, role, place)
    return arrow_type(hint)


def declared_key_type(declared: object, role: str, place: Place) -> pa.DataType | None:
    """Read ``key_type=``: a Python or Arrow type; None when it leaves the type to the data."""
    hint = _plain(declared)
    if not isinstance(hint, type | pa.DataType) and typing.get_origin(hint) is None:
        raise _not_a_key(declared, role, place)
    return key_type(hint, role, place)


def _plain(hint: object) -> object:
    """The type that a ``NewType`` stands for."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    return hint


def _only(args: tuple[object, ...]) -> object | None:
    """The single type of a union with None."""
    rest = [arg for arg in args if arg is not type(None)]
    return rest[0] if len(rest) == 1 else None


def _may_be_key(kind: object) -> bool:
    if not isinstance(kind, type) or kind is Any:
        return True
    try:
        return any(issubclass(kind, key) or issubclass(key, kind) for key in _KEYS)
    except TypeError:  # a protocol without runtime checks
        return True


def _not_a_key(hint: object, role: str, place: Place | None) -> WorkflowError:
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return WorkflowError(
        f"{role} gives keys of type {name}, which is not a key type",
        f"use one of {ALLOWED_KEYS}",
        place,
    )


def yielded(function: object) -> object | None:
    """The annotation of one item of the results of a generator or list function, if any."""
    hint = returned(function)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    return args[0] if origin in _STREAMS and args else None


def returned(function: object) -> object | None:
    """The resolved annotation of the result of a function, if any."""
    target: Any = original(function)

    def only_return() -> None: ...

    # Alone, because one parameter that cannot be resolved would fail them all: types that are
    # imported for the type checker only are common there.
    try:
        only_return.__annotations__ = {"return": target.__annotations__["return"]}
        hints = typing.get_type_hints(only_return, target.__globals__)
    except Exception:  # an annotation that cannot be resolved
        return None
    return typing.cast("object | None", hints["return"])


def pair_types(item: object | None) -> tuple[object | None, object | None]:
    """Split the annotation ``tuple[K, V]`` (or with a timestamp) into key and value."""
    if item is not None and typing.get_origin(item) is tuple:
        args = typing.get_args(item)
        if len(args) in (2, 3) and Ellipsis not in args:
            return args[0], args[1]
    return None, None


def record_schema(item: object | None) -> pa.Schema | None:
    """The columns of records annotated as ``item``, when all of them are known."""
    if item is None:
        return None
    if typing.get_origin(item) is tuple:
        args = typing.get_args(item)
        if not args or Ellipsis in args:
            return None
        names = ["key", "value"] if len(args) == 2 else [f"_{i + 1}" for i in range(len(args))]
        columns = [arrow_type(arg) for arg in args]
    else:
        names, columns = ["value"], [arrow_type(item)]
    if any(column is None or pa.types.is_null(column) for column in columns):
        return None
    return pa.schema(list(zip(names, columns, strict=True)))


def declared_schema(declared: object, place: Place) -> pa.Schema:
    """Read ``output=``: an Arrow schema, or a mapping of column names to types."""
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, Mapping) and declared:
        fields = []
        for name, hint in declared.items():
            hint = _plain(hint)
            column = _SCALARS.get(hint) if isinstance(hint, type) else arrow_type(hint)
            if not isinstance(name, str) or column is None:
                raise WorkflowError(
                    f"output= has {name!r}: {hint!r}, which is not a column name and a type",
                    "use Python types such as str and int, or pyarrow types",
                    place,
                )
            fields.append(pa.field(name, column))
        return pa.schema(fields)
    raise WorkflowError(
        f"output= got {value_text(declared)}",
        "give a pyarrow.Schema or a mapping such as {'word': str, 'n': int}",
        place,
    )

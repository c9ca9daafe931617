"""From Python annotations and declared types to Arrow types.

What cannot be told from an annotation is None, and is then inferred from the first epoch.
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
_KEY_SCALARS = (str, bytes, int, float, bool, datetime.date, datetime.datetime, type(None))
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
    if isinstance(hint, pa.DataType):
        return hint
    if hint in _SCALARS:
        # A datetime may be aware or naive: only the data can tell.
        return None if hint is datetime.datetime else _SCALARS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        return arrow_type(rest[0]) if len(rest) == 1 else None
    if origin is list and len(args) == 1:
        item = arrow_type(args[0])
        return pa.list_(item) if item is not None else None
    return None


def key_type(hint: object, role: str, place: Place | None) -> pa.DataType | None:
    """Translate the annotation of a key, refusing what can never be a key."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args and Ellipsis not in args:
        fields = [key_type(arg, role, place) for arg in args]
        if any(field is None for field in fields):
            return None
        return pa.struct([pa.field(f"f{i}", field) for i, field in enumerate(fields)])
    if hint in _KEY_SCALARS:
        return arrow_type(hint)
    if isinstance(hint, type) and not issubclass(hint, (*_KEY_SCALARS, tuple)) and hint is not object:
        raise _not_a_key(hint, role, place)
    if origin in (list, dict, set, frozenset):
        raise _not_a_key(hint, role, place)
    if origin in (Union, types.UnionType):
        return arrow_type(hint)
    return None


def _not_a_key(hint: object, role: str, place: Place | None) -> WorkflowError:
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return WorkflowError(
        f"{role} gives keys of type {name}, which is not a key type",
        f"use one of {ALLOWED_KEYS}",
        place,
    )


def yielded(function: object) -> object | None:
    """The annotation of one item that a generator or list function gives, if any."""
    hint = _hints(function).get("return")
    if hint is None:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    return args[0] if origin in _STREAMS and args else None


def returned(function: object) -> object | None:
    """The annotation of what a function returns, if any."""
    return typing.cast("object | None", _hints(function).get("return"))


def _hints(function: object) -> dict[str, Any]:
    target = function if hasattr(function, "__annotations__") else getattr(function, "__call__", None)
    try:
        return typing.get_type_hints(target)
    except Exception:  # an annotation that cannot be resolved tells nothing
        return {}


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
        if Ellipsis in args:
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
        f"output= got {declared!r}",
        "give a pyarrow.Schema or a mapping such as {'word': str, 'n': int}",
        place,
    )

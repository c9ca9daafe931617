"""Columns of Python values in Arrow, exactly.

Values that users' functions exchange come back as they were: columns of one plain type travel
as Arrow, everything else is pickled and marked so in the field's metadata. With a declared
type the column is that Arrow type, or a ``ValueTypeError``.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.state.pickling import dumps, loads

PICKLED = {b"millstream": b"pickled"}
_NONE = type(None)
_PLAIN: dict[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    datetime.date: pa.date32(),
}


class ValueTypeError(MillstreamError):
    """A value does not fit the type of its column."""

    def __init__(self, column: str, expected: str, value: str, row: int) -> None:
        super().__init__(column, expected, value, row)
        self.column, self.expected, self.value, self.row = column, expected, value, row

    def __str__(self) -> str:
        return f"{self.value} does not fit column {self.column!r} of type {self.expected}"


def encode_column(
    name: str, values: Sequence[Any], declared: pa.DataType | None = None
) -> tuple[pa.Field, pa.Array]:
    """Encode values as a column of the declared type, or exactly as they are."""
    if declared is not None:
        return pa.field(name, declared), _as_declared(name, values, declared)
    kinds = set(map(type, values)) - {_NONE}
    if not kinds:
        return pa.field(name, pa.null()), pa.nulls(len(values))
    if len(kinds) == 1:
        plain = _PLAIN.get(next(iter(kinds)))
        if plain is not None:
            try:
                return pa.field(name, plain), pa.array(values, type=plain)
            except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
                pass  # an integer beyond 64 bits, a lone surrogate: only pickle carries it
    blobs = [None if value is None else dumps(value) for value in values]
    return pa.field(name, pa.binary(), metadata=PICKLED), pa.array(blobs, pa.binary())


def _as_declared(name: str, values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    try:
        array = pa.array(values, type=declared)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError):
        raise _misfit(name, values, declared) from None
    # Arrow takes True for 1 and 1 for True without a word; we do not.
    kinds = set(map(type, values)) - {_NONE}
    if (bool in kinds) != pa.types.is_boolean(declared) and kinds & {bool, int, float}:
        if bool in kinds or pa.types.is_boolean(declared):
            raise _misfit(name, values, declared)
    return array


def _misfit(name: str, values: Sequence[Any], declared: pa.DataType) -> ValueTypeError:
    for row, value in enumerate(values):
        try:
            pa.array([value], type=declared)
            wrong = value is not None and isinstance(value, bool) != pa.types.is_boolean(declared)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError):
            wrong = True
        if wrong and (
            not isinstance(value, bool) or not pa.types.is_boolean(declared)
        ):
            return ValueTypeError(name, str(declared), shown(value), row)
    return ValueTypeError(name, str(declared), shown(values[0]), 0)


def shown(value: object, limit: int = 80) -> str:
    """A value and its type, short enough for a message."""
    text = repr(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f"{text} ({type(value).__name__})"


def is_pickled(field: pa.Field) -> bool:
    return bool(field.metadata) and field.metadata.get(b"millstream") == b"pickled"


def decode_column(field: pa.Field, array: pa.Array) -> list[Any]:
    """Give back the Python values of a column."""
    if is_pickled(field):
        return [None if blob is None else loads(blob) for blob in array.to_pylist()]
    return list(array.to_pylist())


def unify(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """Find the one type that several inferred ones fit in: equal, null, or int with float."""
    seen: list[pa.DataType] = []
    for found in types:
        if not pa.types.is_null(found) and found not in seen:
            seen.append(found)
    if len(seen) == 1:
        return seen[0]
    if not seen:
        return pa.null()
    if all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in seen):
        return pa.float64()
    return None

"""Columns of Python values in Arrow, exactly.

Values that users' functions exchange come back as they were: columns of one plain type travel
as Arrow, everything else is pickled and marked so in the field's metadata. Datetimes travel as
Arrow, too, and are marked, because other values of the column may have other types. With a
declared type the column is that Arrow type, or a ``ValueTypeError``.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import MillstreamError
from millstream.ring.key_types import is_tuple
from millstream.ring.scalars import conversion, plain_value
from millstream.state.instants import datetimes, timestamp_of
from millstream.state.pickling import dumps, loads

PICKLED = {b"millstream": b"pickled"}
_MIXED = {b"millstream": b"mixed"}
UNFIT = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)
"""The errors of Arrow and Python for a value that a column cannot hold."""
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
    values, kinds = plain_scalars(values)
    kinds.discard(_NONE)
    if not kinds:
        return pa.field(name, pa.null()), pa.nulls(len(values))
    if len(kinds) == 1:
        [kind] = kinds
        is_time = kind is datetime.datetime
        plain = timestamp_of(values) if is_time else _PLAIN.get(kind)
        if plain is not None:
            try:
                field = pa.field(name, plain, metadata=_MIXED if is_time else None)
                return field, pa.array(values, type=plain)
            except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
                pass  # an integer beyond 64 bits, a lone surrogate: only pickle carries it
    blobs = [
        None if value is None else _pickled(name, row, value) for row, value in enumerate(values)
    ]
    return pa.field(name, pa.binary(), metadata=PICKLED), pa.array(blobs, pa.binary())


def plain_scalars(values: Sequence[Any]) -> tuple[Sequence[Any], set[type]]:
    """Values, with scalars of numpy and pandas as Python's own, and the types among them."""
    kinds = set(map(type, values))
    if any(map(conversion, kinds)):
        values = list(map(plain_value, values))
        kinds = set(map(type, values))
    return values, kinds


def _pickled(name: str, row: int, value: Any) -> bytes:
    try:
        return dumps(value)
    except Exception as problem:  # whatever a user's __reduce__ raises
        raise ValueTypeError(
            name, f"anything that pickles ({problem})", value_text(value), row
        ) from None


def _as_declared(name: str, values: Sequence[Any], declared: pa.DataType) -> pa.Array:
    values, kinds = plain_scalars(values)
    try:
        array = pa.array(values, type=declared)
    except UNFIT:
        raise _misfit(name, values, declared) from None
    if pa.types.is_nested(declared):
        changed = any(_is_changed(value, declared) for value in values)
    else:
        changed = any(issubclass(kind, _lossy_types(declared)) for kind in kinds)
    if changed:
        raise _misfit(name, values, declared)
    return array


def _lossy_types(declared: pa.DataType) -> tuple[type, ...]:
    """The Python types that Arrow accepts for a declared type by changing the value."""
    # Measured with Arrow 26: 1.5 becomes the integer 1, True the float 1.0, a datetime its day,
    # 5 the fifth microsecond of 1970, and bytes and str stand for each other.
    is_ = pa.types
    if is_.is_integer(declared):
        return (bool, float, decimal.Decimal)
    if is_.is_floating(declared) or is_.is_decimal(declared):
        return (bool,)
    if is_.is_string(declared) or is_.is_large_string(declared) or is_.is_string_view(declared):
        return (bytes, bytearray, memoryview)
    if is_.is_binary(declared) or is_.is_large_binary(declared) or is_.is_binary_view(declared):
        return (str,)
    if is_.is_date(declared):
        return (int, datetime.datetime)
    return (int,) if is_.is_temporal(declared) else ()


def _is_changed(value: Any, declared: pa.DataType) -> bool:
    """Whether Arrow accepts the value for the type, but changes it."""
    is_ = pa.types
    if value is None:
        return False
    if is_.is_list(declared) or is_.is_large_list(declared) or is_.is_fixed_size_list(declared):
        return any(_is_changed(item, declared.value_type) for item in value)
    if is_.is_struct(declared) and isinstance(value, dict):
        return any(_is_changed(value.get(field.name), field.type) for field in declared)
    return isinstance(value, _lossy_types(declared))


def _misfit(name: str, values: Sequence[Any], declared: pa.DataType) -> ValueTypeError:
    row = next(row for row, value in enumerate(values) if not _fits(value, declared))
    return ValueTypeError(name, str(declared), value_text(values[row]), row)


def _fits(value: Any, declared: pa.DataType) -> bool:
    try:
        pa.array([value], type=declared)
    except UNFIT:
        return False
    return not _is_changed(value, declared)


def value_text(value: object, limit: int = 80) -> str:
    """A value and its type, short enough for a message."""
    try:
        text = repr(value)
    except Exception as problem:  # of a user's class, within the report of another error
        text = f"<its repr raises {type(problem).__name__}>"
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f"{text} ({type(value).__name__})"


def is_pickled(field: pa.Field) -> bool:
    return bool(field.metadata) and field.metadata.get(b"millstream") == b"pickled"


def may_mix_types(field: pa.Field) -> bool:
    """Whether other values of the column may have other types, as it holds Python objects."""
    return bool(field.metadata) and b"millstream" in field.metadata


def decode_column(field: pa.Field, array: pa.Array) -> list[Any]:
    """Decode the Python values of a column."""
    if is_pickled(field):
        return [None if blob is None else loads(blob) for blob in array.to_pylist()]
    if pa.types.is_timestamp(array.type):
        return datetimes(array)
    if is_tuple(array.type):
        return _tuples(array)
    return list(array.to_pylist())


def _tuples(array: pa.StructArray) -> list[Any]:
    """A struct with the fields of a tuple is a tuple."""
    columns = zip(array.type, array.flatten(), strict=True)
    items = [decode_column(field, column) for field, column in columns]
    rows: list[Any] = list(zip(*items, strict=True)) if items else [()] * len(array)
    if array.null_count:
        for at in pc.indices_nonzero(array.is_null()).to_pylist():
            rows[at] = None
    return rows


def unify(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """Find the common type of several inferred ones: equal, null, or all numbers.

    Structs fit if their fields do.
    """
    seen = list(dict.fromkeys(found for found in types if not pa.types.is_null(found)))
    if len(seen) <= 1:
        return seen[0] if seen else pa.null()
    if all(pa.types.is_integer(found) for found in seen):
        return pa.int64()
    if all(pa.types.is_integer(found) or pa.types.is_floating(found) for found in seen):
        return pa.float64()
    return _unify_fields(seen, unify)


def _unify_fields(
    structs: Sequence[pa.DataType],
    unify_types: Callable[[Iterable[pa.DataType]], pa.DataType | None],
) -> pa.DataType | None:
    if not all(pa.types.is_struct(found) for found in structs):
        return None
    names = [[field.name for field in found] for found in structs]
    if any(found != names[0] for found in names):
        return None
    fields = []
    for at, name in enumerate(names[0]):
        kind = unify_types(found.field(at).type for found in structs)
        if kind is None:
            return None
        fields.append(pa.field(name, kind))
    return pa.struct(fields)


def unify_nulls(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """Find the common type of several that differ by null alone, also inside tuples.

    For keys: an integer and the float that equals it are two keys, so they have no common type.
    """
    seen = list(dict.fromkeys(found for found in types if not pa.types.is_null(found)))
    if len(seen) <= 1:
        return seen[0] if seen else pa.null()
    return _unify_fields(seen, unify_nulls)

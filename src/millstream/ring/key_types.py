"""The types a key may have, and the error for any other.

This module owns the list of canonical Arrow types, the inference of a type from keys, and
:class:`KeyTypeError`. Converting keys and columns to these types is left to
:mod:`millstream.ring.keys` and :mod:`millstream.ring.key_columns`.
"""

from __future__ import annotations

import datetime as dt
import reprlib
from collections.abc import Sequence

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.ring.scalars import plain_value

STRING = pa.string()
BINARY = pa.binary()
INT64 = pa.int64()
FLOAT64 = pa.float64()
BOOL = pa.bool_()
DATE = pa.date32()
INSTANT = pa.timestamp("us", tz="UTC")
"""The type of aware datetimes."""
LOCAL = pa.timestamp("us")
"""The type of naive datetimes."""
NULL = pa.null()

_WORDS: dict[pa.DataType, str] = {
    STRING: "str",
    BINARY: "bytes",
    INT64: "int",
    FLOAT64: "float",
    BOOL: "bool",
    DATE: "date",
    INSTANT: "aware datetime",
    LOCAL: "naive datetime",
    NULL: "None",
}

# Keys are shown in errors, so cut long ones short.
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100

# Order matters: bool is an int, and datetime is a date.
_BASES = (bool, int, float, str, bytes, dt.datetime, dt.date, tuple)

_TYPE_OF_BASE: dict[type, pa.DataType] = {
    bool: BOOL,
    int: INT64,
    float: FLOAT64,
    str: STRING,
    bytes: BINARY,
    dt.date: DATE,
}


class KeyTypeError(MillstreamError):
    """A key, or a column of keys, has a type or a value that keys cannot have."""

    def __init__(self, key: str, expected: str, found: str) -> None:
        super().__init__(key, expected, found)
        self.key, self.expected, self.found = key, expected, found

    def __str__(self) -> str:
        return (
            f"key {self.key} is {self.found}, expected {self.expected}; keys are str, bytes, "
            "int (64 bits), float, bool, date, datetime, None or tuples of these (also as scalars "
            "of numpy and pandas), and all keys of a job have one type; convert the key where it "
            "is made, in map"
        )


def key_text(key: object) -> str:
    """A key as errors show it."""
    return _short.repr(key)


def bad_key(key: object, expected: pa.DataType, why: str = "") -> KeyTypeError:
    """Return the error for a key that does not fit the expected type."""
    return KeyTypeError(key_text(key), describe(expected), why or describe_key(key))


def describe(type: pa.DataType) -> str:
    """Name a canonical type in the words of Python."""
    if pa.types.is_struct(type):
        return f"tuple of ({', '.join(describe(field.type) for field in type)})"
    return _WORDS.get(type, str(type))


def describe_key(key: object) -> str:
    """Name the type of a key in the words of :func:`describe`."""
    if isinstance(key, tuple):
        return f"tuple of ({', '.join(map(describe_key, key))})"
    if isinstance(key, dt.datetime):
        return "naive datetime" if key.tzinfo is None else "aware datetime"
    return "None" if key is None else type(key).__name__


def struct_of(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the canonical type of tuples whose items have the given canonical types.

    Fields are called as Spark calls those of a tuple: ``_1``, ``_2``, and so on.
    """
    return pa.struct([pa.field(f"_{number}", type) for number, type in enumerate(types, 1)])


def is_tuple(type: pa.DataType) -> bool:
    """Whether a type is that of tuples: a struct whose fields are called ``_1``, ``_2``, …"""
    if not pa.types.is_struct(type):
        return False
    return all(field.name == f"_{number}" for number, field in enumerate(type, 1))


def canonical_type(type: pa.DataType) -> pa.DataType:
    """Return the canonical type for keys that arrive as the given Arrow type."""
    if type in _WORDS:
        return type
    is_ = pa.types
    if is_.is_dictionary(type) or is_.is_run_end_encoded(type):
        return canonical_type(type.value_type)
    if is_.is_integer(type):
        return INT64
    if is_.is_floating(type):
        return FLOAT64
    if is_.is_large_string(type) or is_.is_string_view(type):
        return STRING
    if is_.is_large_binary(type) or is_.is_binary_view(type) or is_.is_fixed_size_binary(type):
        return BINARY
    if is_.is_date(type):
        return DATE
    if is_.is_timestamp(type):
        return LOCAL if type.tz is None else INSTANT
    if is_.is_struct(type):
        return struct_of([canonical_type(field.type) for field in type])
    raise KeyTypeError("column", "a column of keys", str(type))


def infer_type(keys: Sequence[object]) -> pa.DataType:
    """Return the canonical type of the first key that is not None.

    Whether the other keys fit is checked by encoding them: an integer is no float, also if they
    are equal. Two batches of one job can differ in what they show (all None), so a job infers
    once and declares the type from then on.
    """
    found = (plain_value(key) for key in keys if key is not None)
    first: object = next((key for key in found if key is not None), None)
    if first is None:
        return NULL
    base = next((base for base in _BASES if isinstance(first, base)), None)
    if base is tuple:
        return _infer_tuple(keys, len(first))  # type: ignore[arg-type]
    if base is dt.datetime:
        return LOCAL if first.tzinfo is None else INSTANT  # type: ignore[attr-defined]
    if base is None:
        raise KeyTypeError(key_text(first), "one of the types of keys", describe_key(first))
    return _TYPE_OF_BASE[base]


def kinds_of(keys: Sequence[object]) -> set[type]:
    """Return the exact Python types among the keys."""
    return set(map(type, keys))


def _infer_tuple(keys: Sequence[object], width: int) -> pa.DataType:
    rows = [key for key in keys if isinstance(key, tuple) and len(key) == width]
    return struct_of([infer_type(column) for column in zip(*rows, strict=True)])

"""Canonical keys: the one form in which a key is hashed, compared, stored and returned.

This module owns the conversion between Python keys and canonical Arrow arrays, in which ``1``,
``True`` and ``1.0`` are three keys, ``-0.0`` is ``0.0``, every NaN is the same NaN, and an aware
datetime is its instant in UTC. Which types keys may have is in
:mod:`millstream.ring.key_types`; columns that arrive as Arrow are in
:mod:`millstream.ring.key_columns`. Both are exported here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any

import pyarrow as pa

from millstream.ring.key_columns import canonical_column, canonical_floats
from millstream.ring.key_types import (
    BINARY,
    BOOL,
    DATE,
    FLOAT64,
    INSTANT,
    INT64,
    LOCAL,
    NULL,
    STRING,
    KeyTypeError,
    bad_key,
    canonical_type,
    describe_key,
    infer_type,
    kinds_of,
)
from millstream.ring.scalars import conversion, plain_value
from millstream.ring.strides import AT_ONCE, strides

__all__ = [
    "NAN",
    "KeyTypeError",
    "canonical_column",
    "canonical_key",
    "canonical_type",
    "decode_keys",
    "encode_keys",
    "infer_type",
    "one_nan",
]

NAN = float("nan")
"""The NaN of every decoded key. A dict finds a NaN by identity only, so there is just one."""


def one_nan(key: Any) -> Any:
    """A key with :data:`NAN` in place of any other NaN, also inside of tuples."""
    if type(key) is tuple:
        return tuple(map(one_nan, key))
    return NAN if key != key else key


_PLAIN: dict[pa.DataType, type] = {
    STRING: str,
    BINARY: bytes,
    INT64: int,
    FLOAT64: float,
    BOOL: bool,
    DATE: dt.date,
}


def encode_keys(keys: Sequence[object], type: pa.DataType | None = None) -> pa.Array:
    """Encode keys as a canonical array, exactly, or raise :class:`KeyTypeError`.

    Without a type it is inferred from the keys. None fits every type.
    """
    target = infer_type(keys) if type is None else canonical_type(type)
    if pa.types.is_struct(target):
        return _encode_tuples(keys, target)
    plain = _PLAIN.get(target)
    kinds = kinds_of(keys)
    if any(map(conversion, kinds)):
        keys = list(map(plain_value, keys))
        kinds = kinds_of(keys)
    if plain is not None and kinds <= {plain, NoneType}:
        try:
            array = pa.array(keys, target)
        except (OverflowError, UnicodeError, pa.ArrowInvalid):
            pass  # some key does not fit; the slow path below finds it and names it
        else:
            return canonical_floats(array) if target == FLOAT64 else array
    convert = _converter(target)
    return pa.array([convert(key) for key in keys], target)


def decode_keys(array: pa.Array) -> list[object]:
    """Return the keys of a canonical array as Python objects that can be keys of a dict."""
    if len(array) <= AT_ONCE:
        return _decoded(array)
    keys: list[object] = []
    for at in strides(len(array)):
        keys += _decoded(array.slice(at.start, at.stop - at.start))
    return keys


def _decoded(array: pa.Array) -> list[object]:
    type = array.type
    if type in (STRING, BINARY) or (type == INT64 and not array.null_count):
        # As fast as to_pylist in recent Arrow, several times faster in older ones.
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    if type == FLOAT64:
        # x == x is false for NaN only; adding 0.0 turns -0.0 into 0.0.
        return [x if x is None else x + 0.0 if x == x else NAN for x in array.to_pylist()]
    if type == INSTANT:
        naive = array.view(LOCAL).to_pylist()
        return [x if x is None else x.replace(tzinfo=dt.UTC) for x in naive]
    if pa.types.is_struct(type):
        return _decode_tuples(array)
    if type in (INT64, BOOL, DATE, LOCAL, NULL):
        return array.to_pylist()  # type: ignore[no-any-return]
    raise KeyTypeError("column", f"a canonical column ({canonical_type(type)})", str(type))


def canonical_key(key: object, type: pa.DataType) -> object:
    """Return the key as :func:`decode_keys` would after encoding, for a single look-up."""
    return _converter(canonical_type(type))(key)


def _encode_tuples(keys: Sequence[object], target: pa.DataType) -> pa.Array:
    width = target.num_fields
    whole = kinds_of(keys) == {tuple} and set(map(len, keys)) == {width}  # type: ignore[arg-type]
    if not whole:
        for key in keys:
            if key is not None and not (isinstance(key, tuple) and len(key) == width):
                raise bad_key(key, target)
    if width == 0:
        return pa.array([None if key is None else {} for key in keys], target)
    absent = (None,) * width
    rows: Sequence[Any] = keys if whole else [absent if key is None else key for key in keys]
    columns: list[tuple[object, ...]] = list(zip(*rows, strict=True)) or [()] * width
    try:
        children = [
            encode_keys(column, field.type) for column, field in zip(columns, target, strict=True)
        ]
    except KeyTypeError:
        for key in keys:  # the error names the tuple, not only its item
            canonical_key(key, target)
        raise
    mask = None if whole else pa.array([key is None for key in keys], BOOL)
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _decode_tuples(array: pa.StructArray) -> list[object]:
    columns = [decode_keys(child) for child in array.flatten()]
    rows: list[object] = list(zip(*columns, strict=True)) if columns else [()] * len(array)
    if array.null_count:
        valid = array.is_valid().to_pylist()
        return [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    return rows


@lru_cache(maxsize=256)
def _converter(target: pa.DataType) -> Callable[[object], object]:
    """Return the function that makes one key canonical for a canonical type, or raises."""
    convert = _tuple_converter(target) if pa.types.is_struct(target) else _CONVERT[target]

    def convert_or_none(key: object) -> object:
        plain = plain_value(key)
        return None if plain is None else convert(plain)

    return convert_or_none


def _tuple_converter(target: pa.DataType) -> Callable[[object], object]:
    items = [_converter(field.type) for field in target]

    def convert(key: object) -> object:
        if not isinstance(key, tuple) or len(key) != len(items):
            raise bad_key(key, target)
        try:
            return tuple([item(part) for item, part in zip(items, key, strict=True)])
        except KeyTypeError as error:
            found = f"{describe_key(key)} ({error.key} is {error.found})"
            raise bad_key(key, target, found) from None

    return convert


# The unbound methods below return a plain value also for a subclass, such as a str Enum,
# whatever that subclass overrides.


def _to_str(key: object) -> object:
    if not isinstance(key, str):
        raise bad_key(key, STRING)
    plain = str.__str__(key)
    try:
        plain.encode()
    except UnicodeEncodeError:
        raise bad_key(key, STRING, "a str that is not valid Unicode") from None
    return plain


def _to_bytes(key: object) -> object:
    if not isinstance(key, bytes):
        raise bad_key(key, BINARY)
    return bytes(memoryview(key))


def _to_int(key: object) -> object:
    if not isinstance(key, int) or isinstance(key, bool):
        raise bad_key(key, INT64)
    if not -(2**63) <= key < 2**63:
        raise bad_key(key, INT64, "an int beyond 64 bits")
    return int.__int__(key)


def _to_float(key: object) -> object:
    if not isinstance(key, float):
        raise bad_key(key, FLOAT64)
    value = float.__add__(key, 0.0)
    return value if value == value else NAN


def _to_bool(key: object) -> object:
    if not isinstance(key, bool):
        raise bad_key(key, BOOL)
    return key


def _to_date(key: object) -> object:
    if not isinstance(key, dt.date) or isinstance(key, dt.datetime):
        raise bad_key(key, DATE)
    return dt.date(key.year, key.month, key.day)


def _to_local(key: object) -> object:
    if not isinstance(key, dt.datetime) or key.tzinfo is not None:
        raise bad_key(key, LOCAL)
    # fold has no meaning without a zone; equal datetimes must be one key.
    return _plain_datetime(key, LOCAL).replace(fold=0)


def _to_instant(key: object) -> object:
    if not isinstance(key, dt.datetime) or key.tzinfo is None:
        raise bad_key(key, INSTANT)
    try:
        return _plain_datetime(key, INSTANT).astimezone(dt.UTC)
    except OverflowError:
        raise bad_key(key, INSTANT, "outside the years 1 to 9999 in UTC") from None


def _plain_datetime(key: dt.datetime, target: pa.DataType) -> dt.datetime:
    if type(key) is dt.datetime:
        return key
    if getattr(key, "nanosecond", 0):  # a Timestamp of pandas
        raise bad_key(key, target, "finer than a microsecond")
    day = (key.year, key.month, key.day)
    time = (key.hour, key.minute, key.second, key.microsecond)
    return dt.datetime(*day, *time, tzinfo=key.tzinfo, fold=key.fold)


def _to_null(key: object) -> object:
    raise bad_key(key, NULL)


_CONVERT: dict[pa.DataType, Callable[[object], object]] = {
    STRING: _to_str,
    BINARY: _to_bytes,
    INT64: _to_int,
    FLOAT64: _to_float,
    BOOL: _to_bool,
    DATE: _to_date,
    LOCAL: _to_local,
    INSTANT: _to_instant,
    NULL: _to_null,
}

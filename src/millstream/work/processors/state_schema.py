"""The schema of a state variable: values checked, and stored as scalars.

A scalar is stored as it is, and all else pickled, so that what a processor reads is its own copy,
and a change that it does not write back is lost, as with Spark. Read as Spark has them, structs are
rows, and timestamps are in the time zone of the process, without saying so.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from millstream.flow.ddl import schema_of
from millstream.ring.scalars import plain_value
from millstream.state.pickling import dumps, loads
from millstream.state.values import value_text

_IS = pa.types


MakeRow = Callable[[tuple[str, ...]], Callable[[Iterable[Any]], Any]]
"""Given the names of the fields of a struct, makes a row of their values."""


def tuples(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """Rows that are tuples."""
    return tuple


class StateSchema:
    """The fields of a state variable's values, which are tuples."""

    def __init__(self, given: object, role: str, make_row: MakeRow = tuples) -> None:
        self.fields = [Field(field.name, field.type, role, make_row) for field in schema_of(given)]
        names = [field.name for field in self.fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{role} has two fields called {twice!r}")
        self.are_scalars = all(field.is_scalar for field in self.fields)
        self.row = make_row(tuple(names))
        self.role = role

    @property
    def only(self) -> Field | None:
        """The single field, if there is but one."""
        return self.fields[0] if len(self.fields) == 1 else None

    def _items(self, value: Any) -> Iterable[tuple[Field, Any]]:
        if value is None:
            raise TypeError(f"{self.role} was given None; give a tuple, or call clear()")
        if isinstance(value, str | bytes) or len(value) != len(self.fields):
            names = ", ".join(field.name for field in self.fields)
            raise TypeError(f"{self.role} was given {value_text(value)}; give a tuple ({names})")
        return zip(self.fields, value, strict=True)

    def encode(self, value: Any) -> list[Any]:
        """Check a value, and give what is stored of each field."""
        return [field.encode(item) for field, item in self._items(value)]

    def decode(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """The value of what is stored."""
        if self.are_scalars:
            return tuple(stored)
        return tuple([field.decode(item) for field, item in zip(self.fields, stored, strict=True)])

    def plain(self, value: Any) -> tuple[Any, ...]:
        """A checked copy of a value, to be pickled."""
        return tuple([field.plain(item) for field, item in self._items(value)])

    def read(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """A value that was pickled, as processors read it."""
        if self.are_scalars:
            return value
        return tuple([field.read(item) for field, item in zip(self.fields, value, strict=True)])


class Field:
    """One field of a state variable."""

    __slots__ = ("_convert", "_read", "_role", "_type", "is_scalar", "name", "of_all", "scalar")

    def __init__(self, name: str, kind: pa.DataType, role: str, make_row: MakeRow) -> None:
        self.name = name
        self._role = role
        self._type = kind
        self.scalar, self._convert = _conversion(kind)
        self._read = _reading(kind, make_row)
        self.is_scalar = self.scalar is not None
        is_limited = _IS.is_integer(kind) or self._convert is _short_float
        self.of_all = None if is_limited else self.scalar  # of which every value is stored as it is

    def plain(self, value: Any) -> Any:
        """A value, checked."""
        if value is None:
            return None
        if type(value) is not self.scalar:
            value = _plain(value)
            if value is None:  # NaT or NA
                return None
        try:
            return self._convert(value)
        except (TypeError, ValueError, OverflowError, ArithmeticError):
            self._refuse(value)

    def encode(self, value: Any) -> Any:
        """What is stored of a value, checked."""
        found = self.plain(value)
        return found if self.is_scalar or found is None else dumps(found)

    def decode(self, stored: Any) -> Any:
        """The value of what is stored: a copy, if it may be changed."""
        return stored if self.is_scalar or stored is None else self.read(loads(stored))

    def read(self, value: Any) -> Any:
        """A checked value as processors read it."""
        return value if self._read is None or value is None else self._read(value)

    def _refuse(self, value: Any) -> NoReturn:
        raise TypeError(
            f"{self._role} was given {value_text(value)} for the field {self.name!r}, which is "
            f"{self._type}"
        ) from None


def _plain(value: Any) -> Any:
    """A value with scalars of numpy and pandas, also inside of it, as Python's own."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):  # also of a Row: its items are in the order of the fields
        return tuple([_plain(item) for item in value])
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return plain_value(value)


Conversion = Callable[[Any], Any]


def _conversion(kind: pa.DataType) -> tuple[type | None, Conversion]:
    """The type that is stored as it is, if there is one, and the check of values."""
    if _IS.is_boolean(kind):
        return bool, _exactly(bool)
    if _IS.is_integer(kind):
        limit = 2 ** (kind.bit_width - 1)
        return int, _integer(limit)
    if _IS.is_floating(kind):
        return float, _float if kind.bit_width == 64 else _short_float
    if _IS.is_string(kind):
        return str, _exactly(str)
    if _IS.is_binary(kind):
        return bytes, _bytes
    if _IS.is_date(kind):
        return None, _date
    if _IS.is_timestamp(kind):
        return None, _local_time if kind.tz is None else _instant
    if _IS.is_decimal(kind):
        return None, _decimal(kind)
    return None, _nested(kind)


def _exactly(wanted: type) -> Conversion:
    def convert(value: Any) -> Any:
        if not isinstance(value, wanted):
            raise TypeError
        return value

    return convert


def _integer(limit: int) -> Conversion:
    def convert(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:
            raise TypeError
        return value

    return convert


def _float(value: Any) -> float:
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError
    return float(value)


def _short_float(value: Any) -> float:
    return ctypes.c_float(_float(value)).value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise TypeError
    return bytes(value)


def _date(value: Any) -> datetime.date:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise TypeError
    return value


def _instant(value: Any) -> datetime.datetime:
    found = _datetime(value)
    if found.tzinfo is not None:
        return found.astimezone(datetime.UTC)
    try:
        return found.astimezone(datetime.UTC)
    except (OverflowError, ValueError):  # datetime.min and the like have no neighbours to look at
        return found.replace(tzinfo=datetime.UTC)


def _local_time(value: Any) -> datetime.datetime:
    return _datetime(value).replace(tzinfo=None)


def _datetime(value: Any) -> datetime.datetime:
    if not isinstance(value, datetime.datetime):
        raise TypeError
    # Of a class of its own, such as one with nanoseconds, a plain one.
    return datetime.datetime.combine(value.date(), value.time(), value.tzinfo)


def _decimal(kind: pa.DataType) -> Conversion:
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    precision = kind.precision

    def convert(value: Any) -> decimal.Decimal:
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            raise TypeError
        # Not in the context of the thread, which has 28 digits and may be the user's.
        context = decimal.Context(
            precision, decimal.ROUND_HALF_UP, traps=[decimal.InvalidOperation]
        )
        return value.quantize(unit, context=context)

    return convert


def _nested(kind: pa.DataType) -> Conversion:
    """The items are checked as fields are; structs are stored as tuples."""
    if _IS.is_struct(kind):
        items = [_conversion_of_item(field.type) for field in kind]
        return _struct([field.name for field in kind], items)
    if _IS.is_map(kind):
        return _map(_conversion(kind.key_type)[1], _conversion_of_item(kind.item_type))
    if _IS.is_list(kind):
        return _list(_conversion_of_item(kind.value_type))
    return _of_arrow(kind)


def _conversion_of_item(kind: pa.DataType) -> Conversion:
    return _nullable(_conversion(kind)[1])


def _nullable(convert: Conversion) -> Conversion:
    return lambda value: None if value is None else convert(value)


def _struct(names: Sequence[str], converts: Sequence[Conversion]) -> Conversion:
    def convert(value: Any) -> tuple[Any, ...]:
        if isinstance(value, dict):
            value = [value.get(name) for name in names]
        if not isinstance(value, list | tuple) or len(value) != len(names):
            raise TypeError
        return tuple([convert(item) for convert, item in zip(converts, value, strict=True)])

    return convert


def _map(of_key: Conversion, of_item: Conversion) -> Conversion:
    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise TypeError
        return {of_key(key): of_item(item) for key, item in value.items()}

    return convert


def _list(of_item: Conversion) -> Conversion:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise TypeError
        return [of_item(item) for item in value]

    return convert


def _of_arrow(kind: pa.DataType) -> Conversion:
    """Types that only an Arrow schema has are checked by Arrow."""

    def convert(value: Any) -> Any:
        try:
            return pa.array([value], type=kind)[0].as_py()
        except pa.ArrowException as problem:
            raise TypeError from problem

    return convert


def _reading(kind: pa.DataType, make_row: MakeRow) -> Conversion | None:
    """How processors read what is stored of a type; None if it is read as it is."""
    if _IS.is_struct(kind):
        parts = [_reading_of_item(field.type, make_row) for field in kind]
        make = make_row(tuple(field.name for field in kind))
        return lambda value: make([part(item) for part, item in zip(parts, value, strict=True)])
    if _IS.is_map(kind):
        if _reading(kind.key_type, make_row) is _reading(kind.item_type, make_row) is None:
            return None
        of_key = _reading_of_item(kind.key_type, make_row)
        of_item = _reading_of_item(kind.item_type, make_row)
        return lambda value: {of_key(key): of_item(item) for key, item in value.items()}
    if _IS.is_list(kind):
        if _reading(kind.value_type, make_row) is None:
            return None
        of_value = _reading_of_item(kind.value_type, make_row)
        return lambda value: list(map(of_value, value))
    return _in_zone if _IS.is_timestamp(kind) and kind.tz is not None else None


def _reading_of_item(kind: pa.DataType, make_row: MakeRow) -> Conversion:
    return _nullable(_reading(kind, make_row) or _same)


def _same(value: Any) -> Any:
    return value


def _in_zone(value: datetime.datetime) -> datetime.datetime:
    """An instant as Spark reads it: in the time zone of the process, without saying so."""
    try:
        return value.astimezone().replace(tzinfo=None)
    except (OverflowError, ValueError):
        return value.replace(tzinfo=None)

"""The schema of a state variable: values checked, and stored as scalars.

A scalar is stored as it is, and all else pickled, so that what a processor reads is its own copy,
and a change that it does not write back is lost, as with Spark.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from millstream.flow.ddl import schema_of
from millstream.ring.scalars import plain_value
from millstream.state.pickling import dumps, loads
from millstream.state.values import value_text

_IS = pa.types


class StateSchema:
    """The fields of a state variable's values, which are tuples."""

    def __init__(self, given: object, role: str) -> None:
        self.fields = [Field(field.name, field.type, role) for field in schema_of(given)]
        names = [field.name for field in self.fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{role} has two fields called {twice!r}")
        self.are_scalars = all(field.is_scalar for field in self.fields)
        self.role = role

    @property
    def only(self) -> Field | None:
        """The single field, if there is but one."""
        return self.fields[0] if len(self.fields) == 1 else None

    def encode(self, value: Any) -> list[Any]:
        """Check a value, and give what is stored of each field."""
        if value is None:
            raise TypeError(f"{self.role} was given None; give a tuple, or call clear()")
        if isinstance(value, str | bytes) or len(value) != len(self.fields):
            names = ", ".join(field.name for field in self.fields)
            raise TypeError(f"{self.role} was given {value_text(value)}; give a tuple ({names})")
        return [field.encode(item) for field, item in zip(self.fields, value, strict=True)]

    def decode(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """The value of what is stored."""
        if self.are_scalars:
            return tuple(stored)
        return tuple([field.decode(item) for field, item in zip(self.fields, stored, strict=True)])

    def plain(self, value: Any) -> tuple[Any, ...]:
        """A checked copy of a value."""
        return self.decode(self.encode(value))


class Field:
    """One field of a state variable."""

    __slots__ = ("_convert", "_role", "_type", "is_scalar", "name", "scalar")

    def __init__(self, name: str, kind: pa.DataType, role: str) -> None:
        self.name = name
        self._role = role
        self._type = kind
        self.scalar, self._convert = _conversion(kind)
        self.is_scalar = self.scalar is not None

    def encode(self, value: Any) -> Any:
        """What is stored of a value, checked."""
        if value is None:
            return None
        if type(value) is not self.scalar:
            value = _plain(value)
            if value is None:  # NaT or NA
                return None
        try:
            found = self._convert(value)
        except (TypeError, ValueError, OverflowError, ArithmeticError):
            self._refuse(value)
        return found if self.is_scalar else dumps(found)

    def decode(self, stored: Any) -> Any:
        """The value of what is stored: a copy, if it may be changed."""
        return stored if self.is_scalar or stored is None else loads(stored)

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
        return float, _float
    if _IS.is_string(kind):
        return str, _exactly(str)
    if _IS.is_binary(kind):
        return bytes, _bytes
    if _IS.is_date(kind):
        return None, _date
    if _IS.is_timestamp(kind):
        return None, _exactly(datetime.datetime)
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


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise TypeError
    return bytes(value)


def _date(value: Any) -> datetime.date:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise TypeError
    return value


def _decimal(kind: pa.DataType) -> Conversion:
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    precision = kind.precision

    def convert(value: Any) -> decimal.Decimal:
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            raise TypeError
        # Not in the context of the thread, which has 28 digits and may be the user's.
        context = decimal.Context(
            precision, decimal.ROUND_HALF_EVEN, traps=[decimal.InvalidOperation]
        )
        return value.quantize(unit, context=context)

    return convert


def _nested(kind: pa.DataType) -> Conversion:
    """The items are checked as fields are; structs are stored as tuples."""
    if _IS.is_struct(kind):
        return _struct([field.name for field in kind], [_nullable(field.type) for field in kind])
    if _IS.is_map(kind):
        return _map(_conversion(kind.key_type)[1], _nullable(kind.item_type))
    if _IS.is_list(kind):
        return _list(_nullable(kind.value_type))
    return _of_arrow(kind)


def _nullable(kind: pa.DataType) -> Conversion:
    convert = _conversion(kind)[1]
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

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
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value] if isinstance(value, list) else _tuple(value)
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return plain_value(value)


def _tuple(value: tuple[Any, ...]) -> Any:
    items = [_plain(item) for item in value]
    fields = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    return dict(zip(fields, items, strict=True)) if fields else tuple(items)


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
    """Checked by Arrow; structs come back as tuples, as Spark's rows are."""

    def convert(value: Any) -> Any:
        try:
            return _as_spark(pa.array([_as_arrow(value, kind)], type=kind)[0].as_py(), kind)
        except pa.ArrowException as problem:
            raise TypeError from problem

    return convert


def _as_arrow(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if _IS.is_struct(kind) and isinstance(value, tuple | list):
        fields = list(kind)
        if len(fields) != len(value):
            raise TypeError
        return {f.name: _as_arrow(v, f.type) for f, v in zip(fields, value, strict=True)}
    if _IS.is_struct(kind) and isinstance(value, dict):
        return {f.name: _as_arrow(value.get(f.name), f.type) for f in kind}
    if _IS.is_map(kind) and isinstance(value, dict):
        return [
            (_as_arrow(k, kind.key_type), _as_arrow(v, kind.item_type)) for k, v in value.items()
        ]
    if _IS.is_list(kind) and isinstance(value, list | tuple):
        return [_as_arrow(item, kind.value_type) for item in value]
    return value


def _as_spark(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if _IS.is_struct(kind):
        return tuple(_as_spark(value[field.name], field.type) for field in kind)
    if _IS.is_map(kind):
        return {_as_spark(k, kind.key_type): _as_spark(v, kind.item_type) for k, v in value}
    if _IS.is_list(kind):
        return [_as_spark(item, kind.value_type) for item in value]
    return value

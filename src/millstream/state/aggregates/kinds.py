"""Which Arrow types an aggregate can read, in the few kinds that aggregates tell apart."""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

from millstream.state.aggregates.errors import UnsupportedValueError


class Kind(Enum):
    """A family of Arrow types that is reduced in the same way."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TEMPORAL = "date, time, timestamp or duration"
    DECIMAL = "decimal128"
    STRING = "string"
    BINARY = "binary"


NUMBERS = (Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL)
SCALARS = tuple(Kind)

# The kinds whose values can be coded as 64-bit integers in the same order.
FIXED_WIDTH = (Kind.INTEGER, Kind.FLOAT, Kind.BOOLEAN, Kind.TEMPORAL)


def kind_of(type: pa.DataType) -> Kind | None:
    """The kind of a type, or None for types that no aggregate computes with."""
    types = pa.types
    if types.is_integer(type):
        return Kind.INTEGER
    if types.is_floating(type):
        return Kind.FLOAT
    if types.is_boolean(type):
        return Kind.BOOLEAN
    if types.is_decimal128(type):
        return Kind.DECIMAL
    if types.is_string(type) or types.is_large_string(type):
        return Kind.STRING
    if types.is_binary(type) or types.is_large_binary(type):
        return Kind.BINARY
    if _is_temporal(type):
        return Kind.TEMPORAL
    return None


def require(aggregate: str, type: pa.DataType | None, allowed: tuple[Kind, ...]) -> Kind:
    """The kind of a type, or UnsupportedValueError if the aggregate does not allow it."""
    kind = None if type is None else kind_of(type)
    if kind not in allowed:
        raise UnsupportedValueError(aggregate, str(type), tuple(k.value for k in allowed))
    return kind


def _is_temporal(type: pa.DataType) -> bool:
    # Not is_temporal(): that includes calendar intervals, which have no order.
    types = pa.types
    return bool(
        types.is_date(type)
        or types.is_time(type)
        or types.is_timestamp(type)
        or types.is_duration(type)
    )

"""Tuples in rows of Spark: what was a tuple before it became a struct is one again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Row
from pyspark.sql.types import DataType, StructType

_Convert = Callable[[Any], Any]


def with_tuples(rows: list[Row], schema: StructType) -> list[Row]:
    """The rows, with plain tuples where a struct has the fields ``_1``, ``_2``, …"""
    converts = [_conversion(field.dataType) for field in schema]
    if not any(converts):
        return rows
    row_of = Row(*schema.names)
    return [row_of(*_converted(row, converts)) for row in rows]


def _conversion(kind: DataType) -> _Convert | None:
    if not isinstance(kind, StructType):
        return None
    if kind.names != [f"_{number}" for number in range(1, len(kind) + 1)]:
        return None
    items = [_conversion(field.dataType) for field in kind]
    if not any(items):
        return lambda row: None if row is None else tuple(row)
    return lambda row: None if row is None else tuple(_converted(row, items))


def _converted(row: Row, converts: list[_Convert | None]) -> list[Any]:
    return [
        value if convert is None else convert(value)
        for value, convert in zip(row, converts, strict=True)
    ]

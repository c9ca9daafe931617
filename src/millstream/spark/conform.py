"""Casts rows to the columns of a sink, and to Spark's types."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millstream.errors import DataError
from millstream.state.values import unify


class SinkTypeError(DataError):
    """Rows do not fit the columns that a sink, or a step in the JVM, had so far."""

    def __init__(self, sink: str, expected: str, found: str) -> None:
        super().__init__(sink, expected, found)
        self.sink, self.expected, self.found = sink, expected, found

    def __str__(self) -> str:
        return (
            f"{self.sink!r} has the columns {self.expected}, but got {self.found}; "
            "return records of one type, or declare output= on the step or job before it"
        )


def described(schema: pa.Schema) -> str:
    """A schema in one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def conform(rows: pa.RecordBatch, schema: pa.Schema, sink: str) -> pa.RecordBatch:
    """Cast rows to a sink's columns, without losing anything."""
    if rows.schema.names != schema.names and set(rows.schema.names) == set(schema.names):
        rows = rows.select(schema.names)
    if rows.schema.names != schema.names:
        raise SinkTypeError(sink, described(schema), described(rows.schema))
    try:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(rows.columns, schema, strict=True)
        ]
    except pa.ArrowException:
        raise SinkTypeError(sink, described(schema), described(rows.schema)) from None
    if any(_changes_meaning(a.type, f.type) for a, f in zip(rows.columns, schema, strict=True)):
        raise SinkTypeError(sink, described(schema), described(rows.schema))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _changes_meaning(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Arrow casts numbers to strings and back; a sink must not."""
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        pairs = zip(found, wanted, strict=True)  # a cast has found the same fields
        return any(_changes_meaning(one.type, other.type) for one, other in pairs)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    is_text = any(test(found) for test in texts)
    to_text = any(test(wanted) for test in texts)
    return not pa.types.is_null(found) and is_text != to_text


def unified(sink: str, schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The one schema that all these fit in."""
    found = list(schemas)
    first = found[0]
    fields = []
    for at, name in enumerate(first.names):
        for other in found:
            if other.names != first.names:
                raise SinkTypeError(sink, described(first), described(other))
        kind = unify(schema.field(at).type for schema in found)
        if kind is None:
            clash = next(s for s in found if s.field(at).type != first.field(at).type)
            raise SinkTypeError(sink, described(first), described(clash))
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def is_known(kind: pa.DataType) -> bool:
    """Whether a type is known, also those of a struct's fields."""
    if pa.types.is_struct(kind):
        return all(is_known(field.type) for field in kind)
    return not pa.types.is_null(kind)


def for_spark(schema: pa.Schema) -> tuple[pa.Schema, StructType]:
    """A schema as Spark exchanges it, with Spark's own types."""
    struct = from_arrow_schema(schema.remove_metadata())
    return to_arrow_schema(struct, timezone="UTC"), struct

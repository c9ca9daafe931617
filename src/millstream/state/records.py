"""Records in Arrow: between steps and reducers, and as the columns of a sink.

A record is a pair, a tuple, a dictionary, one bare value, or a row of a DataFrame. The shape is
stored in the schema's metadata so that Python code downstream gets the records it would get from a
plain function call.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import pyarrow as pa

from millstream.ring.key_types import struct_of
from millstream.state.values import (
    UNFIT,
    ValueTypeError,
    decode_column,
    encode_column,
    is_pickled,
    plain_scalars,
    value_text,
)

_SHAPE = b"millstream.shape"


def encode_records(records: Sequence[Any], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Encode records; with a schema, by its types (a misfit is a ``ValueTypeError``)."""
    shape, names, columns = _columns(records)
    if schema is not None and (not records or _fits(schema, shape, names)):
        types = [field.type for field in schema]
        if shape == "dict":
            columns = [columns[names.index(name)] for name in schema.names]
        if not records:
            columns = [[] for _ in schema]
        encoded = [
            encode_column(name, column, kind)
            for name, column, kind in zip(schema.names, columns, types, strict=True)
        ]
        shape = _shape_of_schema(schema) if not records else shape
    else:
        encoded = [encode_column(name, c) for name, c in zip(names, columns, strict=True)]
    fields = [field for field, _ in encoded]
    return pa.RecordBatch.from_arrays(
        [array for _, array in encoded],
        schema=pa.schema(fields, metadata={_SHAPE: shape.encode()}),
    )


def _fits(schema: pa.Schema, shape: str, names: list[str]) -> bool:
    """Whether records have the layout of a schema; only tuples and values go by position."""
    if shape_of(schema) not in (shape, "row"):
        return False
    return set(names) == set(schema.names) if shape == "dict" else len(schema) == len(names)


def _shape_of_schema(schema: pa.Schema) -> str:
    if schema.names == ["value"]:
        return "value"
    return "pair" if schema.names == ["key", "value"] else "dict"


def _columns(records: Sequence[Any]) -> tuple[str, list[str], list[Sequence[Any]]]:
    kinds = set(map(type, records))
    if kinds == {tuple}:
        widths = set(map(len, records))
        if len(widths) == 1 and 0 not in widths:
            width = widths.pop()
            names = ["key", "value"] if width == 2 else [f"_{i + 1}" for i in range(width)]
            return "pair" if width == 2 else "tuple", names, list(zip(*records, strict=True))
    elif kinds == {dict}:
        names = list(records[0])
        wanted = records[0].keys()
        if (
            names
            and all(isinstance(n, str) for n in names)
            and all(record.keys() == wanted for record in records)
        ):
            return "dict", names, [[record[name] for record in records] for name in names]
    return "value", ["value"], [records]


def shape_of(schema: pa.Schema) -> str:
    """The shape of the records of a batch: value, pair, tuple, dict, or row by default."""
    return str((schema.metadata or {}).get(_SHAPE, b"row").decode())


def decode_records(batch: pa.RecordBatch) -> list[Any]:
    """Decode the records of a batch."""
    columns = [decode_column(f, c) for f, c in zip(batch.schema, batch.columns, strict=True)]
    shape = shape_of(batch.schema)
    if len(columns) == 1 and shape in ("value", "row"):
        return columns[0]
    if shape in ("pair", "tuple"):
        return list(zip(*columns, strict=True))
    if shape == "dict":
        names = batch.schema.names
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows_of(batch.schema.names, columns)


def rows_of(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Rows of a DataFrame, from its columns."""
    # What _make does, without a call of Python for each row.
    return list(map(tuple.__new__, repeat(row_type(tuple(names))), zip(*columns, strict=True)))


@lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> Any:
    """The class of rows with these columns: ``row.name``, ``row["name"]`` and ``row[0]``."""
    base = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    at = {name: index for index, name in enumerate(names)}

    class Row(base):
        __slots__ = ()
        _columns = names  # _fields has other names where Python cannot spell these

        def __getitem__(self, which: Any) -> Any:
            return tuple.__getitem__(self, at[which] if isinstance(which, str) else which)

        def __reduce__(self) -> Any:
            return _make_row, (names, tuple(self))

    return Row


def _make_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_type(names)._make(values)


def plain_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert pickled columns to Arrow types, as a sink or an Arrow function needs them.

    Raises ``ValueTypeError`` when Arrow cannot carry the values.
    """
    if not any(is_pickled(field) for field in batch.schema):
        return batch
    if shape_of(batch.schema) == "value":
        values = decode_column(batch.schema.field(0), batch.column(0))
        rows = [row for row in map(_as_mapping, values) if row is not None]
        names = list(dict.fromkeys(name for row in rows for name in row))
        if names and len(rows) == len(values):
            columns = [_plain(name, [row.get(name) for row in rows]) for name in names]
            return pa.RecordBatch.from_arrays(columns, names=names)
    keyed = shape_of(batch.schema) == "pair"
    arrays = [
        _plain(field.name, decode_column(field, column), key=keyed and at == 0)
        if is_pickled(field)
        else column
        for at, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True))
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _plain(name: str, values: Sequence[Any], *, key: bool = False) -> pa.Array:
    """Values as Arrow infers them; tuples are structs if they are keys, or hold several types."""
    # Inside tuples and dictionaries, scalars of numpy were pickled as they are.
    values, kinds = plain_scalars(values)
    if key and (found := _structs(values, kinds, key=True)) is not None:
        return found
    if any(hasattr(kind, "_fields") for kind in kinds):  # rows within rows
        mappings = list(map(_as_mapping, values))
        pairs = zip(values, mappings, strict=True)
        values = [value if mapping is None else mapping for value, mapping in pairs]
    try:
        if not {str, bytes} <= kinds:  # Arrow would make bytes of both
            return pa.array(values)
    except UNFIT:
        pass
    if (found := _structs(values, kinds)) is not None:
        return found
    expected = "one that Arrow can carry"
    for row, value in enumerate(values):
        try:
            pa.array([value])
        except UNFIT:
            raise ValueTypeError(name, expected, value_text(value), row) from None
    given = [(row, value) for row, value in enumerate(values) if value is not None]
    first = type(given[0][1])
    row, other = next(found for found in given if type(found[1]) is not first)
    raise ValueTypeError(name, first.__name__, value_text(other), row)


def _structs(values: Sequence[Any], kinds: set[type], *, key: bool = False) -> pa.Array | None:
    """Tuples of one width as structs with the fields that Spark gives them; else nothing."""
    rows = [value for value in values if value is not None]
    if kinds - {type(None)} != {tuple} or len(set(map(len, rows))) != 1 or not rows[0]:
        return None
    absent = (None,) * len(rows[0])
    columns = zip(*[absent if value is None else value for value in values], strict=True)
    try:
        items = [_plain(f"_{at}", list(c), key=key) for at, c in enumerate(columns, 1)]
    except ValueTypeError:
        return None
    kind = struct_of([item.type for item in items])
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(items, fields=list(kind), mask=mask)


def _as_mapping(value: Any) -> dict[str, Any] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = getattr(value, "_columns", value._fields)
        return dict(zip(names, value, strict=True))
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return value
    return None

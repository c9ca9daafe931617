"""The state of a job as rows of Arrow columns, for export and for Spark.

The first column is ``key``; a tuple is a struct. Then follows a column for every entry, or for
every column of state: in a plain Arrow type (or a list of one) if all values fit it, else as text
in JSON, with the ``repr`` of what JSON does not have. An entry that a key lacks is null. The timers
of keys are the column ``timers``, as text in JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from itertools import islice
from typing import Any

import pyarrow as pa

from millstream.checkpoints.stored_state import StoredState
from millstream.ring.keys import encode_keys, infer_type
from millstream.state.blocks import KEY
from millstream.state.column_fragments import cast_column
from millstream.state.timers import KeyEntries
from millstream.state.values import unify, unify_nulls

ROWS_AT_ONCE = 16384
TIMERS = "timers"
JSON = {b"millstream": b"json"}
_PLAIN: dict[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    dt.date: pa.date32(),
}


class StateTable:
    """The state of a job at an epoch, as rows."""

    def __init__(self, state: StoredState) -> None:
        self.state = state

    def schema_of(self, slots: range) -> pa.Schema:
        """The columns that some slots need."""
        found = pa.schema([])
        for keys, rows in self._parts(slots):
            kind = self.state.job.key_type or infer_type(keys)
            if isinstance(rows, pa.RecordBatch):
                fields = [_renamed(field) for field in rows.schema]
            else:
                fields = _fields(rows)
            found = union([found, pa.schema([pa.field(KEY, kind), *fields])])
        return found

    def rows(self, slots: range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of some slots, with the columns of a ``complete`` schema."""
        for keys, rows in self._parts(slots):
            columns = [encode_keys(keys, schema.field(KEY).type)]
            if isinstance(rows, pa.RecordBatch):
                known = {_renamed(field).name: at for at, field in enumerate(rows.schema)}
                for field in list(schema)[1:]:
                    at = known.get(field.name)
                    column = pa.nulls(len(keys)) if at is None else rows.column(at)
                    columns.append(_cast(column, field))
            else:
                named = [{column_name(name): v for name, v in row.items()} for row in rows]
                for field in list(schema)[1:]:
                    columns.append(_array([row.get(field.name) for row in named], field))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _parts(self, slots: range) -> Iterator[tuple[list[Any], Any]]:
        if self.state.in_columns:
            yield from self.state.columns(slots)
            return
        entries = self.state.entries(slots)
        while chunk := list(islice(entries, ROWS_AT_ONCE)):
            yield [key for key, _ in chunk], [with_timers(row) for _, row in chunk]


def with_timers(entries: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The entries of a key, and its timers as one more: ``timers``, or ``timers_``."""
    if not isinstance(entries, KeyEntries) or not entries.timers:
        return entries
    timers = [{"name": t.name, "at": t.at, "time": t.time} for t in entries.timers]
    return {**entries, f"{TIMERS}_" if TIMERS in entries else TIMERS: timers}


def table_of(items: Iterable[tuple[Any, Any]]) -> pa.Table:
    """Keys with what users read for each, as a table; a value that has no entries is ``value``."""
    keys: list[Any] = []
    rows: list[Mapping[Any, Any]] = []
    for key, value in items:
        keys.append(key)
        has_entries = isinstance(value, Mapping) and all(isinstance(n, str) for n in value)
        rows.append(with_timers(value) if has_entries else {"value": value})
    schema = complete(pa.schema([pa.field(KEY, infer_type(keys)), *_fields(rows)]))
    named = [{column_name(name): value for name, value in row.items()} for row in rows]
    columns = [encode_keys(keys, schema.field(KEY).type)]
    for field in list(schema)[1:]:
        columns.append(_array([row.get(field.name) for row in named], field))
    return pa.Table.from_arrays(columns, schema=schema)


def union(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The columns of several schemas, in types that fit the values of all."""
    return reduce(_joined, schemas, pa.schema([]))


def complete(schema: pa.Schema) -> pa.Schema:
    """A schema in which every column has a type: one with only nulls is text."""
    fields = [field.with_type(_typed(field.type)) for field in schema]
    return pa.schema(fields or [pa.field(KEY, pa.string())])


def column_name(entry: object) -> str:
    """The name of an entry's column; ``key`` is that of the key's own."""
    name = entry if isinstance(entry, str) else repr(entry)
    return f"{KEY}_" if name == KEY else name


def as_text(value: Any) -> str:
    """A value as JSON."""
    return json.dumps(jsonable(value), ensure_ascii=False)


def jsonable(value: Any) -> Any:
    """A value in the types of JSON; otherwise its ``repr``."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        value = with_timers(value)
        return {n if isinstance(n, str) else repr(n): jsonable(v) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, set | frozenset):
        return [jsonable(item) for item in sorted(value, key=repr)]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return repr(value)


def _joined(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    fields = {field.name: field for field in left}
    for field in right:
        known = fields.get(field.name)
        fields[field.name] = field if known is None else _common(known, field)
    return pa.schema(list(fields.values()))


def _common(left: pa.Field, right: pa.Field) -> pa.Field:
    if left.name == KEY:
        kind = unify_nulls([left.type, right.type])
        return left if kind is None else pa.field(KEY, kind)
    texts = [field for field in (left, right) if field.metadata == JSON]
    if texts:
        return texts[0]
    kind = _one_type([left.type, right.type])
    return json_field(left.name) if kind is None else pa.field(left.name, kind)


def _one_type(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    seen = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    if len(seen) > 1 and all(map(pa.types.is_list, seen)):
        inner = _one_type(kind.value_type for kind in seen)
        return None if inner is None else pa.list_(inner)
    return unify(seen)


def _fields(rows: Sequence[Mapping[Any, Any]]) -> list[pa.Field]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(column_name(name), []).append(value)
    kinds = {name: _kind_of(column) for name, column in values.items()}
    return [json_field(n) if kind is None else pa.field(n, kind) for n, kind in kinds.items()]


def _kind_of(values: Iterable[Any]) -> pa.DataType | None:
    """The Arrow type of Python values, if there is one that changes none of them."""
    kinds: dict[pa.DataType, None] = {}
    by_type: dict[type, list[Any]] = {}
    for value in values:
        by_type.setdefault(type(value), []).append(value)
    by_type.pop(type(None), None)
    for python, found in by_type.items():
        if python in (list, tuple):
            inner = _kind_of(item for value in found for item in value)
            kind = None if inner is None else pa.list_(inner)
        elif python in (dt.datetime, Decimal):
            kind = _inferred(found)
        else:
            kind = _PLAIN.get(python)
        if kind is None or not _fits(found, kind):
            return None
        kinds[kind] = None
    return _one_type(kinds)


def _inferred(values: list[Any]) -> pa.DataType | None:
    zoned = {getattr(value, "tzinfo", None) is not None for value in values}
    try:
        kind = pa.infer_type(values)
    except (pa.ArrowException, ValueError, TypeError):
        return None
    if pa.types.is_timestamp(kind):
        return None if len(zoned) > 1 else pa.timestamp("us", tz="UTC" if zoned == {True} else None)
    return kind


def _fits(values: list[Any], kind: pa.DataType) -> bool:
    try:
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError, ValueError, TypeError):
        return False
    return True


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    if field.metadata == JSON:
        return pa.array([None if value is None else as_text(value) for value in values])
    if pa.types.is_floating(field.type):  # among floats, also integers that no float equals
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, field.type)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if field.metadata == JSON:
        return _array(column.to_pylist(), field)
    return cast_column(column, field.type)


def _renamed(field: pa.Field) -> pa.Field:
    return pa.field(column_name(field.name), field.type)


def json_field(name: str) -> pa.Field:
    """A column of text in JSON."""
    return pa.field(name, pa.string(), metadata=JSON)


def _typed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_typed(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_typed(field.type)) for field in kind])
    return kind

"""The rows that Spark's processors get and give: as ``Row`` objects, or as pandas frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, pairwise, repeat
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row

from millstream.ring.strides import strides
from millstream.state.immutable import private_copy
from millstream.state.values import UNFIT, ValueTypeError, value_text

CHUNK = 10_000
"""How many rows a frame has at most: spark.sql.execution.arrow.maxRecordsPerBatch by default."""


Taker = Callable[[Iterable[Any]], list[Any]]


class RowForm(Protocol):
    """How rows are handed to a processor, and taken from it."""

    def read(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        """The rows of each key."""

    def given(self, values: Any) -> Iterator[Any]:
        """The rows of a key as a processor reads them."""

    def taker(self, schema: pa.Schema) -> Taker:
        """Takes results as they are yielded: a processor may change them afterwards."""

    def encode(self, outputs: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        """Results as columns."""


# -- rows --------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _row_class(names: tuple[str, ...]) -> Any:
    """A class of rows with these columns: they need not be stored with each of them."""
    own = {
        name: property(_item(at))
        for at, name in enumerate(names)
        if name.isidentifier() and not hasattr(Row, name) and names.count(name) == 1
    }
    return type("Row", (Row,), {**own, "__fields__": list(names), "__slots__": ()})


def _item(at: int) -> Any:
    def item(row: Any) -> Any:
        return tuple.__getitem__(row, at)

    return item


def row_maker(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """A function that makes rows with these columns of their values."""
    return partial(tuple.__new__, _row_class(names))


class Rows:
    """``pyspark.sql.Row``, as ``transformWithState`` has them."""

    def read(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        made: list[Any] = []
        kind = _row_class(tuple(rows.schema.names))
        for at in strides(rows.num_rows):
            part = rows.slice(at.start, at.stop - at.start)
            columns = [column.to_pylist() for column in part.columns]
            made.extend(map(tuple.__new__, repeat(kind), zip(*columns, strict=True)))
        return [made[start:stop] for start, stop in pairwise(cuts)]

    def given(self, values: Any) -> Iterator[Any]:
        return iter(values)

    def taker(self, schema: pa.Schema) -> Taker:
        return _take_rows if _is_nested(schema) else list

    def encode(self, outputs: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        columns = _row_columns(outputs, schema)
        arrays = [_column(field, column) for field, column in zip(schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_nested(schema: pa.Schema) -> bool:
    return any(pa.types.is_nested(field.type) for field in schema)


def _take_rows(results: Iterable[Any]) -> list[Any]:
    """Rows with copies of the lists and dictionaries in them."""
    return [
        row_maker(tuple(row.__fields__))(map(private_copy, row))
        if hasattr(row, "__fields__")
        else row
        for row in results
    ]


def _row_columns(outputs: Sequence[Any], schema: pa.Schema) -> list[Sequence[Any]]:
    """The columns of rows, by name; a column that a row does not have is null."""
    fields = set()
    for at, row in enumerate(outputs):
        names = getattr(row, "__fields__", None)
        if names is None:
            wanted = "a Row with named fields, such as Row(id=1)"
            raise ValueTypeError("*", wanted, value_text(row), at)
        fields.add(tuple(names))
    if len(fields) == 1 and not _is_nested(schema):
        [names] = fields
        found = dict(zip(names, zip(*outputs, strict=True), strict=True))
        absent = (None,) * len(outputs)
        return [found.get(name, absent) for name in schema.names]
    rows = [row.asDict(True) for row in outputs]
    return [[row.get(name) for row in rows] for name in schema.names]


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, type=field.type)
    except UNFIT:
        row = next(at for at, value in enumerate(values) if not _fits(value, field.type))
        raise ValueTypeError(field.name, str(field.type), value_text(values[row]), row) from None


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], type=kind)
    except UNFIT:
        return False
    return True


# -- pandas ------------------------------------------------------------------------------


class Slice(NamedTuple):
    """The rows of a key in a frame of many keys."""

    frame: Any
    start: int
    stop: int


class Frames:
    """pandas frames, as ``transformWithStateInPandas`` has them."""

    def __init__(self, timezone: str) -> None:
        self._timezone = timezone

    def read(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        # Copied, as what Arrow shares is read-only: processors write into their frames.
        frame = pd.DataFrame(
            dict(enumerate(self._series(column) for column in rows.columns)), copy=True
        )
        frame.columns = pd.Index(rows.schema.names)
        return list(map(Slice, repeat(frame), cuts[:-1], cuts[1:]))

    def _series(self, column: pa.Array) -> Any:
        """A column as Spark's workers make it of the rows of a group."""
        kind = column.type
        if pa.types.is_integer(kind) and not column.null_count:
            column = column.cast(pa.int64())
        elif pa.types.is_floating(kind):
            column = column.cast(pa.float64())
        elif pa.types.is_timestamp(kind):
            return self._times(column)
        elif pa.types.is_map(kind):
            return _objects([None if v is None else dict(v) for v in column.to_pylist()])
        elif pa.types.is_struct(kind):
            return _objects(column.to_pylist())
        return column.to_pandas(date_as_object=True)

    def _times(self, column: pa.Array) -> Any:
        """Times are without a zone, those of the session."""
        series = column.to_pandas()
        if column.type.tz is not None:
            series = _without_zone(series, self._timezone)
        return series.astype("datetime64[ns]")

    def given(self, values: Any) -> Iterator[Any]:
        frame, start, stop = values
        while start < stop:
            end = min(stop, start + CHUNK)
            yield _slice(frame, start, end)
            start = end

    def taker(self, schema: pa.Schema) -> Taker:
        return _take_frames

    def encode(self, outputs: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        parts: list[list[Any]] = [[] for _ in schema]
        rows: list[int] = []
        wanted = tuple(schema.names)
        for row, frame in enumerate(_take_frames(outputs)):
            if not isinstance(frame, _Columns):
                raise ValueTypeError("*", "a pandas.DataFrame", value_text(frame), row)
            names = frame.names
            if not names and not frame.rows:
                continue
            rows.append(row)
            places = _places(names, wanted)
            if places is None:
                text = f"a frame with the columns {', '.join(wanted)}"
                raise ValueTypeError("*", text, f"one with {list(names)}", row)
            for part, at in zip(parts, places, strict=True):
                part.append(frame.arrays[at])
        arrays = [
            self._converted(part, field, rows) for part, field in zip(parts, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _converted(self, parts: Sequence[Any], field: pa.Field, rows: Sequence[int]) -> pa.Array:
        """The columns of all frames; what one has does not change how another is converted."""
        arrays: list[pa.Array] = []
        for start, stop in _runs(parts):
            found = self._of_run(parts[start:stop], field.type)
            if found is not None:
                arrays.append(found)
                continue
            for part, row in zip(parts[start:stop], rows[start:stop], strict=True):
                try:
                    arrays.append(self._of_values(part, field.type))
                except UNFIT:
                    text = value_text(part.tolist())
                    raise ValueTypeError(field.name, str(field.type), text, row) from None
        return pa.concat_arrays(arrays) if arrays else pa.array([], type=field.type)

    def _of_run(self, parts: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
        """Columns of one dtype together, if each is converted as it would be alone."""
        is_object = parts[0].dtype == object
        if len(parts) == 1 or (is_object and pa.types.is_timestamp(kind)):
            return None
        try:
            if is_object:  # without a type, Arrow infers one of all values
                return _array(_joined(parts), kind)
            return self._of_values(_joined(parts), kind)
        except UNFIT:
            return None

    def _of_values(self, values: Any, kind: pa.DataType) -> pa.Array:
        if pa.types.is_timestamp(kind):
            values = self._in_zone(pd.Series(values), kind)
        try:
            return _array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return _array(values).cast(kind)  # as Spark does

    def _in_zone(self, series: Any, kind: pa.DataType) -> Any:
        series = pd.to_datetime(series) if series.dtype == object else series
        zone = getattr(series.dt, "tz", None)
        if kind.tz is None:
            return series if zone is None else _without_zone(series, self._timezone)
        return series.dt.tz_localize(self._timezone) if zone is None else series


class _Columns(NamedTuple):
    """What a frame had when it was yielded."""

    names: tuple[Any, ...]
    rows: int
    arrays: list[Any]


def _take_frames(results: Iterable[Any]) -> list[Any]:
    return [_columns_of(found) if isinstance(found, pd.DataFrame) else found for found in results]


def _columns_of(frame: Any) -> _Columns:
    names = tuple(frame.columns)
    arrays = [frame._get_column_array(at).copy() for at in range(len(names))]
    return _Columns(names, len(frame), arrays)


def _objects(values: list[Any]) -> Any:
    return pd.Series(values, dtype=object)


def _slice(frame: Any, start: int, stop: int) -> Any:
    """Some rows of a frame as a frame of their own, numbered from 0.

    What ``iloc`` and ``reset_index`` do in ten times the time, for every key.
    """
    manager = frame._mgr.get_slice(slice(start, stop), axis=1)
    manager.set_axis(1, pd.RangeIndex(stop - start))
    return pd.DataFrame._from_mgr(manager, axes=manager.axes)


@lru_cache(maxsize=256)
def _places(found: tuple[Any, ...], wanted: tuple[str, ...]) -> list[int] | None:
    """Where the columns are: by name if any of them has a name, else by position."""
    if not any(isinstance(name, str) for name in found):
        return list(range(len(wanted))) if len(found) >= len(wanted) else None
    return [found.index(name) for name in wanted] if set(wanted) <= set(found) else None


def _without_zone(series: Any, timezone: str) -> Any:
    return series.dt.tz_convert(timezone).dt.tz_localize(None)


def _runs(parts: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Where columns of one dtype, which has the time zone, follow each other."""
    start = 0
    for _, run in groupby(parts, key=attrgetter("dtype")):
        stop = start + sum(1 for _ in run)
        yield start, stop
        start = stop


def _joined(parts: Sequence[Any]) -> Any:
    """Columns of one dtype as one; those of numpy's types, which are nearly all, without pandas."""
    if isinstance(parts[0].dtype, np.dtype):
        return np.concatenate([np.asarray(part) for part in parts])
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True)


def _array(values: Any, kind: pa.DataType | None = None) -> pa.Array:
    """Values as one array: Arrow makes chunks of some, such as NaN for strings."""
    found = pa.array(values, type=kind, from_pandas=True)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

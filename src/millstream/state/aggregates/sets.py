"""Several aggregates over the same rows, side by side: what the engine runs.

Accumulator columns are called ``name.accumulator``. Batches may hold other columns too; they are
ignored on the way in and absent on the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.state.aggregates.counts import Count
from millstream.state.aggregates.grouping import Groups, Ints
from millstream.state.aggregates.protocol import Aggregate

VALUE = "value"

T = TypeVar("T")


@dataclass(frozen=True)
class AggregateSet:
    """An ordered mapping from the names of results to their aggregates."""

    items: tuple[tuple[str, Aggregate], ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise ConfigError("aggregate needs at least one aggregate, as in aggregate(n=count())")
        names = [name for name, _ in self.items]
        if len(set(names)) < len(names):
            raise ConfigError(f"the names of aggregates must differ, got {', '.join(names)}")
        for name, item in self.items:
            if not name.isidentifier():
                raise ConfigError(f"an aggregate's name must be an identifier, got {name!r}")
            if not isinstance(item, Aggregate):
                raise ConfigError(
                    f"{name} must be an aggregate such as count() or sum(), got {item!r}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the results, in order."""
        return tuple(name for name, _ in self.items)

    @property
    def columns(self) -> tuple[str, ...]:
        """The value columns that are read, each once, in order of first use."""
        return tuple(dict.fromkeys(column_of(a) for _, a in self.items if a.needs_values))

    @property
    def count_rows(self) -> bool:
        """Whether all that matters of the rows of a group is their number."""
        return all(isinstance(item, Count) and not item.needs_values for _, item in self.items)

    def of_counts(self, numbers: Ints) -> pa.RecordBatch:
        """The accumulators of groups of so many rows, if these are only counted."""
        fields = [field for name, item in self.items for field in _fields(name, item, None)]
        return pa.RecordBatch.from_arrays(
            [pa.array(numbers)] * len(fields), schema=pa.schema(fields)
        )

    def fold(
        self, values: Mapping[str, pa.Array], times: pa.Array | None, groups: Groups, n: int
    ) -> pa.RecordBatch:
        """Reduce rows to one accumulator row for each group."""
        columns: list[pa.Array] = []
        fields: list[pa.Field] = []
        for name, item in self.items:
            array = _lookup(values, name, item)
            typed = None if array is None else _typed(array)
            known = _fields(name, item, None if typed is None else typed.type)
            folded = item.fold(typed, times, groups, n)
            if array is not typed:
                folded = [_untyped(column) for column in folded]
                known = [f.with_type(c.type) for f, c in zip(known, folded, strict=True)]
            fields += known
            columns += folded
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def merge(self, batch: pa.RecordBatch, groups: Groups, n: int) -> pa.RecordBatch:
        """Reduce accumulator rows to one for each group; earlier rows arrived earlier."""
        columns: list[pa.Array] = []
        fields: list[pa.Field] = []
        for name, item in self.items:
            mine = _indices(batch, name)
            fields += [batch.schema.field(i) for i in mine]
            given = [batch.column(i) for i in mine]
            merged = item.merge([_typed(column) for column in given], groups, n)
            columns += [
                _untyped(new) if pa.types.is_null(old.type) else new
                for old, new in zip(given, merged, strict=True)
            ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def result(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn accumulator rows into results, one column for each name."""
        columns = []
        for name, item in self.items:
            given = [batch.column(i) for i in _indices(batch, name)]
            found = item.result([_typed(column) for column in given])
            unknown = any(pa.types.is_null(column.type) for column in given)
            columns.append(_untyped(found) if unknown else found)
        return pa.RecordBatch.from_arrays(columns, names=list(self.names))


def _typed(array: pa.Array) -> pa.Array:
    """Give a type to a column in which nothing but null was seen, so that it can be computed."""
    return array.cast(pa.int64()) if pa.types.is_null(array.type) else array


def _untyped(array: pa.Array) -> pa.Array:
    """Take the type away again, so that the first real value decides it."""
    return pa.nulls(len(array)) if array.null_count == len(array) else array


def as_set(reducer: Aggregate | AggregateSet) -> AggregateSet:
    """A set as it is; a single aggregate as a set with the one name "value"."""
    return reducer if isinstance(reducer, AggregateSet) else AggregateSet(((VALUE, reducer),))


def column_of(aggregate: Aggregate) -> str:
    """The name of the value column that an aggregate reads."""
    return VALUE if aggregate.column is None else aggregate.column


def _lookup(found: Mapping[str, T], name: str, item: Aggregate) -> T | None:
    if not item.needs_values:
        return None
    column = column_of(item)
    if column not in found:
        raise ConfigError(
            f"aggregate {name} reads column {column!r}, which is not among: {', '.join(found)}"
        )
    return found[column]


def _fields(name: str, item: Aggregate, type: pa.DataType | None) -> list[pa.Field]:
    return [field.with_name(f"{name}.{field.name}") for field in item.accumulators(type)]


def _indices(batch: pa.RecordBatch, name: str) -> list[int]:
    return [i for i, column in enumerate(batch.schema.names) if column.startswith(f"{name}.")]

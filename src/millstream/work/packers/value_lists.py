"""The values of each key in a block: one list per row.

Plain values of one type, and tuples of them, travel as an Arrow list column, other objects pickled
by key. If all values of a block are equal (the ones of a word count), only their numbers
travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.state.aggregates.grouping import Ints
from millstream.state.pickling import dumps, loads
from millstream.state.values import PICKLED, decode_column, encode_column, is_pickled, plain_scalars
from millstream.work.failures import record_error

VALUES = "values"
TIMES = "times"
_PLAIN = frozenset({int, float, str, bytes, bool})
_REPEATED = b"millstream.repeated"


def only_value(values: tuple[Any, ...]) -> bool:
    """Whether all of some values are plain and equal."""
    # Types come first: to Python 1, True and 1.0 are equal, and a user's == may do anything.
    if not values or type(values[0]) not in _PLAIN or len(set(map(type, values))) > 1:
        return False
    if type(values[0]) is float and values[0] == 0.0:  # which -0.0 equals, too
        return False
    return values == values[:1] * len(values)


def encode_repeated(counts: Ints, value: Any) -> tuple[pa.Field, pa.Array]:
    """Encode how often every key has the one value."""
    field = pa.field(VALUES, pa.int64(), metadata={_REPEATED: dumps(value)})
    return field, pa.array(counts, pa.int64())


def encode_lists(job: JobVertex, lists: list[list[Any]]) -> tuple[pa.Field, pa.Array]:
    """Encode a list of values for every key: flat Arrow where exact, else pickled by key."""
    try:
        return _encoded(job, lists)
    except _TooMuchError:
        raise record_error(
            f"map of job {job.name!r}",
            job.map,
            "gave values that take more than 2 GiB together, hidden inside of objects",
            "give large values as bytes or str, or in several parts",
        ) from None


class _TooMuchError(Exception):
    """Arrow would need several arrays for one column."""


def _one_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        raise _TooMuchError
    return array


def _encoded(job: JobVertex, lists: list[list[Any]]) -> tuple[pa.Field, pa.Array]:
    given = list(chain.from_iterable(lists))
    flat, kinds = plain_scalars(given)
    if flat is not given:
        ends = list(accumulate(map(len, lists), initial=0))
        lists = [list(flat[start:stop]) for start, stop in pairwise(ends)]
    column = _flat_column(flat, kinds)
    if column is not None:
        lists_column = pa.ListArray.from_arrays(offsets_of(lists), column)
        return pa.field(VALUES, lists_column.type), lists_column
    try:
        blobs = [dumps(values) for values in lists]
    except Exception as problem:  # whatever a user's __reduce__ raises
        raise record_error(
            f"map of job {job.name!r}",
            job.map,
            f"gave values that cannot be pickled ({problem})",
            "give values without connections, locks or open files",
        ) from None
    return pa.field(VALUES, pa.binary(), metadata=PICKLED), _one_array(pa.array(blobs, pa.binary()))


def _flat_column(values: Sequence[Any], kinds: set[type]) -> pa.Array | None:
    """Values, or the items of tuples, as Arrow decodes them exactly; None if it cannot."""
    if kinds != {tuple}:
        return _plain_column(values, kinds)
    if len(set(map(len, values))) > 1 or not values[0]:
        return None
    items: list[pa.Array] = []
    for column in zip(*values, strict=True):
        found = _plain_column(*plain_scalars(column))
        if found is None:
            return None
        items.append(found)
    return pa.StructArray.from_arrays(items, [str(at) for at in range(len(items))])


def _plain_column(values: Sequence[Any], kinds: set[type]) -> pa.Array | None:
    if len(kinds) != 1 or not kinds <= _PLAIN:
        return None
    field, column = encode_column(VALUES, values)
    return None if field.metadata else _one_array(column)


def _flat_values(column: pa.Array) -> list[Any]:
    if not pa.types.is_struct(column.type):
        return list(column.to_pylist())
    return list(zip(*(items.to_pylist() for items in column.flatten()), strict=True))


def offsets_of(lists: list[list[Any]]) -> pa.Array:
    """The offsets of concatenated lists."""
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def repeated_value(block: pa.RecordBatch) -> bytes | None:
    """The value that all rows of a block repeat, pickled, if it has only their numbers."""
    metadata: dict[bytes, bytes] = block.schema.field(VALUES).metadata or {}
    return metadata.get(_REPEATED)


def decode_lists(block: pa.RecordBatch) -> Iterator[list[Any]]:
    """Decode the list of every row; the caller may change it."""
    field, column = block.schema.field(VALUES), block.column(VALUES)
    repeated = repeated_value(block)
    if repeated is not None:
        one = [loads(repeated)]
        return (one * count for count in column.to_pylist())
    if is_pickled(field):
        return iter(decode_column(field, column))
    offsets = column.offsets.to_numpy()
    flat = _flat_values(column.values.slice(offsets[0], offsets[-1] - offsets[0]))
    cuts = (offsets - offsets[0]).tolist()
    return (flat[start:stop] for start, stop in pairwise(cuts))


def with_lists(columns: dict[str, pa.Array], field: pa.Field, lists: pa.Array) -> pa.RecordBatch:
    """A block of columns, with a list of values for each row."""
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    arrays = [*columns.values(), lists]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*fields, field]))

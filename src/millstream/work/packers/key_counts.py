"""How often each key comes, counted in Arrow columns: for values that are all equal.

A dictionary would hash and compare every key as a Python object, which takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ring.key_types import BINARY, INT64, STRING
from millstream.state.aggregates.grouping import Ints

FOLD_ROWS = 4_000_000
FOLD_BYTES = 64 * 2**20
_FEW = 10_000  # of fewer keys Arrow makes a dictionary faster than a table of groups
_COLUMNS: dict[type, pa.DataType] = {bytes: BINARY, int: INT64}


def key_column(keys: Sequence[Any]) -> pa.Array | None:
    """Keys of one plain type as a canonical column; None for all others."""
    try:
        if type(keys[0]) is str:
            # Arrow finds a type for all of them, which is this one if they are strings or None.
            column = pa.array(keys)
            return column if column.type == STRING and not column.null_count else None
        kind = _COLUMNS.get(type(keys[0]))
        if kind is None or len(set(map(type, keys))) > 1:
            return None
        column = pa.array(keys, kind)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None  # whoever encodes them reports the key
    return None if isinstance(column, pa.ChunkedArray) else column


class KeyCounts:
    """Counts the keys of columns of one type."""

    def __init__(self) -> None:
        self._columns: list[pa.Array] = []
        self._rows = 0
        self._bytes = 0
        self._counted: list[tuple[pa.Array, Ints]] = []
        self.kind: pa.DataType | None = None

    def __bool__(self) -> bool:
        """Whether there is any key."""
        return self.kind is not None

    def add(self, keys: pa.Array) -> None:
        """Count the keys of a column."""
        self.kind = keys.type
        self._columns.append(keys)
        self._rows += len(keys)
        self._bytes += keys.nbytes
        if self._rows >= FOLD_ROWS or self._bytes >= FOLD_BYTES:
            self._fold()

    def _fold(self) -> None:
        if self._columns:
            self._counted.append(count_keys(self._columns))
            self._columns, self._rows, self._bytes = [], 0, 0

    def take(self) -> tuple[pa.Array, Ints]:
        """The keys, and how often each came since the last call."""
        self._fold()
        counted, self._counted, self.kind = self._counted, [], None
        if len(counted) == 1:
            return counted[0]
        return add_counts(counted)


def are_countable(columns: Sequence[pa.Array]) -> bool:
    """Whether ``count_keys`` takes these columns: they have one plain type, and no nulls."""
    kind = columns[0].type
    return kind in (STRING, BINARY, INT64) and all(
        keys.type == kind and not keys.null_count for keys in columns
    )


def count_keys(columns: Sequence[pa.Array]) -> tuple[pa.Array, Ints]:
    """The distinct keys of columns, and how often each comes.

    The order of the keys depends on nothing but the columns.
    """
    if sum(map(len, columns)) < _FEW:
        encoded = pa.concat_arrays(columns).dictionary_encode()
        return encoded.dictionary, np.bincount(encoded.indices.to_numpy())
    groups = pa.table({"key": pa.chunked_array(columns)}).group_by("key", use_threads=False)
    counted = groups.aggregate([([], "count_all")]).combine_chunks()
    (distinct,), (numbers,) = counted["key"].chunks, counted["count_all"].chunks
    return distinct, numbers.to_numpy()


def add_counts(counted: Sequence[tuple[pa.Array, Ints]]) -> tuple[pa.Array, Ints]:
    """The distinct keys of several counts, and the sum for each."""
    encoded = pa.concat_arrays([keys for keys, _ in counted]).dictionary_encode()
    sums = np.zeros(len(encoded.dictionary), np.int64)
    np.add.at(sums, encoded.indices.to_numpy(), np.concatenate([n for _, n in counted]))
    return encoded.dictionary, sums

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

_COLUMNS: dict[type, pa.DataType] = {bytes: BINARY, int: INT64}
_FOLD_ROWS = 500_000


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
        if self._rows >= _FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        if self._columns:
            self._counted.append(_counted(self._columns, None))
            self._columns, self._rows = [], 0

    def take(self) -> tuple[pa.Array, Ints]:
        """The keys by first occurrence, and how often each came since the last call."""
        self._fold()
        counted, self._counted, self.kind = self._counted, [], None
        if len(counted) == 1:
            return counted[0]
        numbers = np.concatenate([numbers for _, numbers in counted])
        return _counted([keys for keys, _ in counted], numbers)


def _counted(columns: list[pa.Array], numbers: Ints | None) -> tuple[pa.Array, Ints]:
    encoded = pa.concat_arrays(columns).dictionary_encode()
    groups = encoded.indices.to_numpy()
    if numbers is None:
        return encoded.dictionary, np.bincount(groups)
    counts = np.zeros(len(encoded.dictionary), np.int64)
    np.add.at(counts, groups, numbers)
    return encoded.dictionary, counts

"""Keys with plain values of one type, grouped in Arrow columns.

To group Python objects in a dictionary of lists, and to make one column of the lists, takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.state.aggregates.grouping import Ints, stable_order
from millstream.state.blocks import KEY, SLOT, keys_in_order
from millstream.work.packers.value_lists import VALUES, with_lists

_PLAIN: dict[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
}


def value_column(values: Sequence[Any]) -> pa.Array | None:
    """Values of one plain type as a column from which they come back as they were, or None."""
    kind = _PLAIN.get(type(values[0]))
    if kind is None or len(set(map(type, values))) > 1:
        return None
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None  # only pickle carries them
    return None if isinstance(column, pa.ChunkedArray) else column


class ValueColumns:
    """The keys and values of one packer, while all keys have one type, and all values."""

    def __init__(self) -> None:
        self._keys: list[pa.Array] = []
        self._values: list[pa.Array] = []

    def __bool__(self) -> bool:
        """Whether there is any value."""
        return bool(self._keys)

    def fits(self, keys: pa.Array, values: pa.Array) -> bool:
        """Whether these have the types of those before."""
        if not self._keys:
            return True
        same: bool = keys.type == self._keys[0].type and values.type == self._values[0].type
        return same

    def add(self, keys: pa.Array, values: pa.Array) -> None:
        """Add values, each with its key."""
        self._keys.append(keys)
        self._values.append(values)

    def add_repeated(self, keys: pa.Array, counts: Ints, value: pa.Array) -> None:
        """Add the one value of a column for each key, as often as its count says."""
        rows = np.repeat(np.arange(len(keys)), counts)
        self.add(keys.take(pa.array(rows)), pa.repeat(value[0], len(rows)))

    def take(self) -> tuple[pa.Array, pa.Array]:
        """All keys and values since the last call, in their order."""
        keys, values = pa.concat_arrays(self._keys), pa.concat_arrays(self._values)
        self._keys, self._values = [], []
        return keys, values

    def flush(self, slots: int) -> pa.RecordBatch:
        """A row for each key, with its values in the order in which they came."""
        keys, values = self.take()
        encoded = keys.dictionary_encode()
        distinct, of_keys, order = keys_in_order(encoded.dictionary, slots)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        rows = rank[encoded.indices.to_numpy()]
        counts = np.bincount(rows, minlength=len(order))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        by_row = values.take(pa.array(stable_order(rows, len(order))))
        lists = pa.ListArray.from_arrays(offsets, by_row)
        return with_lists({KEY: distinct, SLOT: of_keys}, pa.field(VALUES, lists.type), lists)

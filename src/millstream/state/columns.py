"""Keyed state in columns: one row for every key, for reducers that work on Arrow.

Fixed-width columns live in numpy arrays that are updated in place when a fragment is applied;
all others in object arrays. Look-ups and updates work on whole batches of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.masks import SlotCounts, SlotMask
from millstream.ring.strides import strides
from millstream.state.collector import without_collector
from millstream.state.column_fragments import (
    ColumnFragment,
    Slots,
    Times,
    cast_column,
    decode_columns,
    encode_columns,
    in_order,
    merge_columns,
    widened,
)

Rows = npt.NDArray[np.int64]
Read = Callable[[pa.RecordBatch, int], list[Any]]
"""Turns rows, whose number is given, into the values that users read."""
_FREE = -1  # in place of a slot


class _Column:
    """One growing column; a mask marks the None among fixed-width values."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.fixed = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        )
        dtype = kind.to_pandas_dtype() if self.fixed else object
        self.data: npt.NDArray[Any] = np.zeros(0, dtype=dtype)
        self.null = np.zeros(0, dtype=bool)

    def grow(self, capacity: int) -> None:
        for name in ("data", "null"):
            old = getattr(self, name)
            new = np.zeros(capacity, dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def put(self, rows: Rows, array: pa.Array) -> None:
        if not self.fixed:
            for at in strides(len(array)):
                values = array.slice(at.start, at.stop - at.start).to_pylist()
                self.data[rows[at]] = np.fromiter(values, object, len(values))
            return
        array = cast_column(array, self.kind)
        if array.null_count:
            self.null[rows] = array.is_null().to_numpy(zero_copy_only=False)
            array = array.fill_null(False if pa.types.is_boolean(self.kind) else 0)
        else:
            self.null[rows] = False
        self.data[rows] = array.to_numpy(zero_copy_only=False)

    def take(self, rows: Rows) -> pa.Array:
        if not self.fixed:
            parts = [pa.array(self.data[rows[at]].tolist(), self.kind) for at in strides(len(rows))]
            return pa.concat_arrays(parts) if parts else pa.array([], self.kind)
        mask = self.null[rows]
        return pa.array(self.data[rows], type=self.kind, mask=mask if mask.any() else None)

    def widened(self, kind: pa.DataType) -> _Column:
        """The same values in a column of a type that holds them all."""
        wide = _Column(kind)
        if pa.types.is_null(self.kind):
            wide.grow(len(self.data))
            wide.null[:] = True
            if not wide.fixed:
                wide.data[:] = None
        else:
            wide.data, wide.null = self.data.astype(wide.data.dtype), self.null
        return wide

    def clear(self, rows: Rows) -> None:
        """Drop the references of some rows."""
        if not self.fixed:
            self.data[rows] = None


def rows_as_dicts(rows: pa.RecordBatch, count: int) -> list[Any]:
    """Each row as a dictionary; a batch without columns does not know its number of rows."""
    return list(rows.to_pylist()) if rows.num_columns else [{} for _ in range(count)]


class ColumnState:
    """The master state of one job on one node, one row per key.

    ``read`` turns rows into the values that users read, such as results of accumulators; by
    default dictionaries.
    """

    step = 40_000  # more steps would first have to order the rows by slot, which takes as long

    def __init__(self, slots: int, read: Read = rows_as_dicts) -> None:
        self._read = read
        self._counts = np.zeros(slots, dtype=np.int64)
        self._clear()

    def _clear(self) -> None:
        self.schema: pa.Schema | None = None
        self._columns: list[_Column] = []
        self._index: dict[Any, int] = {}
        self._keys: list[Any] = []
        self._slots: Slots = np.zeros(0, dtype=np.int32)
        self._touched: Times = np.zeros(0, dtype=np.int64)
        self._free: list[int] = []

    def find(self, keys: Sequence[Any]) -> Rows:
        """The row of each key, −1 where there is none."""
        rows, get = np.empty(len(keys), np.int64), self._index.get
        for at in strides(len(keys)):
            rows[at] = np.fromiter(map(get, keys[at], repeat(-1)), np.int64, at.stop - at.start)
        return rows

    def take(self, rows: Rows) -> pa.RecordBatch:
        """The values at some rows."""
        assert self.schema is not None
        return pa.RecordBatch.from_arrays(
            [column.take(rows) for column in self._columns], schema=self.schema
        )

    def apply(self, fragment: ColumnFragment, slots: SlotMask | None = None) -> None:
        """Apply the fragment of a committed epoch, or its part for some slots."""
        if fragment.forgotten:
            rows = self.find(fragment.forgotten)
            rows = rows[rows >= 0]
            self._forget(rows if slots is None else rows[slots[self._slots[rows]]])
        if slots is not None:
            fragment = fragment.within(slots)
        if fragment.rows is None or not fragment.keys:
            return
        if self.schema is None:
            self.schema = fragment.rows.schema
            self._columns = [_Column(field.type) for field in self.schema]
        batch = in_order(fragment.rows, self.schema)
        if batch.schema.types != self.schema.types:
            self._widen(batch.schema)
        rows = self.find(fragment.keys)
        fresh = np.flatnonzero(rows < 0)
        if len(fresh):
            rows[fresh] = self._add([fragment.keys[at] for at in fresh.tolist()])
            self._slots[rows[fresh]] = fragment.slots[fresh]
            self._counts += self._count(fragment.slots[fresh])
        self._touched[rows] = fragment.times
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.put(rows, array)

    def _widen(self, schema: pa.Schema) -> None:
        """Widen columns for values of other types: the arrays would truncate them."""
        assert self.schema is not None
        self.schema = widened(self.schema, schema)
        self._columns = [
            column if column.kind == kind else column.widened(kind)
            for column, kind in zip(self._columns, self.schema.types, strict=True)
        ]

    def _add(self, keys: list[Any]) -> list[int]:
        reused = [self._free.pop() for _ in range(min(len(self._free), len(keys)))]
        start = len(self._keys)
        rows = reused + list(range(start, start + len(keys) - len(reused)))
        for row, key in zip(reused, keys, strict=False):
            self._keys[row] = key
        self._keys.extend(keys[len(reused) :])
        self._index.update(zip(keys, rows, strict=True))
        if len(self._keys) > len(self._slots):
            capacity = max(1024, 2 * len(self._keys))
            for column in self._columns:
                column.grow(capacity)
            self._slots = np.concatenate(
                [self._slots, np.full(capacity - len(self._slots), _FREE, dtype=np.int32)]
            )
            self._touched = np.concatenate(
                [self._touched, np.zeros(capacity - len(self._touched), dtype=np.int64)]
            )
        return rows

    def _count(self, slots: Slots) -> npt.NDArray[np.int64]:
        return np.bincount(slots, minlength=len(self._counts))

    def _forget(self, rows: Rows) -> None:
        if not len(rows):
            return
        for row in rows.tolist():
            del self._index[self._keys[row]]
            self._keys[row] = None
            self._free.append(row)
        self._counts -= self._count(self._slots[rows])
        self._slots[rows] = _FREE
        for column in self._columns:
            column.clear(rows)

    def _rows_of(self, slots: SlotMask) -> Rows:
        # The flag at the end is for free rows, whose slot is -1.
        return np.flatnonzero(np.append(slots, False)[self._slots])

    def idle_since(self, slots: range, before: int) -> list[Any]:
        """Keys of these slots whose last touch came before the given time, in row order."""
        at = self._slots
        idle = (self._touched < before) & (at >= slots.start) & (at < slots.stop)
        return self._keys_at(np.flatnonzero(idle))

    def _keys_at(self, rows: Rows) -> list[Any]:
        keys: list[Any] = []
        for at in strides(len(rows)):
            keys += map(self._keys.__getitem__, rows[at].tolist())
        return keys

    # -- fragments -------------------------------------------------------------------------

    def prepare(self, fragment: ColumnFragment, parts: int) -> ColumnFragment:
        """The same fragment; for several parts, with rows in the order of their slots."""
        return fragment if parts == 1 else fragment.by_slot()

    def encode(self, fragment: ColumnFragment) -> bytes:
        """Serialise a fragment."""
        return encode_columns(fragment)

    def decode(self, data: bytes | pa.Buffer) -> ColumnFragment:
        """Read what ``encode`` wrote."""
        with without_collector():
            return decode_columns(data)

    def part(self, fragment: ColumnFragment, slots: range) -> ColumnFragment:
        """A fragment's changes to some slots; forgotten keys are all kept."""
        return fragment.part((fragment.slots >= slots.start) & (fragment.slots < slots.stop))

    def merge(self, fragments: Sequence[ColumnFragment]) -> ColumnFragment:
        """Merge fragments of consecutive epochs, oldest first."""
        return merge_columns(fragments)

    def snapshot(self, slots: range) -> ColumnFragment:
        """All rows of some slots, as a fragment that makes empty slots equal to them."""
        rows = np.flatnonzero((self._slots >= slots.start) & (self._slots < slots.stop))
        if not len(rows):
            return ColumnFragment.without_rows([])
        return ColumnFragment(
            self._keys_at(rows), self._slots[rows], self.take(rows), [], self._touched[rows]
        )

    def drop(self, slots: SlotMask) -> None:
        """Remove all keys of some slots."""
        self._forget(self._rows_of(slots))
        if not self._index:
            self._clear()  # also the types: other rows may have others

    # -- reading ---------------------------------------------------------------------------

    def get(self, slot: int, key: Any) -> Any:
        """What a user reads for a key, or None."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """The same for many keys: each by itself would search all columns."""
        rows = self.find(list(keys))
        known = np.flatnonzero(rows >= 0)
        found: list[Any] = [None] * len(keys)
        if len(known):
            values = self._read(self.take(rows[known]), len(known))
            for at, value in zip(known.tolist(), values, strict=True):
                found[at] = value
        return found

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        """The keys of some slots with what a user reads for each."""
        for keys, rows in self.batches(slots):
            yield from zip(keys, self._read(rows, len(keys)), strict=True)

    def batches(
        self, slots: SlotMask, size: int = 65_536
    ) -> Iterator[tuple[list[Any], pa.RecordBatch]]:
        """The keys of some slots with their rows, batch by batch."""
        found = self._rows_of(slots)
        for start in range(0, len(found), size):
            rows = found[start : start + size]
            yield self._keys_at(rows), self.take(rows)

    def count(self, slots: SlotMask) -> int:
        """The number of keys in some slots."""
        return int(self._counts[slots].sum())

    def counts(self, slots: SlotMask) -> SlotCounts:
        """The number of keys in each of some slots, in slot order."""
        return self._counts[slots]

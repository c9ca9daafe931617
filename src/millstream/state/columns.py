"""Keyed state in columns: one row for every key, for reducers that work on Arrow.

Fixed-width columns live in numpy arrays that are updated in place when a fragment is sealed;
all others in object arrays. Look-ups and updates work on whole batches of keys. A fragment holds
absolute rows and, as in :mod:`millstream.state.keyed`, is never changed once it is reduced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.masks import SlotMask
from millstream.ring.strides import strides
from millstream.state.values import ValueTypeError, unify

Rows = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]
_FREE = -1  # in place of a slot


@dataclass(slots=True)
class ColumnFragment:
    """The changes of one or several epochs to some slots: new rows, and forgotten keys.

    Each key with a row has its slot and the time of its last touch. A key is not both written
    and forgotten. ``rows`` is None if there are none; of keys alone it has no columns.
    """

    keys: list[Any]
    slots: Slots
    rows: pa.RecordBatch | None
    forgotten: list[Any]
    times: Times

    def __bool__(self) -> bool:
        """Whether there is any change."""
        return bool(self.keys or self.forgotten)

    @classmethod
    def without_rows(cls, forgotten: list[Any]) -> ColumnFragment:
        return cls([], np.zeros(0, np.int32), None, forgotten, np.zeros(0, np.int64))

    def by_slot(self) -> ColumnFragment:
        """The same rows in the order of their slots."""
        if self.rows is None or bool((self.slots[1:] >= self.slots[:-1]).all()):
            return self
        order = np.argsort(self.slots, kind="stable")
        return ColumnFragment(
            list(map(self.keys.__getitem__, order.tolist())),
            self.slots[order],
            self.rows.take(pa.array(order)) if self.rows.num_columns else self.rows,
            self.forgotten,
            self.times[order],
        )

    def within(self, slots: SlotMask) -> ColumnFragment:
        """The rows of some slots; of rows in the order of slots it looks at few others."""
        found = self
        if self.rows is not None and bool((self.slots[1:] >= self.slots[:-1]).all()):
            wanted = np.flatnonzero(slots)
            if not len(wanted):
                return ColumnFragment.without_rows(self.forgotten)
            start = int(np.searchsorted(self.slots, wanted[0], "left"))
            stop = int(np.searchsorted(self.slots, wanted[-1], "right"))
            if stop - start < len(self.keys):
                found = ColumnFragment(
                    self.keys[start:stop],
                    self.slots[start:stop],
                    self.rows.slice(start, stop - start),
                    self.forgotten,
                    self.times[start:stop],
                )
        return found.part(slots[found.slots])

    def part(self, chosen: npt.NDArray[np.bool_]) -> ColumnFragment:
        """Some of the rows; of forgotten keys it does not know the slot, and keeps them all."""
        if chosen.all():
            return self
        if self.rows is None or not chosen.any():
            return ColumnFragment.without_rows(self.forgotten)
        return ColumnFragment(
            list(compress(self.keys, chosen.tolist())),
            self.slots[chosen],
            # Of keys alone there are no columns, which could not be filtered.
            self.rows.filter(pa.array(chosen)) if self.rows.num_columns else self.rows,
            self.forgotten,
            self.times[chosen],
        )


class _Column:
    """One growing column; None is kept beside fixed-width values in a mask."""

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
        """Let go of the objects at some rows."""
        if not self.fixed:
            self.data[rows] = None


def cast_column(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring a column to a type that ``unify`` found.

    An integer that no float equals is rounded, as it is in a column that is widened: an epoch
    that is committed must not be refused any more.
    """
    if array.type == kind:
        return array
    return array.cast(kind, safe=not pa.types.is_floating(kind))


def in_order(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns in the order of a schema: every unit of the first epoch has its own."""
    same = rows.schema.names == schema.names or set(rows.schema.names) != set(schema.names)
    return rows if same else rows.select(schema.names)


def widened_types(old: pa.Schema, new: pa.Schema) -> list[pa.DataType]:
    """The types that hold the columns of both schemas, or ``ValueTypeError``."""
    kinds = []
    for mine, other in zip(old, new, strict=True):
        kind = unify((mine.type, other.type))
        if kind is None:
            raise ValueTypeError(mine.name, str(mine.type), f"a value of type {other.type}", 0)
        kinds.append(kind)
    return kinds


def widened(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The old schema with types that hold the columns of both."""
    kinds = widened_types(old, new)
    return pa.schema([mine.with_type(kind) for mine, kind in zip(old, kinds, strict=True)])


class ColumnState:
    """The master state of one job on one node, one row per key."""

    def __init__(self, slots: int) -> None:
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
        """Merge a sealed fragment into master, or what it has for some slots."""
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
        """Make room for other numbers than those seen so far: an array would truncate them."""
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
        # The flag at the end is the one that the slot of free rows finds.
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

    def snapshot(self, slots: range) -> ColumnFragment:
        """All that some slots hold, as a fragment that makes empty slots equal to them."""
        rows = np.flatnonzero((self._slots >= slots.start) & (self._slots < slots.stop))
        if not len(rows):
            return ColumnFragment.without_rows([])
        return ColumnFragment(
            self._keys_at(rows), self._slots[rows], self.take(rows), [], self._touched[rows]
        )

    def drop(self, slots: SlotMask) -> None:
        """Forget all that some slots hold."""
        self._forget(self._rows_of(slots))
        if not self._index:
            self._clear()  # of what is gone, not even the types count any more

    def items(
        self, slots: SlotMask, batch: int = 65536
    ) -> Iterator[tuple[list[Any], pa.RecordBatch]]:
        """The committed keys of some slots with their rows, batch by batch."""
        found = self._rows_of(slots)
        for start in range(0, len(found), batch):
            rows = found[start : start + batch]
            yield self._keys_at(rows), self.take(rows)

    def keys(self, slots: SlotMask) -> int:
        """How many keys some slots hold."""
        return int(self._counts[slots].sum())

"""Keyed state in columns: one row for every key, for reducers that work on Arrow.

Fixed-width columns live in numpy arrays that are updated in place when a fragment is sealed;
all others in object arrays. Look-ups and updates work on whole batches of keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.state.values import ValueTypeError, unify

Rows = npt.NDArray[np.int64]
_NO_KEY = object()


@dataclass(slots=True)
class ColumnFragment:
    """The changes of one epoch to the slots of one unit: new rows, and forgotten keys."""

    keys: list[Any]
    slots: npt.NDArray[np.int32]
    rows: pa.RecordBatch | None
    forgotten: list[Any]

    @property
    def changed(self) -> int:
        return len(self.keys) + len(self.forgotten)


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
            self.data[rows] = np.fromiter(array.to_pylist(), object, len(array))
            return
        array = array.cast(self.kind)
        if array.null_count:
            self.null[rows] = array.is_null().to_numpy(zero_copy_only=False)
            array = array.fill_null(False if pa.types.is_boolean(self.kind) else 0)
        else:
            self.null[rows] = False
        self.data[rows] = array.to_numpy(zero_copy_only=False)

    def take(self, rows: Rows) -> pa.Array:
        if not self.fixed:
            return pa.array(self.data[rows].tolist(), type=self.kind)
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


def widened_types(old: pa.Schema, new: pa.Schema) -> list[pa.DataType]:
    """The types that hold the columns of both schemas, or ``ValueTypeError``."""
    kinds = []
    for mine, other in zip(old, new, strict=True):
        kind = unify((mine.type, other.type))
        if kind is None:
            raise ValueTypeError(mine.name, str(mine.type), f"a value of type {other.type}", 0)
        kinds.append(kind)
    return kinds


class ColumnState:
    """The master state of one job on one node, one row per key."""

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None
        self._columns: list[_Column] = []
        self._index: dict[Any, int] = {}
        self._keys: list[Any] = []
        self._slots: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._touched: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._free: list[int] = []

    def find(self, keys: Sequence[Any]) -> Rows:
        """The row of each key, −1 where there is none."""
        return np.fromiter(map(self._index.get, keys, repeat(-1)), np.int64, len(keys))

    def take(self, rows: Rows) -> pa.RecordBatch:
        """The values at some rows."""
        assert self.schema is not None
        return pa.RecordBatch.from_arrays(
            [column.take(rows) for column in self._columns], schema=self.schema
        )

    def apply(self, fragment: ColumnFragment, time: int) -> None:
        """Merge a sealed fragment into master."""
        for key in fragment.forgotten:
            row = self._index.pop(key, None)
            if row is not None:
                self._keys[row] = _NO_KEY
                self._free.append(row)
        if fragment.rows is None or not fragment.keys:
            return
        if self.schema is None:
            self.schema = fragment.rows.schema
            self._columns = [_Column(field.type) for field in self.schema]
        elif fragment.rows.schema.types != self.schema.types:
            self._widen(fragment.rows.schema)
        rows = self.find(fragment.keys)
        fresh = np.flatnonzero(rows < 0)
        if len(fresh):
            rows[fresh] = self._add([fragment.keys[at] for at in fresh.tolist()])
        self._slots[rows] = fragment.slots
        self._touched[rows] = time
        for column, array in zip(self._columns, fragment.rows.columns, strict=True):
            column.put(rows, array)

    def _widen(self, schema: pa.Schema) -> None:
        """Make room for other numbers than those seen so far: an array would truncate them."""
        assert self.schema is not None
        kinds = widened_types(self.schema, schema)
        self._columns = [
            column if column.kind == kind else column.widened(kind)
            for column, kind in zip(self._columns, kinds, strict=True)
        ]
        self.schema = pa.schema(
            [field.with_type(kind) for field, kind in zip(self.schema, kinds, strict=True)]
        )

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
                [self._slots, np.zeros(capacity - len(self._slots), dtype=np.int32)]
            )
            self._touched = np.concatenate(
                [self._touched, np.zeros(capacity - len(self._touched), dtype=np.int64)]
            )
        return rows

    def idle_since(self, slots: npt.NDArray[np.int32], before: int) -> list[Any]:
        """Keys of these slots whose last touch came before the given time, in row order."""
        live = len(self._keys)
        rows = np.flatnonzero((self._touched[:live] < before) & np.isin(self._slots[:live], slots))
        return [key for key in map(self._keys.__getitem__, rows.tolist()) if key is not _NO_KEY]

    def items(self, batch: int = 65536) -> Iterator[tuple[list[Any], pa.RecordBatch]]:
        """All committed keys with their rows, batch by batch."""
        entries = list(self._index.items())
        for start in range(0, len(entries), batch):
            part = entries[start : start + batch]
            rows = np.array([row for _, row in part], dtype=np.int64)
            yield [key for key, _ in part], self.take(rows)

    @property
    def keys(self) -> int:
        return len(self._index)

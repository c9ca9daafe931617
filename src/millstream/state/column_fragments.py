"""Fragments of columnar state: rows and forgotten keys, merged and as bytes.

A fragment holds absolute rows and never changes once it is reduced. Encoded, it is a sequence of
pickles of a few thousand keys each, with rows in Arrow's IPC format. Only bytes of an authenticated
peer may be decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ring.masks import SlotMask
from millstream.ring.strides import AT_ONCE, strides
from millstream.state.blocks import from_bytes, to_bytes
from millstream.state.pickling import canonical, dumps, unpickled
from millstream.state.values import ValueTypeError, unify

Slots = npt.NDArray[np.int32]
Times = npt.NDArray[np.int64]


@dataclass(slots=True)
class ColumnFragment:
    """The changes of one or several epochs to some slots: new rows, and forgotten keys.

    Each key with a row has its slot and the time of its last touch. A key is not both written
    and forgotten. ``rows`` is None if there are none; it has no columns for state of keys alone.
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
        """The rows of some slots; fast if the rows are in the order of slots."""
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
        """Some of the rows, and all forgotten keys: their slots are not known."""
        if chosen.all():
            return self
        if self.rows is None or not chosen.any():
            return ColumnFragment.without_rows(self.forgotten)
        return ColumnFragment(
            list(compress(self.keys, chosen.tolist())),
            self.slots[chosen],
            # A batch without columns cannot be filtered.
            self.rows.filter(pa.array(chosen)) if self.rows.num_columns else self.rows,
            self.forgotten,
            self.times[chosen],
        )


def cast_column(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to a type that ``unify`` found.

    An integer that no float equals is rounded, as in a column that is widened: a committed epoch
    must not be rejected.
    """
    if array.type == kind:
        return array
    return array.cast(kind, safe=not pa.types.is_floating(kind))


def in_order(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns in the order of a schema: units of the first epoch may have different orders."""
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


def encode_columns(fragment: ColumnFragment) -> bytes:
    """Serialise a fragment of columnar state."""
    return b"".join(map(_encode_columns, _column_parts(fragment)))


def _column_parts(fragment: ColumnFragment) -> Iterator[ColumnFragment]:
    """Cut a fragment into parts of not too many keys."""
    if len(fragment.keys) + len(fragment.forgotten) <= AT_ONCE:
        yield fragment
        return
    for at in strides(len(fragment.keys)):
        assert fragment.rows is not None
        rows = fragment.rows.slice(at.start, at.stop - at.start)
        keys, slots, times = fragment.keys[at], fragment.slots[at], fragment.times[at]
        yield ColumnFragment(keys, slots, rows, [], times)
    for at in strides(len(fragment.forgotten)):
        yield ColumnFragment.without_rows(fragment.forgotten[at])


def _encode_columns(fragment: ColumnFragment) -> bytes:
    times: npt.NDArray[np.int64] | int = fragment.times
    if len(fragment.times) and bool((fragment.times == fragment.times[0]).all()):
        times = int(fragment.times[0])  # of one epoch, as nearly always
    rows = None if fragment.rows is None else to_bytes(fragment.rows)
    return dumps((fragment.keys, fragment.slots, times, rows, fragment.forgotten))


def decode_columns(data: bytes | pa.Buffer) -> ColumnFragment:
    """Read what ``encode_columns`` wrote."""
    decoded = ColumnFragment.without_rows([])
    slots, times, batches = [decoded.slots], [decoded.times], []
    for keys, of_keys, touched, rows, forgotten in unpickled(data):
        decoded.keys += canonical(keys)
        decoded.forgotten += canonical(forgotten)
        slots.append(of_keys)
        times.append(np.full(len(keys), touched, np.int64) if isinstance(touched, int) else touched)
        if rows is not None:
            batches.append(from_bytes(rows))
    return ColumnFragment(
        decoded.keys,
        np.concatenate(slots),
        concat_rows(batches) if batches else None,
        decoded.forgotten,
        np.concatenate(times),
    )


def merge_columns(fragments: Sequence[ColumnFragment]) -> ColumnFragment:
    """Merge fragments of consecutive epochs, oldest first, into one with the same effect."""
    last: dict[Any, int] = {}
    forgotten: dict[Any, None] = {}
    parts: list[ColumnFragment] = []
    start = 0
    for fragment in fragments:
        for key in fragment.forgotten:
            last.pop(key, None)
            forgotten[key] = None
        if fragment.keys:
            last.update(zip(fragment.keys, range(start, start + len(fragment.keys)), strict=True))
            start += len(fragment.keys)
            parts.append(fragment)
    gone = [key for key in forgotten if key not in last]
    if not last:
        return ColumnFragment.without_rows(gone)
    at = np.fromiter(last.values(), np.int64, len(last))
    return ColumnFragment(
        list(last),
        np.concatenate([part.slots for part in parts])[at],
        concat_rows([part.rows for part in parts]).take(at),
        gone,
        np.concatenate([part.times for part in parts])[at],
    )


def concat_rows(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate rows as the state would: columns by name, in types that hold all values."""
    schema = batches[0].schema
    batches = [in_order(batch, schema) for batch in batches]
    for batch in batches[1:]:
        schema = widened(schema, batch.schema)
    columns = [
        pa.concat_arrays([cast_column(array, kind) for array in arrays])
        for kind, *arrays in zip(schema.types, *(b.columns for b in batches), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

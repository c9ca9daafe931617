"""Rows of keys, and fragments that replace them, merged and as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.ring.strides import AT_ONCE, strides
from millstream.state.aggregates.grouping import Bools, Ints
from millstream.state.panes.keys import Ids
from millstream.state.panes.tables import Algebra
from millstream.state.pickling import canonical, dumps, unpickled

A = TypeVar("A")


@dataclass(frozen=True)
class KeyRows(Generic[A]):
    """Rows of keys, in the order of their ids; ``rows`` is None if there is none at all."""

    ids: Ids
    columns: Mapping[str, Ints]
    rows: A | None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, algebra: Algebra[A], at: Ids) -> KeyRows[A]:
        """Some of the rows."""
        if self.rows is None or not len(at):
            return KeyRows(self.ids[:0], {n: c[:0] for n, c in self.columns.items()}, None)
        columns = {name: column[at] for name, column in self.columns.items()}
        return KeyRows(self.ids[at], columns, algebra.take(self.rows, at))

    def chosen(self, algebra: Algebra[A], mask: Bools) -> KeyRows[A]:
        """Some of the rows, by a mask."""
        return self if mask.all() else self.take(algebra, np.flatnonzero(mask))


def no_rows(names: Sequence[str]) -> KeyRows[Any]:
    """No rows at all, with these columns."""
    none = np.zeros(0, np.int64)
    return KeyRows(none, dict.fromkeys(names, none), None)


def stacked(algebra: Algebra[A], parts: Sequence[KeyRows[A]]) -> KeyRows[A]:
    """Concatenate the rows of parts, of which there is at least one."""
    given = [part for part in parts if len(part)]
    if len(given) < 2:
        return given[0] if given else parts[0]
    columns = {name: np.concatenate([p.columns[name] for p in given]) for name in given[0].columns}
    rows = algebra.concat([part.rows for part in given if part.rows is not None])
    return KeyRows(np.concatenate([part.ids for part in given]), columns, rows)


def by_id(algebra: Algebra[A], given: KeyRows[A], *columns: str) -> KeyRows[A]:
    """Rows ordered by id, then by these columns, then as given."""
    order = np.lexsort([*(given.columns[name] for name in reversed(columns)), given.ids])
    return given if (order[1:] > order[:-1]).all() else given.take(algebra, order)


@dataclass(frozen=True)
class RowFragment(Generic[A]):
    """The new rows of keys: a number of rows each, in the order of the keys.

    ``ids`` are valid on the node that made it, in one generation.
    """

    keys: list[Any]
    slots: npt.NDArray[np.int32]
    counts: Ints
    columns: Mapping[str, Ints]
    rows: A | None
    ids: tuple[object, Ids] | None = None

    def __bool__(self) -> bool:
        """Whether there is any change."""
        return bool(self.keys)

    def chosen(self, algebra: Algebra[A], mask: Bools) -> RowFragment[A]:
        """The rows of some of its keys."""
        if mask.all():
            return self
        table = KeyRows(np.repeat(np.arange(len(mask)), self.counts), self.columns, self.rows)
        kept = table.chosen(algebra, np.repeat(mask, self.counts))
        return RowFragment(
            list(compress(self.keys, mask.tolist())),
            self.slots[mask],
            self.counts[mask],
            kept.columns,
            kept.rows,
            None if self.ids is None else (self.ids[0], self.ids[1][mask]),
        )

    def part(self, algebra: Algebra[A], slots: range) -> RowFragment[A]:
        """Its changes to some slots."""
        return self.chosen(algebra, (self.slots >= slots.start) & (self.slots < slots.stop))


def encode_rows(fragment: RowFragment[A], algebra: Algebra[A]) -> bytes:
    """Serialise a fragment, as a sequence of pickles."""
    return b"".join(_encode_part(part, algebra) for part in _cut(fragment, algebra))


def _cut(fragment: RowFragment[A], algebra: Algebra[A]) -> Iterator[RowFragment[A]]:
    """Cut a fragment into parts of not too many keys."""
    if len(fragment.keys) <= AT_ONCE:
        yield fragment
        return
    ends = np.concatenate([[0], np.cumsum(fragment.counts)])
    for at in strides(len(fragment.keys)):
        rows = slice(int(ends[at.start]), int(ends[at.stop]))
        taken = None
        if fragment.rows is not None:
            taken = algebra.take(fragment.rows, np.arange(rows.start, rows.stop))
        columns = {name: column[rows] for name, column in fragment.columns.items()}
        keys, slots, counts = fragment.keys[at], fragment.slots[at], fragment.counts[at]
        yield RowFragment(keys, slots, counts, columns, taken)


def _encode_part(fragment: RowFragment[A], algebra: Algebra[A]) -> bytes:
    rows = None if fragment.rows is None else algebra.pack(fragment.rows)
    return dumps((fragment.keys, fragment.slots, fragment.counts, dict(fragment.columns), rows))


def decode_rows(data: Any, algebra: Algebra[A]) -> RowFragment[A]:
    """Read what ``encode_rows`` wrote."""
    keys: list[Any] = []
    slots, counts, parts = [], [], []
    for of_keys, of_slots, of_counts, columns, rows in unpickled(data):
        keys += canonical(of_keys)
        slots.append(of_slots)
        counts.append(of_counts)
        unpacked = None if rows is None else algebra.unpack(rows)
        parts.append(KeyRows(np.zeros(int(of_counts.sum()), np.int64), columns, unpacked))
    table = stacked(algebra, parts)
    return RowFragment(
        keys, np.concatenate(slots), np.concatenate(counts), table.columns, table.rows
    )


def merge_rows(
    fragments: Sequence[RowFragment[A]], algebra: Algebra[A], names: Sequence[str]
) -> RowFragment[A]:
    """Merge fragments of consecutive epochs, oldest first: the newest rows of each key."""
    keys = [key for fragment in fragments for key in fragment.keys]
    if not keys:
        none = no_rows(names)
        return RowFragment([], np.zeros(0, np.int32), none.ids, none.columns, None)
    newest = dict(zip(keys, range(len(keys)), strict=True))
    mask = np.zeros(len(keys), bool)
    mask[np.fromiter(newest.values(), np.int64, len(newest))] = True
    counts = np.concatenate([fragment.counts for fragment in fragments])
    parts = [KeyRows(np.zeros(int(f.counts.sum()), np.int64), f.columns, f.rows) for f in fragments]
    table = stacked(algebra, parts)
    slots = np.concatenate([fragment.slots for fragment in fragments])
    everything = RowFragment(keys, slots, counts, table.columns, table.rows)
    return everything.chosen(algebra, mask)

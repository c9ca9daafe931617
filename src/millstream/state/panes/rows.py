"""State in which every key has some rows: accumulators, with whole numbers beside them.

A fragment replaces all rows of each key that it names, so it can be applied again and again; a
key without rows is forgotten. The state is a few runs of rows, each much longer than the next: a
change is written as a new run and merged with those that are not much longer. So an epoch costs
what it touches, and little more, however many keys there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask
from millstream.ring.strides import AT_ONCE, strides
from millstream.state.aggregates.grouping import Bools, Ints
from millstream.state.deltas import canonical, unpickled
from millstream.state.panes.keys import Ids, KeyIds
from millstream.state.panes.tables import Algebra
from millstream.state.pickling import dumps

A = TypeVar("A")
_SPARE = 1024
_NOWHERE = -1


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
    """The rows of one part behind those of the other, as they are; there is at least one part."""
    given = [part for part in parts if len(part)]
    if len(given) < 2:
        return given[0] if given else parts[0]
    columns = {name: np.concatenate([p.columns[name] for p in given]) for name in given[0].columns}
    rows = algebra.concat([part.rows for part in given if part.rows is not None])
    return KeyRows(np.concatenate([part.ids for part in given]), columns, rows)


def by_id(algebra: Algebra[A], given: KeyRows[A], *columns: str) -> KeyRows[A]:
    """Rows in the order of ids, then of these columns, then as they came."""
    order = np.lexsort([*(given.columns[name] for name in reversed(columns)), given.ids])
    return given if (order[1:] > order[:-1]).all() else given.take(algebra, order)


@dataclass(frozen=True)
class RowFragment(Generic[A]):
    """What keys have from now on: so many rows each, in the order of the keys.

    On the node that made it, ``ids`` are known, of a generation.
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
        """What it has for some of its keys."""
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
        """What it has for some slots."""
        return self.chosen(algebra, (self.slots >= slots.start) & (self.slots < slots.stop))


def encode_rows(fragment: RowFragment[A], algebra: Algebra[A]) -> bytes:
    """Serialise a fragment, as a row of pickles."""
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
    """Join fragments of consecutive epochs, oldest first: of each key, the newest counts."""
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
    whole = RowFragment(keys, slots, counts, table.columns, table.rows)
    return whole.chosen(algebra, mask)


@dataclass(frozen=True)
class _Run(Generic[A]):
    """Rows that were written together; those of keys that have been written since are dead."""

    number: int
    table: KeyRows[A]


@dataclass
class _Index:
    """Of each key: the run that its rows are in, and how many they are."""

    runs: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def reach(self, ids: Ids) -> None:
        """Make room for keys."""
        needed = int(ids.max()) + 1 if len(ids) else 0
        if needed > len(self.runs):
            more = 2 * needed - len(self.runs)
            self.runs = np.concatenate([self.runs, np.full(more, _NOWHERE, np.int64)])
            self.sizes = np.concatenate([self.sizes, np.zeros(more, np.int64)])


class Rows(Generic[A]):
    """The committed rows of all keys: a few runs, and where to look for a key.

    A reduction may number new keys meanwhile (``keys.find``); that shows nowhere here.
    """

    def __init__(self, algebra: Algebra[A], names: Sequence[str], keys: KeyIds) -> None:
        self._algebra = algebra
        self._names = tuple(names)
        self.keys = keys
        self.index = _Index()
        self.runs: list[_Run[A]] = []

    def of(self, ids: Ids) -> KeyRows[A]:
        """All rows of some keys, which are distinct and in order."""
        ids = ids[: np.searchsorted(ids, len(self.index.runs))]  # of later ones there are none
        runs = self.index.runs[ids]
        found = [
            run.table.take(self._algebra, _ranges(run.table.ids, ids[runs == run.number]))
            for run in self.runs
        ]
        return by_id(self._algebra, stacked(self._algebra, [no_rows(self._names), *found]))

    def within(self, slots: SlotMask) -> Ids:
        """The keys of some slots."""
        return self.keys.within(slots)

    def alive(self, run: _Run[A]) -> Bools:
        """Of the rows of a run, those that were not written since."""
        alive: Bools = self.index.runs[run.table.ids] == run.number
        return alive

    def tidied(self) -> Rows[A] | None:
        """The same rows without the numbers of keys that have none, if those are many."""
        found = self.keys.tidied()
        if found is None:
            return None
        keys, mapping = found
        rows = Rows(self._algebra, self._names, keys)
        known = min(len(mapping), len(self.index.runs))
        used = mapping[:known] >= 0
        rows.index = _Index(self.index.runs[:known][used], self.index.sizes[:known][used])
        for run in self.runs:
            table = run.table.chosen(self._algebra, self.alive(run))
            if len(table):
                renamed = KeyRows(mapping[table.ids], table.columns, table.rows)
                rows.runs.append(_Run(run.number, renamed))
        return rows


class RowState(Generic[A]):
    """The rows of one windowed job on one node, and how fragments change them.

    ``reduce`` may run while others read ``committed``; ``apply`` and ``drop`` may not.
    """

    def __init__(self, algebra: Algebra[A], names: Sequence[str]) -> None:
        self._algebra = algebra
        self.names = tuple(names)
        self.committed: Rows[A] = Rows(algebra, names, KeyIds())
        self._number = 0
        self._live = 0

    @property
    def keys(self) -> KeyIds:
        return self.committed.keys

    @property
    def _index(self) -> _Index:
        return self.committed.index

    @property
    def _runs(self) -> list[_Run[A]]:
        return self.committed.runs

    # -- reading -------------------------------------------------------------------------

    def of(self, ids: Ids) -> KeyRows[A]:
        """All rows of some keys, which are distinct and in order."""
        return self.committed.of(ids)

    def where(self, slots: range, *names: str) -> tuple[Ids, list[Ints]]:
        """Some columns of all rows that lie in some slots, with their ids; in no order."""
        ids: list[Ids] = [np.zeros(0, np.int64)]
        columns: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in names]
        for run in self._runs:
            mask = self._live_in(run, slots)
            ids.append(run.table.ids[mask])
            for found, name in zip(columns, names, strict=True):
                found.append(run.table.columns[name][mask])
        return np.concatenate(ids), [np.concatenate(found) for found in columns]

    def _live_in(self, run: _Run[A], slots: range) -> Bools:
        at = self.keys.slots(run.table.ids)
        return self.committed.alive(run) & (at >= slots.start) & (at < slots.stop)

    def check(self, rows: A) -> None:
        """Raise what the algebra raises if rows cannot stand beside those that are here."""
        none = np.zeros(0, np.int64)
        held = [run.table.rows for run in self._runs if run.table.rows is not None]
        self._algebra.concat([self._algebra.take(part, none) for part in (*held, rows)])

    # -- changing ------------------------------------------------------------------------

    def tidy(self) -> None:
        """Give up the numbers of keys that have no rows any more, if they are many."""
        tidied = self.committed.tidied()
        if tidied is not None:
            # In one step: whoever reads meanwhile goes on with the rows as they were.
            self.committed = tidied

    def fragment(self, ids: Ids, table: KeyRows[A]) -> RowFragment[A]:
        """The fragment by which some keys, distinct and in order, have just these rows."""
        keys = self.keys
        counts = np.diff(np.searchsorted(table.ids, ids, "right"), prepend=0)
        return RowFragment(
            keys.keys(ids),
            keys.slots(ids),
            counts,
            table.columns,
            table.rows,
            (keys.generation, ids),
        )

    def apply(self, fragment: RowFragment[A], slots: SlotMask | None = None) -> None:
        """Merge a sealed fragment, or what it has for some slots."""
        if slots is not None:
            fragment = fragment.chosen(self._algebra, slots[fragment.slots])
        if not fragment:
            return
        known = fragment.ids
        if known is not None and known[0] is self.keys.generation:
            ids = known[1]
        else:
            ids = self.keys.find(fragment.keys, fragment.slots)
        self._number += 1
        self._place(ids, fragment.counts)
        if fragment.rows is not None:
            table = KeyRows(np.repeat(ids, fragment.counts), fragment.columns, fragment.rows)
            self._runs.append(_Run(self._number, by_id(self._algebra, table)))
        self._merge_runs()

    def _place(self, ids: Ids, counts: Ints) -> None:
        """Note that the newest run has so many rows of each of these keys."""
        index = self._index
        index.reach(ids)
        had, has = index.sizes[ids] > 0, counts > 0
        self.keys.count(ids[has & ~had], 1)
        self.keys.count(ids[had & ~has], -1)
        self._live += int(counts.sum()) - int(index.sizes[ids].sum())
        index.sizes[ids] = counts
        index.runs[ids] = np.where(has, self._number, _NOWHERE)

    def _merge_runs(self) -> None:
        runs = self._runs
        if sum(len(run.table) for run in runs) > 2 * self._live + _SPARE:
            runs[:] = [self._only_live(runs)]
        while len(runs) > 1 and len(runs[-2].table) <= 2 * len(runs[-1].table):
            runs[-2:] = [self._only_live(runs[-2:])]

    def _only_live(self, runs: Sequence[_Run[A]]) -> _Run[A]:
        """One run in place of several, without what is dead."""
        alive = [run.table.chosen(self._algebra, self.committed.alive(run)) for run in runs]
        table = by_id(self._algebra, stacked(self._algebra, alive))
        self._number += 1
        self._index.runs[table.ids] = self._number
        return _Run(self._number, table)

    def snapshot(self, slots: range) -> RowFragment[A]:
        """All that some slots hold, as a fragment that makes empty slots equal to them."""
        found = [run.table.chosen(self._algebra, self._live_in(run, slots)) for run in self._runs]
        table = by_id(self._algebra, stacked(self._algebra, [no_rows(self.names), *found]))
        return self.fragment(np.unique(table.ids), table)

    def drop(self, slots: SlotMask) -> None:
        """Forget all that some slots hold."""
        ids = self.committed.within(slots)
        self._place(ids, np.zeros(len(ids), np.int64))
        self._merge_runs()


def _ranges(ids: Ids, wanted: Ids) -> Ids:
    """Where the wanted ids stand, among ids; both are in order."""
    starts = np.searchsorted(ids, wanted, "left")
    counts = np.searchsorted(ids, wanted, "right") - starts
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))

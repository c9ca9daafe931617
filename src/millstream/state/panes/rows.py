"""State in which every key has some rows: accumulators, with integer columns beside them.

A fragment replaces all rows of each key that it names, so applying it is idempotent; a key without
rows is removed. The state is a few sorted runs of rows, as in an LSM tree, each much longer than
the next: a change is written as a new run and merged with those that are not much longer. So the
cost of an epoch depends on the keys that it touches, not on the number of all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from millstream.ring.masks import SlotCounts, SlotMask
from millstream.state.aggregates.grouping import Bools, Ints
from millstream.state.collector import without_collector
from millstream.state.panes.keys import Ids, KeyIds
from millstream.state.panes.row_fragments import (
    KeyRows,
    RowFragment,
    by_id,
    decode_rows,
    encode_rows,
    merge_rows,
    no_rows,
    stacked,
)
from millstream.state.panes.tables import Algebra
from millstream.times import END

A = TypeVar("A")
_SPARE = 1024
_NOWHERE = -1


@dataclass(frozen=True)
class _Run(Generic[A]):
    """Rows that were written together; those of keys that were written later are dead."""

    number: int
    table: KeyRows[A]


@dataclass
class _Index:
    """The run of each key's rows, and their number."""

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
    """The committed rows of all keys: a few runs, and an index of keys.

    A reduction may number new keys concurrently (``keys.find``); they are not visible here.
    """

    def __init__(self, algebra: Algebra[A], names: Sequence[str], keys: KeyIds) -> None:
        self._algebra = algebra
        self._names = tuple(names)
        self.keys = keys
        self.index = _Index()
        self.runs: list[_Run[A]] = []

    def of(self, ids: Ids) -> KeyRows[A]:
        """All rows of some keys, which are distinct and in order."""
        ids = ids[: np.searchsorted(ids, len(self.index.runs))]  # later ones have no rows
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
        """The rows of a run whose keys were not written later."""
        alive: Bools = self.index.runs[run.table.ids] == run.number
        return alive

    def compacted(self) -> Rows[A] | None:
        """The same rows without the numbers of unused keys, if those are many."""
        found = self.keys.compacted()
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
    """The rows of one windowed job on one node: of the slots that it owns, and of copies.

    ``names`` are the columns beside the accumulators; ``read`` turns a key's rows into the value
    that users read. A reduction may run while others read ``committed``; ``apply`` and ``drop``
    may not.
    """

    step = 50_000

    def __init__(
        self,
        algebra: Algebra[A],
        names: Sequence[str],
        read: Callable[[KeyRows[A]], Any] = lambda rows: rows,
    ) -> None:
        self._algebra = algebra
        self._read = read
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
        """Some columns of all rows of some slots, with their ids; in no order."""
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

    def get(self, slot: int, key: Any) -> Any:
        """What a user reads for a key, or None."""
        rows = self.committed
        known = rows.keys.known(key)
        if known is None:
            return None
        found = rows.of(np.array([known], np.int64))
        return self._read(found) if len(found) else None

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        """The keys of some slots with what a user reads for each."""
        rows = self.committed
        ids = rows.within(slots)
        found = rows.of(ids)
        cuts = np.searchsorted(found.ids, ids, "right")
        parts = np.split(np.arange(len(found)), cuts[:-1])
        for key, part in zip(rows.keys.keys(ids), parts, strict=False):
            yield key, self._read(found.take(self._algebra, part))

    def count(self, slots: SlotMask) -> int:
        """The number of keys in some slots."""
        return len(self.committed.within(slots))

    def counts(self, slots: SlotMask) -> SlotCounts:
        """The number of keys in each of some slots, in slot order."""
        return self.committed.keys.counts(slots)

    def check(self, rows: A) -> None:
        """Raise the algebra's error if rows do not fit those of the state."""
        none = np.zeros(0, np.int64)
        held = [run.table.rows for run in self._runs if run.table.rows is not None]
        self._algebra.concat([self._algebra.take(part, none) for part in (*held, rows)])

    # -- changing ------------------------------------------------------------------------

    def compact_keys(self) -> None:
        """Free the numbers of keys without rows, if they are many."""
        compacted = self.committed.compacted()
        if compacted is not None:
            # In one step: concurrent readers keep the rows as they were.
            self.committed = compacted

    def fragment(self, ids: Ids, table: KeyRows[A]) -> RowFragment[A]:
        """The fragment that gives some keys, distinct and in order, these rows."""
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
        """Apply the fragment of a committed epoch, or its part for some slots."""
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
        """Record the number of rows of each of these keys in the newest run."""
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
        """Merge runs into one, without dead rows."""
        alive = [run.table.chosen(self._algebra, self.committed.alive(run)) for run in runs]
        table = by_id(self._algebra, stacked(self._algebra, alive))
        self._number += 1
        self._index.runs[table.ids] = self._number
        return _Run(self._number, table)

    # -- fragments -------------------------------------------------------------------------

    def prepare(self, fragment: RowFragment[A], parts: int) -> RowFragment[A]:
        """The same fragment with the numbers that its keys have here."""
        known = fragment.ids
        if known is not None and known[0] is self.keys.generation:
            return fragment
        ids = self.keys.find(fragment.keys, fragment.slots)
        return replace(fragment, ids=(self.keys.generation, ids))

    def encode(self, fragment: RowFragment[A]) -> bytes:
        """Serialise a fragment."""
        return encode_rows(fragment, self._algebra)

    def decode(self, data: bytes | pa.Buffer) -> RowFragment[A]:
        """Read what ``encode`` wrote; columns that it lacks hold the end of time.

        A checkpoint may be older than the time-to-live of the job: keys without a time of last
        touch do not expire until they are touched.
        """
        with without_collector():
            fragment = decode_rows(data, self._algebra)
        missing = np.full(int(fragment.counts.sum()), END)
        columns = {name: fragment.columns.get(name, missing) for name in self.names}
        return replace(fragment, columns=columns)

    def part(self, fragment: RowFragment[A], slots: range) -> RowFragment[A]:
        """A fragment's changes to some slots."""
        return fragment.part(self._algebra, slots)

    def merge(self, fragments: Sequence[RowFragment[A]]) -> RowFragment[A]:
        """Merge fragments of consecutive epochs, oldest first."""
        return merge_rows(fragments, self._algebra, self.names)

    def snapshot(self, slots: range) -> RowFragment[A]:
        """All rows of some slots, as a fragment that makes empty slots equal to them."""
        found = [run.table.chosen(self._algebra, self._live_in(run, slots)) for run in self._runs]
        table = by_id(self._algebra, stacked(self._algebra, [no_rows(self.names), *found]))
        return self.fragment(np.unique(table.ids), table)

    def drop(self, slots: SlotMask) -> None:
        """Remove all keys of some slots."""
        ids = self.committed.within(slots)
        self._place(ids, np.zeros(len(ids), np.int64))
        self._merge_runs()


def _ranges(ids: Ids, wanted: Ids) -> Ids:
    """The positions of the wanted ids among ids; both are in order."""
    starts = np.searchsorted(ids, wanted, "left")
    counts = np.searchsorted(ids, wanted, "right") - starts
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))

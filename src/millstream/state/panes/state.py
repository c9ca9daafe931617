"""The panes of one windowed job on one node: of the slots that it owns, and of copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from millstream.ring.masks import SlotCounts, SlotMask, mask_of
from millstream.state.collector import without_collector
from millstream.state.panes.fragments import (
    DirtyPanes,
    PaneFragment,
    Part,
    Stacks,
    decode_panes,
    dirty_within,
    encode_panes,
    masked,
)
from millstream.state.panes.keys import Ids, KeyIds
from millstream.state.panes.tables import (
    Algebra,
    Table,
    aggregated,
    chosen,
    only,
    ordered,
    overlaid,
    without,
)
from millstream.times import instant

A = TypeVar("A")


class Panes(Generic[A]):
    """Committed panes by their start: aggregated rows, one for each key, and raw rows by epoch.

    A reduction may number new keys concurrently (``keys.find``); they are not visible here.
    """

    def __init__(self, algebra: Algebra[A], keys: KeyIds) -> None:
        self._algebra = algebra
        self.keys = keys
        self.aggregated: dict[int, Table[A]] = {}
        self.raw: dict[int, dict[int, Table[A]]] = {}

    @property
    def starts(self) -> set[int]:
        """The panes that have any rows, of all slots."""
        return self.aggregated.keys() | self.raw.keys()

    def all_raw(self, start: int) -> list[Table[A]]:
        """The raw rows of a pane, of all slots, oldest first."""
        of_epochs = self.raw.get(start, {})
        return [of_epochs[epoch] for epoch in sorted(of_epochs)]

    def get(self, key: Any) -> Mapping[int, Any] | None:
        """The value of a key in each of its panes."""
        known = self.keys.known(key)
        if known is None:
            return None
        found = self._of(np.array([known], np.int64))
        return found.get(known)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Mapping[int, Any]]]:
        """The keys of some slots, with the value of each in its panes."""
        ids = self.keys.within(slots)
        found = self._of(ids)
        for at, key in zip(ids.tolist(), self.keys.keys(ids), strict=True):
            if at in found:
                yield key, found[at]

    def _of(self, ids: Ids) -> dict[int, dict[int, Any]]:
        found: dict[int, dict[int, Any]] = {}
        for start in sorted(self.starts):
            given = [self.aggregated.get(start), *self.raw.get(start, {}).values()]
            tables = [t for t in (only(self._algebra, t, ids) for t in given) if t is not None]
            if not tables:
                continue
            at = np.concatenate([table.ids for table in tables])
            rows = self._algebra.concat([table.rows for table in tables])
            if self._algebra.merges:
                table = aggregated(self._algebra, at, rows)
                values = zip(table.ids.tolist(), self._algebra.values(table.rows), strict=True)
                for key, value in values:
                    found.setdefault(key, {})[start] = value
            else:
                for key, value in zip(at.tolist(), self._algebra.values(rows), strict=True):
                    found.setdefault(key, {}).setdefault(start, []).append(value)
        return found

    def compacted(self) -> Panes[A] | None:
        """The same panes without the numbers of unused keys, if those are many."""
        found = self.keys.compacted()
        if found is None:
            return None
        keys, mapping = found
        panes = Panes(self._algebra, keys)
        panes.aggregated = {at: Table(mapping[t.ids], t.rows) for at, t in self.aggregated.items()}
        panes.raw = {
            at: {epoch: Table(mapping[t.ids], t.rows) for epoch, t in of_epochs.items()}
            for at, of_epochs in self.raw.items()
        }
        return panes


class PaneState(Generic[A]):
    """The panes of one windowed job on one node: of the slots that it owns, and of copies.

    ``reduce`` may run while others read ``committed``; ``apply`` and ``drop`` may not.
    """

    step = 1_000_000_000  # tables are copied as a whole: parts would cost as much each

    def __init__(self, algebra: Algebra[A], slots: int) -> None:
        self._algebra = algebra
        self._slots = slots
        self.committed: Panes[A] = Panes(algebra, KeyIds())
        self._stacks: dict[range, Stacks[A]] = {}
        self._dirty: DirtyPanes = {}
        self._sample: A | None = None

    @property
    def keys(self) -> KeyIds:
        return self.committed.keys

    @property
    def _panes(self) -> dict[int, Table[A]]:
        return self.committed.aggregated

    @property
    def _raw(self) -> dict[int, dict[int, Table[A]]]:
        return self.committed.raw

    def check(self, rows: A) -> None:
        """Raise the algebra's error if rows do not fit those of the state."""
        self._with_sample(rows)

    def _with_sample(self, rows: A) -> A:
        """No rows, of types that hold these rows and all earlier ones."""
        none = self._algebra.take(rows, np.zeros(0, np.int64))
        return none if self._sample is None else self._algebra.concat([self._sample, none])

    @property
    def starts(self) -> set[int]:
        """The panes that have any rows, of all slots."""
        return self.committed.starts

    def pane(self, start: int, slots: range) -> Table[A] | None:
        """The aggregated rows of a pane that lie in some slots."""
        return self._within(self._panes.get(start), slots)

    def raw(self, start: int, slots: range) -> list[Table[A]]:
        """The raw rows of a pane that lie in some slots, oldest first."""
        of_epochs = self._raw.get(start, {})
        found = [self._within(of_epochs[epoch], slots) for epoch in sorted(of_epochs)]
        return [table for table in found if table is not None]

    def all_raw(self, start: int) -> list[Table[A]]:
        """The raw rows of a pane, of all slots, oldest first."""
        return self.committed.all_raw(start)

    def has_raw(self, slots: range) -> bool:
        """Whether any raw rows lie in some slots."""
        return any(self.raw(start, slots) for start in self._raw)

    def stacks(self, slots: range) -> Stacks[A] | None:
        """The stacks of a range of slots, if they are known and valid."""
        found = self._stacks.get(slots)
        return found if found is not None and found.generation is self.keys.generation else None

    def dirty(self, slots: range) -> DirtyPanes:
        """The panes that have changed in some slots since the last early results."""
        return dirty_within(self._dirty, slots)

    def _within(self, table: Table[A] | None, slots: range) -> Table[A] | None:
        if table is None:
            return None
        at = self.keys.slots(table.ids)
        return chosen(self._algebra, table, (at >= slots.start) & (at < slots.stop))

    def compact_keys(self) -> None:
        """Free the numbers of keys that are in no pane, if they are many."""
        compacted = self.committed.compacted()
        if compacted is not None:
            self._stacks.clear()
            # In one step: concurrent readers keep the panes as they were.
            self.committed = compacted

    def as_part(self, table: Table[A]) -> Part[A]:
        """A table with its keys, as it goes into a fragment."""
        keys = self.keys
        return Part(
            keys.keys(table.ids),
            keys.slots(table.ids),
            table.rows,
            (keys.generation, table.ids),
        )

    def apply(self, fragment: PaneFragment[A], slots: SlotMask | None = None) -> None:
        """Apply the fragment of a committed epoch, or its part for some slots."""
        for run in fragment.compacted:
            self._drop_raw(self._mask(run, slots))
        # First, as rows of a merged fragment may be newer than the panes it closes.
        for run, before in fragment.gone:
            mask = self._mask(run, slots)
            self._evict({start for start in self.starts if start < before}, mask)
        for start, part in masked(self._algebra, fragment.panes, slots).items():
            self._put(start, overlaid(self._algebra, self._panes.get(start), self._table(part)))
        for (start, epoch), part in masked(self._algebra, fragment.raw, slots).items():
            of_epochs = self._raw.setdefault(start, {})
            new, old = self._table(part), of_epochs.get(epoch)
            self._count(old, -1)
            # The rows of other slots stay; the same rows may be applied again.
            kept = without(self._algebra, old, np.unique(new.ids))
            of_epochs[epoch] = self._together(kept, new)
            self._count(of_epochs[epoch], 1)
        for run, dirty in fragment.dirty:
            mask = self._mask(run, slots)
            self._forget_dirty(mask)
            for start, at in dirty.items():
                taken = at[mask[at]]
                if len(taken):
                    self._dirty[start] = np.union1d(self._dirty.get(start, taken), taken)
        self._update_stacks(fragment, slots)

    def _forget_dirty(self, slots: SlotMask) -> None:
        left = {start: at[~slots[at]] for start, at in self._dirty.items()}
        self._dirty = {start: at for start, at in left.items() if len(at)}

    def _together(self, kept: Table[A] | None, new: Table[A]) -> Table[A]:
        if kept is None:
            return new
        rows = self._algebra.concat([kept.rows, new.rows])
        return ordered(self._algebra, np.concatenate([kept.ids, new.ids]), rows)

    def _update_stacks(self, fragment: PaneFragment[A], slots: SlotMask | None) -> None:
        """Drop the stacks whose panes have changed, and take those of the fragment."""
        stacks = fragment.stacks
        touched = np.zeros(self._slots, bool)
        for part in (*fragment.panes.values(), *fragment.raw.values()):
            touched[part.slots] = True
        for run in (*fragment.compacted, *(run for run, _ in fragment.gone)):
            touched[run.start : run.stop] = True
        if slots is not None:
            touched &= slots
        self.forget_stacks(touched)
        if stacks is not None:
            run = stacks.slots
            if slots is None or slots[run.start : run.stop].all():
                self._stacks[run] = stacks

    def forget_stacks(self, slots: SlotMask) -> None:
        """Drop the stacks of runs that have any of some slots."""
        self._stacks = {
            run: stacks
            for run, stacks in self._stacks.items()
            if not slots[run.start : run.stop].any()
        }

    def _mask(self, run: range, slots: SlotMask | None) -> SlotMask:
        mask = mask_of(run, self._slots)
        return mask if slots is None else mask & slots

    def _table(self, part: Part[A]) -> Table[A]:
        self._sample = self._with_sample(part.rows)
        return ordered(self._algebra, self._ids(part), part.rows)

    def _put(self, start: int, table: Table[A] | None) -> None:
        """Replace the aggregated rows of a pane."""
        self._count(self._panes.pop(start, None), -1)
        if table is not None:
            self._panes[start] = table
            self._count(table, 1)

    def _count(self, table: Table[A] | None, number: int) -> None:
        if table is not None:
            ids = table.ids  # already sorted: np.unique would sort them again
            self.keys.count(ids[np.flatnonzero(np.diff(ids, prepend=-1))], number)

    def _evict(self, starts: set[int], slots: SlotMask) -> None:
        for start in starts:
            table = self._panes.get(start)
            if table is not None:
                kept = ~slots[self.keys.slots(table.ids)]
                self._put(start, chosen(self._algebra, table, kept))
        self._drop_raw(slots, starts)

    def _drop_raw(self, slots: SlotMask, starts: set[int] | None = None) -> None:
        for start in list(self._raw) if starts is None else starts & self._raw.keys():
            of_epochs = self._raw[start]
            for epoch, table in list(of_epochs.items()):
                kept = chosen(self._algebra, table, ~slots[self.keys.slots(table.ids)])
                if kept is table:
                    continue
                self._count(table, -1)
                del of_epochs[epoch]
                if kept is not None:
                    of_epochs[epoch] = kept
                    self._count(kept, 1)
            if not of_epochs:
                del self._raw[start]

    # -- fragments -------------------------------------------------------------------------

    def prepare(self, fragment: PaneFragment[A], parts: int) -> PaneFragment[A]:
        """The same fragment with the numbers that its keys have here."""
        panes = {at: self._numbered(part) for at, part in fragment.panes.items()}
        raw = {at: self._numbered(part) for at, part in fragment.raw.items()}
        return replace(fragment, panes=panes, raw=raw)

    def _numbered(self, part: Part[A]) -> Part[A]:
        return replace(part, ids=(self.keys.generation, self._ids(part)))

    def _ids(self, part: Part[A]) -> Ids:
        if part.ids is not None and part.ids[0] is self.keys.generation:
            return part.ids[1]
        return self.keys.find(part.keys, part.slots)

    def encode(self, fragment: PaneFragment[A]) -> bytes:
        """Serialise a fragment; stacks stay behind."""
        return encode_panes(fragment, self._algebra)

    def decode(self, data: bytes | pa.Buffer) -> PaneFragment[A]:
        """Read what ``encode`` wrote."""
        with without_collector():
            return decode_panes(data, self._algebra)

    def part(self, fragment: PaneFragment[A], slots: range) -> PaneFragment[A]:
        """A fragment's changes to some slots."""
        return fragment.part(self._algebra, slots)

    def merge(self, fragments: Sequence[PaneFragment[A]]) -> PaneFragment[A]:
        """Merge fragments of consecutive epochs, oldest first."""
        scratch = PaneState(self._algebra, self._slots)
        for fragment in fragments:
            scratch.apply(fragment)
        merged = scratch.snapshot(range(self._slots))
        merged.compacted = [run for fragment in fragments for run in fragment.compacted]
        merged.gone = [gone for fragment in fragments for gone in fragment.gone]
        runs = dict.fromkeys(run for fragment in fragments for run, _ in fragment.dirty)
        merged.dirty = [(run, scratch.dirty(run)) for run in runs]
        return merged

    def snapshot(self, slots: range) -> PaneFragment[A]:
        """All panes of some slots, as a fragment that makes empty slots equal to them."""
        taken: PaneFragment[A] = PaneFragment()
        for start in self._panes:
            table = self.pane(start, slots)
            if table is not None:
                taken.panes[start] = self.as_part(table)
        for start, of_epochs in self._raw.items():
            for epoch, rows in of_epochs.items():
                table = self._within(rows, slots)
                if table is not None:
                    taken.raw[start, epoch] = self.as_part(table)
        dirty = self.dirty(slots)
        if dirty:
            taken.dirty.append((slots, dirty))
        return taken

    def drop(self, slots: SlotMask) -> None:
        """Remove all keys of some slots."""
        self._evict(self.starts, slots)
        self._forget_dirty(slots)
        self.forget_stacks(slots)
        if not self.starts:
            self._sample = None  # other rows may have other types

    # -- reading ---------------------------------------------------------------------------

    def get(self, slot: int, key: Any) -> Any:
        """What a user reads for a key: its values by the start of their panes; or None."""
        found = self.committed.get(key)
        return None if found is None else _by_instant(found)

    def items(self, slots: SlotMask) -> Iterator[tuple[Any, Any]]:
        """The keys of some slots with what a user reads for each."""
        for key, panes in self.committed.items(slots):
            yield key, _by_instant(panes)

    def count(self, slots: SlotMask) -> int:
        """The number of keys in some slots."""
        return len(self.keys.within(slots))

    def counts(self, slots: SlotMask) -> SlotCounts:
        """The number of keys in each of some slots, in slot order."""
        return self.keys.counts(slots)


def _by_instant(panes: Mapping[int, Any]) -> dict[datetime, Any]:
    return {instant(start): value for start, value in panes.items()}

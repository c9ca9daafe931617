"""Where the newest record of every key is: a small mutable part over a large immutable one.

New rows go to ``_Recent``, a dictionary over growing columns, which is merged into the ``Table`` in
the background. Readers take no lock: they use the view as it was when they began.

The record with the highest stamp is current; of two copies of one record (compaction makes them),
the one in the younger segment. Superseded records leave a *shadow*, the hash of their key and their
segment: while a key has shadows, its tombstone is needed, or an older value would reappear.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.stores.log.format import Found, Kind, digest_of
from millstream.stores.log.segments import Catalogue, Segment
from millstream.stores.log.table import ROW, U64, Row, Rows, Table

_HIDDEN = "\0"  # begins the name of a record whose key is unreadable; no key contains it
_MERGE_AT_LEAST = 1 << 16
_FEW = 16

SHADOW = np.dtype([("hash", "<u8"), ("segment", "<u4"), ("spare", "<u4")])


class _Recent:
    """Rows that are not in the table yet; the newest of each key is the one in ``places``."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.count = 0
        self.rows: Rows = np.empty(64, ROW)
        self.hashes: U64 = np.empty(64, np.uint64)

    def reserve(self, more: int) -> int:
        """Make space for rows; the number of the first."""
        first, need = self.count, self.count + more
        if need > len(self.rows):
            size = max(need, 2 * len(self.rows))
            self.rows, self.hashes = (
                np.concatenate([self.rows[:first], np.empty(size - first, ROW)]),
                np.concatenate([self.hashes[:first], np.empty(size - first, np.uint64)]),
            )
        self.count = need
        return first

    def find(self, name: str) -> Row | None:
        at = self.places.get(name)
        return None if at is None else Row._make(self.rows[at].item())


class _View(NamedTuple):
    active: _Recent
    merging: _Recent
    table: Table


class Batch(NamedTuple):
    """Rows of one segment, by columns."""

    names: Sequence[str]
    hashes: Sequence[int]
    offsets: Sequence[int]
    lengths: Sequence[int]
    stamps: Sequence[int]
    kind: Kind


class Index:
    """The newest row of every key."""

    def __init__(self, segments: Catalogue) -> None:
        self._segments = segments
        self._lock = threading.Lock()
        self._merging = threading.Lock()
        self._view = _View(_Recent(), _Recent(), Table.empty())
        self._hidden = False
        self._unsynced: dict[str, Row] = {}
        self._unsynced_of: dict[int, dict[str, Row]] = {}
        self.shadows: npt.NDArray[np.void] = np.empty(0, SHADOW)
        self.newest = 0

    def load(self, table: Table, shadows: npt.NDArray[np.void]) -> None:
        """Start from a flushed index."""
        self._view = _View(_Recent(), _Recent(), table)
        self._hidden = bool((np.diff(table.key_offsets) == 0).any())
        self.shadows = shadows
        self.newest = int(table.rows["stamp"].max()) if len(table) else 0

    @property
    def table(self) -> Table:
        """The immutable part; right after ``merge``, all of it."""
        return self._view.table

    @property
    def overfull(self) -> bool:
        """Whether it is time to merge."""
        view = self._view
        return view.active.count >= max(_MERGE_AT_LEAST, len(view.table) // 4)

    def find(self, key: str) -> Row | None:
        """The newest row of a key; it may be a tombstone."""
        row = self._find(key)
        if self._unsynced:
            fresh = self._unsynced.get(key)
            if fresh is not None and (row is None or fresh.stamp >= row.stamp):
                return fresh
        return row

    def find_all(self, names: Sequence[str]) -> list[Row | None]:
        """The newest row of each of several keys."""
        if self._unsynced or self._hidden or len(names) <= _FEW:
            return [self.find(name) for name in names]
        active, merging, table = self._view
        found: list[Row | None] = [None] * len(names)
        left: Sequence[int] = range(len(names))
        for recent in (active, merging):
            places = [recent.places.get(names[at]) for at in left]
            there = [
                (at, place) for at, place in zip(left, places, strict=True) if place is not None
            ]
            rows = recent.rows.take([place for _, place in there]).tolist() if there else []
            for (at, _), row in zip(there, rows, strict=True):
                found[at] = Row._make(row)
            left = [at for at, place in zip(left, places, strict=True) if place is None]
        keys = [names[at].encode() for at in left]
        for at, known in zip(left, table.find_all(keys, list(map(digest_of, keys))), strict=True):
            found[at] = known
        return found

    def _find(self, name: str) -> Row | None:
        active, merging, table = self._view
        row = active.find(name) or merging.find(name)
        if name.startswith(_HIDDEN):
            return row or table.find(b"", int(name[1:], 16))
        if row is None or self._hidden:
            key = name.encode()
            digest = digest_of(key)
            row = row or table.find(key, digest)
            if self._hidden:
                hidden = active.find(_hidden_name(digest)) or merging.find(_hidden_name(digest))
                if hidden is not None and (row is None or hidden.stamp > row.stamp):
                    return hidden
        return row

    def add(self, segment: Segment, batch: Batch) -> None:
        """Add records; those older than the known ones become shadows."""
        if not batch.names:
            return
        with self._lock:
            recent = self._view.active
            many = len(batch.names)
            first = recent.reserve(many)
            if many <= _FEW:
                fields = zip(batch.stamps, batch.offsets, batch.lengths, strict=True)
                for at, (stamp, offset, length) in enumerate(fields, first):
                    recent.rows[at] = (stamp, offset, length, segment.number, batch.kind)
                    recent.hashes[at] = batch.hashes[at - first]
            else:
                rows = recent.rows[first : first + many]
                rows["stamp"], rows["offset"] = batch.stamps, batch.offsets
                rows["length"], rows["segment"] = batch.lengths, segment.number
                rows["kind"] = batch.kind
                recent.hashes[first : first + many] = batch.hashes
            places = zip(batch.names, range(first, first + many), strict=True)
            if batch.stamps[0] > self.newest:
                # Stamps rise within a batch: these are the newest of all.
                recent.places.update(places)
                self.newest = batch.stamps[-1]
            else:
                for name, at in places:
                    if self._is_current(Row(*recent.rows[at].item()), self._find(name)):
                        recent.places[name] = at
                self.newest = max(self.newest, *batch.stamps)

    def add_found(self, segment: Segment, records: Sequence[Found]) -> None:
        """Add records that were read from a segment."""
        with self._lock:
            recent = self._view.active
            if self._all_newer(records):
                # As after a crash, when the end of a log is read: no comparison is needed.
                many = len(records)
                first = recent.reserve(many)
                keys, hashes, stamps, offsets, lengths = zip(
                    *(r[1:6] for r in records), strict=True
                )
                rows = recent.rows[first : first + many]
                rows["stamp"], rows["offset"], rows["length"] = stamps, offsets, lengths
                rows["segment"], rows["kind"] = segment.number, [r.kind for r in records]
                recent.hashes[first : first + many] = hashes
                places = range(first, first + many)
                recent.places.update(zip(map(bytes.decode, keys), places, strict=True))
                self.newest = stamps[-1]
                return
            for record in records:
                name = _name(record)
                if name.startswith(_HIDDEN):
                    self._hidden = True
                row = Row(*record[3:6], segment.number, record.kind)
                known = self._find(name)
                if row == known:
                    continue
                at = recent.reserve(1)
                recent.rows[at] = row
                recent.hashes[at] = record.digest
                if self._is_current(row, known):
                    recent.places[name] = at
                self.newest = max(self.newest, record.stamp)

    def _all_newer(self, records: Sequence[Found]) -> bool:
        """Whether each record is newer than those before it and all that are known."""
        stamps = [self.newest, *(record.stamp for record in records)]
        rising = all(map(operator.lt, stamps, stamps[1:]))
        return bool(records) and rising and all(record.key is not None for record in records)

    def set_unsynced(self, segment: Segment, records: Iterable[Found]) -> None:
        """Set the records that a writer may not have synced yet: visible, but never merged."""
        found: dict[str, Row] = {}
        for record in records:
            found[_name(record)] = Row(*record[3:6], segment.number, record.kind)
        with self._lock:
            if found:
                self._unsynced_of[segment.number] = found
            elif not self._unsynced_of.pop(segment.number, None):
                return
            newest: dict[str, Row] = {}
            for rows in self._unsynced_of.values():
                for name, row in rows.items():
                    if name not in newest or newest[name].stamp < row.stamp:
                        newest[name] = row
                    self.newest = max(self.newest, row.stamp)
            self._unsynced = newest

    def _is_current(self, row: Row, known: Row | None) -> bool:
        """Whether a row replaces the known one."""
        if known is None or row.stamp != known.stamp:
            return known is None or row.stamp > known.stamp
        segment, other = self._segments.get(row.segment), self._segments.get(known.segment)
        return other is None or (segment is not None and segment.age >= other.age)

    def scan(self, prefix: str) -> set[str]:
        """The keys that begin with a prefix and have a value."""
        with self._lock:
            active, merging, table = self._view
            layers: list[Mapping[str, Row | int]] = [
                dict(merging.places),
                dict(active.places),
                self._unsynced,
            ]
        keys = {key.decode() for key in table.matching(prefix.encode())}
        for layer in layers:
            for name in layer:
                if name.startswith(prefix) and not name.startswith(_HIDDEN):
                    row = self.find(name)
                    if row is not None and row.kind == Kind.VALUE:
                        keys.add(name)
                    else:
                        keys.discard(name)
        return keys

    def merge(self) -> None:
        """Merge recent rows into the table."""
        with self._merging:
            with self._lock:
                active, _, table = self._view
                if not active.count:
                    return
                self._view = _View(_Recent(), active, table)
            places = _without_hidden_twins(active) if self._hidden else active.places
            names = list(places)
            chosen = np.fromiter(places.values(), np.int64, len(names))
            if self._hidden:
                names = ["" if name.startswith(_HIDDEN) else name for name in names]
            keys = pa.array(names, pa.large_string()).cast(pa.large_binary())
            merged, replaced = table.merged(
                active.hashes.take(chosen), active.rows.take(chosen), keys
            )
            superseded = np.ones(active.count, np.bool_)
            superseded[chosen] = False
            old_hashes = active.hashes[: active.count][superseded]
            old_segments = active.rows["segment"][: active.count][superseded]
            shadows = np.concatenate(
                [
                    self.shadows,
                    _shadows(table.hashes[replaced], table.rows["segment"][replaced]),
                    _shadows(old_hashes, old_segments),
                ]
            )
            with self._lock:
                self.shadows = shadows
                self._view = _View(self._view.active, _Recent(), merged)

    def drop(self, segments: Iterable[Segment]) -> None:
        """Remove the rows of segments that were removed."""
        removed = [segment.number for segment in segments]
        if not removed:
            return
        self.merge()
        for segment in segments:
            self.set_unsynced(segment, [])
        with self._merging:
            table = self._view.table
            table = table.filter(~np.isin(table.rows["segment"], removed))
            with self._lock:
                self.shadows = self.shadows[~np.isin(self.shadows["segment"], removed)]
                self._view = self._view._replace(table=table)

    def needed(self, table: Table, before: int) -> npt.NDArray[np.bool_]:
        """Which rows of the table are live: not the tombstones of keys that have no shadows.

        Tombstones with a stamp of ``before`` or younger are live in any case.
        """
        tombs = table.rows["kind"] == Kind.TOMBSTONE
        needed: npt.NDArray[np.bool_] = ~tombs | (table.rows["stamp"] >= np.uint64(before))
        unsynced = [digest_of(name.encode()) for name in list(self._unsynced)]
        older = np.append(self.shadows["hash"], np.array(unsynced, np.uint64))
        needed[tombs] |= np.isin(table.hashes[tombs], older)
        return needed


def _without_hidden_twins(recent: _Recent) -> dict[str, int]:
    """Only the newer of a key and of an unreadable record that may have the same key."""
    places = dict(recent.places)
    for name in [each for each in places if each.startswith(_HIDDEN)]:
        digest = int(name[1:], 16)
        twins = [each for each, at in places.items() if int(recent.hashes[at]) == digest]
        newest = max(twins, key=lambda each: int(recent.rows["stamp"][places[each]]))
        for twin in twins:
            if twin != newest and (twin == name or newest == name):
                del places[twin]
    return places


def _name(record: Found) -> str:
    return _hidden_name(record.digest) if record.key is None else record.key.decode()


def _hidden_name(digest: int) -> str:
    return f"{_HIDDEN}{digest:x}"


def _shadows(hashes: U64, segments: npt.NDArray[np.uint32]) -> npt.NDArray[np.void]:
    shadows = np.zeros(len(hashes), SHADOW)
    shadows["hash"], shadows["segment"] = hashes, segments
    return shadows

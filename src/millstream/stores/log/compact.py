"""Reclaims space: removes segments without live records, rewrites those with few.

A writer's last segment is sealed first if that pays. Otherwise each writer would occupy a whole
segment with records that were superseded long ago, however few are live.

Live are the records that the index has as the newest of their keys. Any process may compact any
sealed segment, and two may do so at once: at worst there are two copies of a record, and all
processes agree which of them is current.

A crash loses nothing: a segment is removed when the copies of its records are durable. Deleted keys
do not reappear: a tombstone is dropped only if no older record of its key is in any segment, and if
that is durable, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.stores.disk import FileGoneError
from millstream.stores.log.format import (
    AROUND_BYTES,
    HEADER_BYTES,
    Header,
    Kind,
    encode,
    encode_header,
    encode_sign,
    read_records,
    record_size,
    value_at,
)
from millstream.stores.log.index import Batch, Index
from millstream.stores.log.options import LogOptions
from millstream.stores.log.places import Growing, Place
from millstream.stores.log.reader import Reader
from millstream.stores.log.segments import Catalogue, Segment
from millstream.stores.log.table import Table
from millstream.stores.log.writer import Writer, uptime
from millstream.stores.retries import UnavailableError
from millstream.stores.stamps import Stamps
from millstream.stores.store import StoreUnavailableError

_SMALL = 8  # below this fraction of the full size a segment is small; so many are merged

_UNUSED = 8  # the fraction of the full size that may be garbage in all last segments together

_BATCH = 64  # records that are copied before other threads run
_PAUSE = 1e-4  # seconds

_FRAME = HEADER_BYTES + AROUND_BYTES  # what every segment has besides records: header and seal


class Compacted(NamedTuple):
    """What a compaction did."""

    removed: int  # segments
    written: int
    freed: int  # bytes


class _Copy(NamedTuple):
    key: bytes
    digest: int
    stamp: int
    kind: Kind
    value: bytes


S = TypeVar("S", list[_Copy], npt.NDArray[np.int64])


class Compactor:
    """Removes and rewrites segments."""

    def __init__(
        self,
        place: Place,
        options: LogOptions,
        segments: Catalogue,
        index: Index,
        reader: Reader,
        writer: Writer,
        stamps: Stamps,
    ) -> None:
        self._place, self._options, self._segments = place, options, segments
        self._index, self._reader, self._writer, self._stamps = index, reader, writer, stamps
        self.share = options.segment // _UNUSED
        """How many bytes may be garbage in the last segment of each writer."""

    def compact(self, *, own_only: bool) -> Compacted:
        """Remove and rewrite segments: of any writer, or only our own and orphaned ones."""
        began = uptime()
        # Before the refresh: a tombstone may be dropped only if it has seen all copies made since.
        before = time.time_ns() - int(self._options.grace * 1e9)
        self._reader.refresh(twice=True)
        self._adopt()
        self._seal_tail(before)
        sealed = [each for each in self._segments.all() if each.sealed and not each.growing]
        # The removal of segments, by any process, must be durable before tombstones are dropped.
        self._place.sync("segments")
        self._index.merge()
        table = self._index.table
        needed = self._index.needed(table, before)
        live = _live_bytes(table, needed)
        dead, sparse = [], []
        for segment in sealed:
            if segment.damaged:
                continue  # it has unreadable records, and stays as evidence
            if not live.get(segment.number):
                dead.append(segment)
            elif not own_only or self._is_ours(segment):
                sparse.append(segment)
        victims = [each for each in sparse if 2 * live[each.number] < each.synced - _FRAME]
        small = [each for each in sparse if each.synced < self._options.segment // _SMALL]
        if len(small) >= _SMALL:
            victims += [each for each in small if each not in victims]
        done, written, size = self._rewrite(victims, table, needed, began)
        removed = dead + done
        freed = sum(segment.synced for segment in removed) - size
        if removed:
            self._place.remove("segments", [segment.name for segment in removed])
            self._reader.drop(removed)
        self._place.remove_parts(self._options.orphan)
        return Compacted(len(removed), written, freed)

    def _seal_tail(self, before: int) -> None:
        """Seal the segment that is being appended to, if too much of it is garbage."""
        writers = sum(not segment.sealed for segment in self._segments.all())
        self.share = self._options.segment // (_UNUSED * max(1, writers))
        tail = self._writer.tail
        if tail is None or tail.synced <= self.share:
            return
        self._index.merge()
        table = self._index.table
        live = _live_bytes(table, self._index.needed(table, before))
        if tail.synced - 2 * live.get(tail.number, 0) > self.share:
            self._writer.seal()

    def _is_ours(self, segment: Segment) -> bool:
        return self._writer.wrote(segment.name) or self._is_orphaned(segment, self._place.now())

    def _is_orphaned(self, segment: Segment, now: int) -> bool:
        try:
            changed = self._place.version("segments", segment.name).changed
        except FileGoneError:
            return False
        return now - changed > self._options.orphan * 1e9

    def _adopt(self) -> None:
        """Treat orphaned segments as sealed: their writers have ended, and append no more."""
        unsealed = [each for each in self._segments.all() if not (each.sealed or each.growing)]
        now = self._place.now() if unsealed else 0
        for segment in unsealed:
            if self._is_orphaned(segment, now):
                start = segment.synced
                try:
                    size = self._place.version("segments", segment.name).size
                    data = self._place.read("segments", segment.name, start, size - start)
                except FileGoneError:
                    continue
                records, end = read_records(data, start, segment.seed)
                intact = [record for record in records if record.intact]
                self._reader.take(segment, intact, end, over=True)

    def _is_late(self, began: float) -> bool:
        """Whether others may have changed what our copies assume.

        After ``orphan`` they treat a copy that is half written as sealed; after ``grace`` they drop
        tombstones, and a copy of a record that was deleted since the refresh would restore it.
        """
        grace = self._options.grace or math.inf
        return uptime() - began > min(self._options.orphan / 4, grace / 2)

    def _rewrite(
        self, victims: list[Segment], table: Table, needed: npt.NDArray[np.bool_], began: float
    ) -> tuple[list[Segment], int, int]:
        """Copy live records; the segments to remove, how many were written, and their bytes.

        When it is late, the rest is left for the next compaction.
        """
        done: list[Segment] = []
        copies: list[_Copy] = []
        pending: list[Segment] = []
        size = written = total = 0
        for segment in victims:
            copied = self._copies(segment, table, needed)
            if copied is None:
                continue
            pending.append(segment)
            copies += copied
            size += sum(record_size(len(each.key), len(each.value)) for each in copied)
            if size >= self._options.segment:
                made = self._write(copies, pending, began)
                if not made:
                    return done, written, total
                total += made
                written += 1
                done += pending
                copies, pending, size = [], [], 0
        if copies:
            made = self._write(copies, pending, began)
            if not made:
                return done, written, total
            total += made
            written += 1
        return done + pending, written, total

    def _copies(
        self, segment: Segment, table: Table, needed: npt.NDArray[np.bool_]
    ) -> list[_Copy] | None:
        """The live records of a segment; None if it is damaged, or removed."""
        chosen = np.flatnonzero((table.rows["segment"] == segment.number) & needed)
        try:
            data = self._place.read("segments", segment.name, 0, segment.synced)
        except FileGoneError:
            return None
        copies = []
        for some in _batches(chosen):
            found = zip(
                map(table.key_at, some.tolist()),
                table.hashes[some].tolist(),
                table.rows[some].tolist(),
                strict=True,
            )
            for key, digest, (stamp, offset, length, _, kind) in found:
                value = value_at(data, offset, key, length, stamp, segment.seed)
                if value is None:
                    segment.damaged = True
                    return None
                copies.append(_Copy(key, digest, stamp, Kind(kind), value))
        return copies

    def _write(self, copies: list[_Copy], sources: list[Segment], began: float) -> int:
        """Write copies to a new segment, younger than their sources; return its bytes.

        0 if it would be too late.
        """
        oldest = max(segment.header.created for segment in sources) + 1
        self._stamps.saw(oldest)
        header = Header(self._writer.salt, self._stamps.next())
        copies = sorted(copies, key=lambda each: each.stamp)
        chunks = [encode_header(header)]
        for some in _batches(copies):
            chunks.append(b"".join(_encoded(some, header.seed)))
        seal = encode_sign(Kind.SEAL, self._stamps.next(), header.seed)
        if self._is_late(began):
            return 0
        segment = self._segments.add(self._writer.new_name(), header, growing=True)
        filled = False
        try:
            filled = self._fill(segment.name, chunks, seal, began)
        finally:
            if not filled:
                self._segments.drop([segment])
        if not filled:
            return 0
        at = HEADER_BYTES
        for some in _batches(copies):
            sizes = [record_size(len(each.key), len(each.value)) for each in some]
            *offsets, at = accumulate(sizes, initial=at)
            for kind in {each.kind for each in some}:
                same = [
                    (o, each) for o, each in zip(offsets, some, strict=True) if each.kind == kind
                ]
                batch = Batch(
                    [each.key.decode() for _, each in same],
                    [each.digest for _, each in same],
                    [offset for offset, _ in same],
                    [len(each.value) for _, each in same],
                    [each.stamp for _, each in same],
                    kind,
                )
                self._index.add(segment, batch)
        segment.synced, segment.sealed = at + len(seal), True
        segment.growing = False
        return segment.synced

    def _fill(self, name: str, chunks: list[bytes], seal: bytes, began: float) -> bool:
        """Write a whole segment; False if that took too long, and it must not be used."""
        if not self._place.appends:
            # It is visible at once, with its seal: others may use it already.
            self._place.patiently(lambda: self._place.grow(name, [*chunks, seal])).close()
            return True
        opened = uptime()
        growing = self._place.patiently(lambda: self._place.grow(name, chunks))
        try:
            late = self._is_late(began)
            if not late:
                # Only now: a seal promises that all before it is synced.
                self._seal(name, growing, seal)
        finally:
            growing.close()
        # If it was visible for long, another process may have used a part of it, and removed what
        # that was copied from: then it stays, without a seal, until a newer copy is made.
        if late and uptime() - opened <= self._options.orphan / 4:
            self._place.remove("segments", [name])
        return not late

    def _seal(self, name: str, growing: Growing, seal: bytes) -> None:
        try:
            growing.append([seal])
        except UnavailableError as problem:
            # No retry: a second sync that succeeds does not prove the first.
            path = self._place.path("segments", name)
            raise StoreUnavailableError(
                f"{path} could not be sealed ({problem})"
            ) from problem.__cause__


def _encoded(copies: Sequence[_Copy], seed: int) -> Iterator[bytes]:
    for kind, group in groupby(copies, attrgetter("kind")):
        same = list(group)
        yield from encode(
            kind,
            [each.key for each in same],
            [each.value for each in same],
            [each.digest for each in same],
            [each.stamp for each in same],
            seed,
        )


def _batches(items: S) -> Iterator[S]:
    """Some of the items at a time; in between, threads that put and get can run.

    They wait for the interpreter twice in a call, each time for one switch interval of Python: ten
    times as long as the call takes.
    """
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]
        time.sleep(_PAUSE)


def _live_bytes(table: Table, needed: npt.NDArray[np.bool_]) -> dict[int, int]:
    sizes = np.bincount(table.rows["segment"][needed], weights=table.sizes()[needed])
    return {number: int(size) for number, size in enumerate(sizes.tolist()) if size}

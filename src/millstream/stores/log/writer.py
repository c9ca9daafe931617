"""Appends to this process's own segments, several callers at a time.

Group commit: a caller that arrives while none writes is the leader. It writes what all have queued
with one write and one sync, and notifies the others. Meanwhile new callers queue for the next one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from millstream.stores.log.format import (
    AROUND_BYTES,
    HEADER_BYTES,
    Header,
    Kind,
    digest_of,
    encode,
    encode_header,
    encode_sign,
    seed_of,
)
from millstream.stores.log.index import Batch, Index
from millstream.stores.log.options import LogOptions
from millstream.stores.log.places import Growing, Place
from millstream.stores.log.segments import Catalogue, Segment
from millstream.stores.retries import UnavailableError
from millstream.stores.stamps import Stamps
from millstream.stores.store import StoreFullError, StoreUnavailableError


def uptime() -> float:
    """A clock that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class _Job:
    """What one caller writes."""

    names: Sequence[str]
    keys: Sequence[bytes]
    lengths: Sequence[int]
    hashes: Sequence[int]
    stamps: Sequence[int]
    kind: Kind
    data: bytes
    done: bool = False
    error: Exception | None = None


@dataclass
class _Tail:
    """The segment that is being appended to."""

    segment: Segment
    growing: Growing
    size: int
    last: float = field(default_factory=uptime)


class Writer:
    """The segments of this process."""

    def __init__(
        self,
        place: Place,
        writer: str,
        options: LogOptions,
        segments: Catalogue,
        index: Index,
        stamps: Stamps,
        salt: int,
    ) -> None:
        self._place, self._name, self._options = place, writer, options
        self._segments, self._index, self._stamps = segments, index, stamps
        self.salt = salt
        self._seed = seed_of(salt)
        self._numbers = itertools.count(1)
        self._turn = threading.Condition()
        self._waiting: list[_Job] = []
        self._leading = False
        self._tail: _Tail | None = None
        self.appended = 0

    def put(self, names: Sequence[str], keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Append values, and return when they are durable and in the index."""
        self._append(Kind.VALUE, names, keys, values)

    def delete(self, names: Sequence[str]) -> None:
        """Append tombstones."""
        empty = [b""] * len(names)
        self._append(Kind.TOMBSTONE, names, [name.encode() for name in names], empty)

    def _append(
        self, kind: Kind, names: Sequence[str], keys: Sequence[bytes], values: Sequence[bytes]
    ) -> None:
        if not names:
            return
        hashes = [digest_of(key) for key in keys]
        stamps = self._stamps.take(len(keys))
        data = b"".join(encode(kind, keys, values, hashes, stamps, self._seed))
        lengths = list(map(len, values))
        self._commit(_Job(names, keys, lengths, hashes, stamps, kind, data))

    def _commit(self, job: _Job) -> None:
        with self._turn:
            self._waiting.append(job)
            while self._leading and not job.done:
                self._turn.wait()
            if not job.done:
                self._leading = True
                group, self._waiting = self._waiting, []
        if not job.done:
            self._lead(group)
        if job.error is not None:
            raise job.error

    def _lead(self, group: list[_Job]) -> None:
        error: Exception | None = StoreUnavailableError("the thread that wrote was interrupted")
        try:
            self._place.patiently(lambda: self._write(group))
            error = None
        except Exception as raised:
            error = raised
        finally:
            with self._turn:
                self._leading = False
                for each in group:
                    each.done, each.error = True, error
                self._turn.notify_all()

    def _write(self, group: list[_Job]) -> None:
        """Write what several callers enqueued; after an error, later writes still succeed."""
        try:
            self._write_all(group)
        except StoreFullError:
            raise  # what was written of it was truncated
        except BaseException:
            # It is unknown what is on the disk: after a sync that failed, one that succeeds does
            # not prove the first; and an interrupted write may not have counted its bytes. Later
            # writes go to another segment, and this one is read again.
            if self._tail is not None:
                self._abandon(self._tail)
            raise

    def _write_all(self, group: list[_Job]) -> None:
        data = [job.data for job in group]
        size = sum(map(len, data))
        began = uptime()
        tail = self._tail
        if tail is not None and began - tail.last > self._options.orphan / 4:
            # Another process may soon treat it as orphaned, and remove it.
            self._finish(tail)
            tail = None
        if tail is None:
            start = HEADER_BYTES
            tail = self._begin(data)
        else:
            start = self._extend(tail, data)
        if uptime() - began > self._options.orphan / 4 and self._place.appends:
            raise UnavailableError(
                "a write took so long that its segment may be treated as orphaned"
            )
        tail.last = uptime()
        for job in group:
            sizes = [AROUND_BYTES + len(k) + v for k, v in zip(job.keys, job.lengths, strict=True)]
            *offsets, start = itertools.accumulate(sizes, initial=start)
            batch = Batch(job.names, job.hashes, offsets, job.lengths, job.stamps, job.kind)
            self._index.add(tail.segment, batch)
        tail.segment.synced = tail.size
        self.appended += size
        if not self._place.appends:
            # Only now: a sealed segment is not read again.
            tail.segment.sealed = True
            self._abandon(tail)
        elif tail.size >= self._options.segment:
            self._finish(tail)

    def _begin(self, data: list[bytes]) -> _Tail:
        """Begin a segment with some records."""
        header = Header(self.salt, self._stamps.next())
        # A seal promises that all before it is synced: only an atomic upload may contain its own.
        seals = [] if self._place.appends else [self._seal()]
        chunks = [encode_header(header), *data, *seals]
        segment = self._segments.add(self.new_name(), header, growing=True)
        try:
            growing = self._place.grow(segment.name, chunks)
            self._tail = tail = _Tail(segment, growing, sum(map(len, chunks)))
        except BaseException:
            self._segments.drop([segment])
            raise
        return tail

    def _extend(self, tail: _Tail, data: list[bytes]) -> int:
        """Append to the segment; the offset at which the records begin."""
        mark = encode_sign(Kind.MARK, self._stamps.next(), self._seed)
        try:
            tail.growing.append([mark, *data])
        except StoreFullError:
            try:
                tail.growing.undo(tail.size)
            except Exception:
                self._abandon(tail)
            raise
        start = tail.size + len(mark)
        tail.size = start + sum(map(len, data))
        return start

    def _seal(self) -> bytes:
        return encode_sign(Kind.SEAL, self._stamps.next(), self._seed)

    def _abandon(self, tail: _Tail) -> None:
        tail.growing.close()
        tail.segment.growing = False
        if self._tail is tail:
            self._tail = None

    def _finish(self, tail: _Tail) -> None:
        """Seal a segment if possible; that only saves others work."""
        try:
            with suppress(Exception):
                seal = self._seal()
                tail.growing.append([seal])
                tail.size += len(seal)
                tail.segment.synced, tail.segment.sealed = tail.size, True
        finally:
            self._abandon(tail)

    def new_name(self) -> str:
        """A name that no other segment has, of any writer."""
        return f"{self._name}.{next(self._numbers):06d}.{self.salt:016x}.seg"

    def wrote(self, name: str) -> bool:
        """Whether a segment is one of this writer's."""
        return name.startswith(f"{self._name}.") and name.count(".") == self._name.count(".") + 3

    @property
    def tail(self) -> Segment | None:
        """The segment that is being appended to."""
        tail = self._tail
        return None if tail is None else tail.segment

    def seal(self) -> None:
        """Seal the segment that is being appended to; the next put begins another."""
        with self._turn:
            while self._leading:
                self._turn.wait()
            self._leading = True
            tail = self._tail
        try:
            if tail is not None:
                self._finish(tail)
        finally:
            with self._turn:
                self._leading = False
                self._turn.notify_all()

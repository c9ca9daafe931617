"""The log as a store: combines its parts, and maintains them in the background."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from millstream.stores.disk import FileGoneError
from millstream.stores.log import flushed
from millstream.stores.log.compact import Compacted, Compactor
from millstream.stores.log.format import (
    HEADER_BYTES,
    Kind,
    decode_header,
    header_flaw,
    read_records,
)
from millstream.stores.log.index import Index
from millstream.stores.log.once import Once
from millstream.stores.log.options import LogOptions
from millstream.stores.log.places import Place
from millstream.stores.log.reader import SUFFIX, Reader
from millstream.stores.log.segments import Catalogue
from millstream.stores.log.writer import Writer
from millstream.stores.stamps import Stamps
from millstream.stores.store import MAX_KEY_BYTES, Damage, StoreError, check_key

log = logging.getLogger("millstream")

_WORTH_FLUSHING: Final = 4 << 20  # bytes that the next opening would have to read
_PAUSE: Final = 10.0  # seconds between two compactions, if little is written
_STRIDE: Final = 1 << 16  # bytes; if more is written, compaction is due sooner
_REST: Final = 4  # but it pauses so many times as long as it took
# After the last mark of a segment without a seal.
_UNFINISHED: Final = "; its writer crashed before acknowledging it, or it was damaged since"


class LogStore:
    """Values in append-only segments, found by an index in memory."""

    def __init__(self, place: Place, writer: str, options: LogOptions) -> None:
        self._place, self._name, self._options = place, writer, options
        self._segments = Catalogue()
        self._index = Index(self._segments)
        self._stamps = Stamps()
        self._once = Once(place)
        self._reader = Reader(place, self._segments, self._index, self._stamps)
        salt = secrets.randbits(64)
        self._writer = Writer(
            place, writer, options, self._segments, self._index, self._stamps, salt
        )
        self._compactor = Compactor(
            place,
            options,
            self._segments,
            self._index,
            self._reader,
            self._writer,
            self._stamps,
        )
        self.timings: dict[str, float] = {}  # of opening, in seconds
        self._flushed_at = 0
        self._index_size = 0
        self._compacted = 0  # bytes appended before the last compaction
        self._compacted_at = time.monotonic()
        self._compaction_took = 0.0
        self._maintaining = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._maintainer: threading.Thread | None = None
        self._warned: set[type[Exception]] = set()
        flushed.load(place, self._segments, self._index, self.timings)
        began = time.perf_counter()
        self._reader.refresh()
        self.timings["scan"] = time.perf_counter() - began

    def put(self, items: Mapping[str, bytes]) -> None:
        self._check_open()
        names = list(items)
        keys = _encoded(names)
        self._writer.put(names, keys, list(items.values()))
        self._schedule_maintenance()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        self._check_open()
        self._reader.refresh()
        row = self._index.find(check_key(key))
        if row is not None and row.kind == Kind.VALUE:
            return False
        return self._once.put(key, value, self._stamps.next())

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(dict.fromkeys(keys))
        _encoded(wanted)
        found: dict[str, bytes] = {}
        missing = self._reader.values(wanted, found)
        if missing:
            missing = self._once.get(missing, found)
        if missing:
            self._reader.refresh()
            self._reader.values(missing, found)
        return found

    def scan(self, prefix: str = "") -> list[str]:
        self._reader.refresh()
        keys = self._index.scan(prefix)
        keys.update(self._once.scan(prefix))
        # The order of code points is that of their bytes in UTF-8.
        return sorted(keys)

    def delete(self, keys: Iterable[str]) -> None:
        self._check_open()
        wanted = [check_key(key) for key in dict.fromkeys(keys)]
        self._reader.refresh()
        rows = ((key, self._index.find(key)) for key in wanted)
        there = [key for key, row in rows if row is not None and row.kind == Kind.VALUE]
        self._writer.delete(there)
        self._once.delete(set(wanted).difference(there))
        self._schedule_maintenance()

    def verify(self) -> Iterator[Damage]:
        for name in sorted(self._place.list("segments")):
            if name.endswith(SUFFIX):
                yield from self._verify_segment(name)
        yield from self._once.verify()
        yield from flushed.verify(self._place)

    def _verify_segment(self, name: str) -> Iterator[Damage]:
        try:
            size = self._place.version("segments", name).size
            data = self._place.read("segments", name, 0, size)
        except FileGoneError:
            return
        place = self._place.path("segments", name)
        header = decode_header(data)
        if header is None and len(data) < HEADER_BYTES:
            return  # its writer crashed while creating it
        flaw = header_flaw(data)
        if flaw is not None:
            yield Damage(None, place, 0, flaw)
        if header is None:
            return
        records, end = read_records(data[HEADER_BYTES:], HEADER_BYTES, header.seed)
        sealed = any(record.kind == Kind.SEAL for record in records)
        marks = [record.offset for record in records if record.kind == Kind.MARK]
        synced = end if sealed else max(marks, default=0)
        for record in records:
            if record.flaw is not None:
                key = record.key.decode() if record.key else None
                why = record.flaw + ("" if record.offset < synced else _UNFINISHED)
                yield Damage(key, place, record.offset, why)
        if sealed and end < len(data):
            yield Damage(None, place, end, f"{len(data) - end} bytes after its seal")

    def compact(self) -> Compacted:
        """Compact now, also the sealed segments of other writers."""
        with self._maintaining:
            return self._compactor.compact(own_only=False)

    def flush(self) -> None:
        """Write the index, so that the next opening need not read the segments."""
        with self._maintaining:
            self._flush()

    def _flush(self) -> None:
        reached = self._unflushed()
        self._index_size = flushed.flush(self._place, self._name, self._segments, self._index)
        self._flushed_at += reached

    def _unflushed(self) -> int:
        return self._writer.appended + self._reader.scanned - self._flushed_at

    def _flush_is_due(self) -> bool:
        # Large indexes less often, so that they are not most of what is written.
        return self._unflushed() > max(self._options.flush, 4 * self._index_size)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed; open it again")

    def _schedule_maintenance(self) -> None:
        if self._maintainer is None:
            with self._maintaining:
                if self._maintainer is None:
                    self._maintainer = threading.Thread(
                        target=self._run_maintenance, name="millstream-log", daemon=True
                    )
                    self._maintainer.start()
        if self._index.overfull or self._flush_is_due() or self._compaction_is_due():
            self._wake.set()

    def _compaction_is_due(self) -> bool:
        """Whether to compact: after so many bytes, or after a pause."""
        fresh, since = (
            self._writer.appended - self._compacted,
            time.monotonic() - self._compacted_at,
        )
        if fresh > max(_STRIDE, self._compactor.share):
            return since >= (1 + _REST) * self._compaction_took
        # Others delete, too: what was written long ago may be garbage by now.
        return since >= _PAUSE and (fresh > 0 or self._writer.tail is not None)

    def _run_maintenance(self) -> None:
        """Merge, flush and compact in the background."""
        while not self._closed:
            self._wake.wait(_PAUSE)
            self._wake.clear()
            if self._closed:
                return
            try:
                self._maintain()
            except StoreError:
                # Callers of put and get get the same error.
                continue
            except Exception as error:
                # Without this thread the log would grow without bound.
                self._warn(error)

    def _maintain(self) -> None:
        """Do what is due."""
        with self._maintaining:
            if self._index.overfull:
                self._index.merge()
            if self._flush_is_due():
                self._flush()
            if self._compaction_is_due():
                began = time.monotonic()
                self._compacted, self._compacted_at = self._writer.appended, began
                self._compactor.compact(own_only=True)
                self._compaction_took = time.monotonic() - began

    def _warn(self, error: Exception) -> None:
        kind = type(error)
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("maintenance of %r failed; will retry: %s", self, error, exc_info=error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._maintainer is not None:
            self._maintainer.join()
        self._writer.seal()
        try:
            if self._unflushed() > _WORTH_FLUSHING:
                self.flush()
        except StoreError:
            pass  # the next opening only takes longer
        self._place.close()

    def __repr__(self) -> str:
        return f"LogStore({self._place!r})"


def _encoded(names: list[str]) -> list[bytes]:
    """Keys as bytes; ``BadStoreKeyError`` if one is not allowed."""
    try:
        keys = [name.encode() for name in names]
        sizes = list(map(len, keys))
        valid = not keys or (min(sizes) > 0 and max(sizes) <= MAX_KEY_BYTES)
        if valid and "".join(names).isprintable():
            return keys
    except (AttributeError, TypeError, UnicodeEncodeError):
        pass
    return [check_key(name).encode() for name in names]

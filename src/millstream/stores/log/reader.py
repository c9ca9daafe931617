"""Reads segments: the records of other writers, and the values of keys."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from millstream.stores.disk import FileGoneError
from millstream.stores.log.format import (
    AROUND_BYTES,
    HEADER_BYTES,
    Found,
    Kind,
    decode_header,
    read_records,
    record_size,
    value_at,
)
from millstream.stores.log.index import Index
from millstream.stores.log.places import Place
from millstream.stores.log.segments import Catalogue, Segment
from millstream.stores.stamps import Stamps
from millstream.stores.store import CorruptRecordError, Damage, StoreUnavailableError

SUFFIX = ".seg"
_SIGNS = (Kind.MARK, Kind.SEAL)
_NEAR = 16 << 10  # records this close to each other are read together
_RUN = 4 << 20
_ATTEMPTS = 4


# The segment, offset, length of the value and stamp of a record, and its key as text and bytes.
_Wanted = tuple[int, int, int, int, str, bytes]


class Reader:
    """Updates the index from the segments of others, and reads values."""

    def __init__(self, place: Place, segments: Catalogue, index: Index, stamps: Stamps) -> None:
        self._place, self._segments, self._index, self._stamps = place, segments, index, stamps
        self._lock = threading.Lock()
        self.scanned = 0  # bytes that were read to find records

    def refresh(self, *, twice: bool = False) -> None:
        """Load what others wrote and removed.

        A listing that is taken while files are created and removed may miss both a segment and its
        copy; so it is repeated if a segment is missing, or always with ``twice``.
        """
        with self._lock:
            names = self._list()
            while True:
                known = self._segments.all()
                removed = [each for each in known if each.name not in names and not each.growing]
                if not removed and not twice:
                    return
                again = self._list()
                if again == names:
                    # Segments that were created after the first listing are in the second one.
                    self.drop([each for each in removed if each.name not in again])
                    return
                names = again

    def _list(self) -> set[str]:
        names = {name for name in self._place.list("segments") if name.endswith(SUFFIX)}
        for name in sorted(names):
            segment = self._segments.named(name)
            if segment is None or not (segment.sealed or segment.growing):
                self._read(name, segment)
        self._stamps.saw(self._index.newest)
        return names

    def drop(self, removed: list[Segment]) -> None:
        """Drop segments that were removed."""
        self._index.drop(removed)
        self._segments.drop(removed)
        self._place.close_segments(segment.name for segment in removed)

    def _read(self, name: str, segment: Segment | None) -> None:
        try:
            version = self._place.version("segments", name)
            if segment is None:
                header = decode_header(self._place.read("segments", name, 0, HEADER_BYTES))
                if header is None:
                    return
                segment = self._segments.add(name, header)
            elif segment.seen == version:
                return
            start = segment.synced
            if version.size < start:
                return  # its header was written after the stat
            data = self._place.read("segments", name, start, version.size - start)
        except FileGoneError:
            return
        records, end = read_records(data, start, segment.seed)
        self.scanned += len(data)
        self.take(segment, records, end)
        segment.seen = version

    def take(self, segment: Segment, records: list[Found], end: int, *, over: bool = False) -> None:
        """Index records, as far as they are known to be synced, or all if nothing will follow.

        What is damaged after the last mark may never have been acknowledged.
        """
        over = over or any(record.kind == Kind.SEAL and record.intact for record in records)
        marks = [each.offset for each in records if each.kind == Kind.MARK and each.intact]
        synced = end if over else marks[-1] if marks else segment.synced
        data = [record for record in records if record.kind not in _SIGNS]
        durable = [each for each in data if each.offset < synced]
        if any(not record.intact for record in durable):
            segment.damaged = True
        self._index.add_found(segment, [record for record in durable if record.digest])
        rest = [each for each in data if each.offset >= synced and each.intact]
        self._index.set_unsynced(segment, rest)
        segment.synced, segment.sealed = synced, over

    def values(self, keys: Iterable[str], found: dict[str, bytes]) -> list[str]:
        """Read values into ``found``; return the keys that have none, by the index."""
        todo, missing = list(keys), []
        for attempt in range(_ATTEMPTS):
            wanted: list[_Wanted] = []
            for key, row in zip(todo, self._index.find_all(todo), strict=True):
                if row is None or row[4] != Kind.VALUE:
                    missing.append(key)
                else:
                    stamp, offset, length, segment, _ = row
                    wanted.append((segment, offset, length, stamp, key, key.encode()))
            todo = self._fetch(wanted, found, last=attempt == _ATTEMPTS - 1)
            if not todo:
                return missing
            # Compacted, or truncated by its writer, since the lookup.
            self.refresh()
        raise StoreUnavailableError(
            f"{todo[0]!r} was moved {_ATTEMPTS} times while it was read; retry"
        )

    def _fetch(self, wanted: list[_Wanted], found: dict[str, bytes], *, last: bool) -> list[str]:
        """Read records; return the keys to look up again."""
        if len(wanted) == 1:
            _, start, length, _, _, name = wanted[0]
            end = start + AROUND_BYTES + len(name) + length
            return self._fetch_run(wanted, start, end, found, last=last)
        wanted.sort()
        again: list[str] = []
        first = 0
        while first < len(wanted):
            segment, start, length, _, _, name = wanted[first]
            end = start + record_size(len(name), length)
            stop = first + 1
            # Those that are close to each other are read at once.
            while stop < len(wanted):
                other, offset, length, _, _, name = wanted[stop]
                if other != segment or offset - end > _NEAR or offset - start > _RUN:
                    break
                end = max(end, offset + AROUND_BYTES + len(name) + length)
                stop += 1
            again += self._fetch_run(wanted[first:stop], start, end, found, last=last)
            first = stop
        return again

    def _fetch_run(
        self, run: list[_Wanted], start: int, end: int, found: dict[str, bytes], *, last: bool
    ) -> list[str]:
        segment = self._segments.get(run[0][0])
        if segment is None:
            return [key for _, _, _, _, key, _ in run]
        try:
            data = self._place.read("segments", segment.name, start, end - start)
        except FileGoneError:
            return [key for _, _, _, _, key, _ in run]
        again = []
        seed = segment.seed
        for _, offset, length, stamp, key, name in run:
            value = value_at(data, offset - start, name, length, stamp, seed)
            if value is not None:
                found[key] = value
            elif last or segment.sealed or segment.growing:
                place = self._place.path("segments", segment.name)
                why = "its checksum does not match"
                raise CorruptRecordError(Damage(key, place, offset, why))
            else:
                again.append(key)
        return again

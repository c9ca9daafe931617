"""Reads segments: what other writers appended, and the values of keys."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from millstream.stores.log.format import (
    HEADER_BYTES,
    Found,
    Kind,
    decode_header,
    read_records,
    record_size,
    value_at,
)
from millstream.stores.log.index import Index
from millstream.stores.log.places import Gone, Place
from millstream.stores.log.segments import Catalogue, Segment
from millstream.stores.log.table import Row
from millstream.stores.log.writer import Stamps
from millstream.stores.store import CorruptRecord, Damage

SUFFIX = ".seg"
_SIGNS = (Kind.MARK, Kind.SEAL)
_NEAR = 16 << 10  # records this close to each other are read together
_RUN = 4 << 20


class _Wanted(NamedTuple):
    segment: int
    offset: int
    size: int
    key: str
    stamp: int


class Reader:
    """Keeps the index up to date with the segments of others, and reads values."""

    def __init__(self, place: Place, segments: Catalogue, index: Index, stamps: Stamps) -> None:
        self._place, self._segments, self._index, self._stamps = place, segments, index, stamps
        self._lock = threading.Lock()
        self.scanned = 0  # bytes that were read to find records

    def refresh(self, *, twice: bool = False) -> None:
        """See what others wrote and removed.

        A listing that is taken while files come and go may miss a segment and the copy of it, too;
        so it is taken again if a segment is missing, or in any case if ``twice`` is wanted.
        """
        with self._lock:
            names = self._look()
            while True:
                known = self._segments.all()
                gone = [each for each in known if each.name not in names and not each.growing]
                if not gone and not twice:
                    return
                again = self._look()
                if again == names:
                    # Segments that were made after the listing are in the second one.
                    self.drop([each for each in gone if each.name not in again])
                    return
                names = again

    def _look(self) -> set[str]:
        names = {name for name in self._place.list("segments") if name.endswith(SUFFIX)}
        for name in sorted(names):
            segment = self._segments.named(name)
            if segment is None or not (segment.sealed or segment.growing):
                self._read(name, segment)
        self._stamps.saw(self._index.newest)
        return names

    def drop(self, gone: list[Segment]) -> None:
        """Forget segments that were removed."""
        self._index.drop(gone)
        self._segments.drop(gone)
        self._place.forget(segment.name for segment in gone)

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
            start = segment.settled
            data = self._place.read("segments", name, start, version.size - start)
        except Gone:
            return
        records, end = read_records(data, start, segment.seed)
        self.scanned += len(data)
        self.take(segment, records, end)
        segment.seen = version

    def take(self, segment: Segment, records: list[Found], end: int, *, over: bool = False) -> None:
        """Put records into the index, as far as they are known to be synced, or all if it is over.

        What is damaged behind the last mark was never acknowledged, or cannot be told from it.
        """
        over = over or any(record.kind == Kind.SEAL and record.whole for record in records)
        marks = [each.offset for each in records if each.kind == Kind.MARK and each.whole]
        settled = end if over else marks[-1] if marks else segment.settled
        said = [record for record in records if record.kind not in _SIGNS]
        sure = [each for each in said if each.offset < settled]
        if any(not record.whole for record in sure):
            segment.damaged = True
        self._index.add_found(segment, [record for record in sure if record.digest])
        rest = [each for each in said if each.offset >= settled and each.whole]
        self._index.set_unsettled(segment, rest)
        segment.settled, segment.sealed = settled, over

    def values(self, keys: Iterable[str], found: dict[str, bytes]) -> list[str]:
        """Read the values of keys; returns those that have none, as far as is known."""
        todo, missing = list(keys), []
        for attempt in range(4):
            wanted: list[_Wanted] = []
            for key in todo:
                row = self._index.find(key)
                if row is None or row.kind != Kind.VALUE:
                    missing.append(key)
                else:
                    wanted.append(_wanted(key, row))
            todo = self._fetch(wanted, found, last=attempt == 3)
            if not todo:
                break
            # Compacted away, or cut off by its writer, since we looked: see what is there now.
            self.refresh()
        return missing

    def _fetch(self, wanted: list[_Wanted], found: dict[str, bytes], *, last: bool) -> list[str]:
        """Read records; returns the keys that should be looked for again."""
        wanted.sort()
        again: list[str] = []
        first = 0
        while first < len(wanted):
            segment, start, size, _, _ = wanted[first]
            stop, end = first + 1, start + size
            while stop < len(wanted):
                each = wanted[stop]
                end_there = each.offset + each.size
                near = each.segment == segment and each.offset - end <= _NEAR
                if not near or end_there - start > _RUN:
                    break
                end = max(end, end_there)
                stop += 1
            again += self._fetch_run(wanted[first:stop], start, end, found, last=last)
            first = stop
        return again

    def _fetch_run(
        self, run: list[_Wanted], start: int, end: int, found: dict[str, bytes], *, last: bool
    ) -> list[str]:
        segment = self._segments.get(run[0].segment)
        if segment is None:
            return [each.key for each in run]
        try:
            data = self._place.read("segments", segment.name, start, end - start)
        except Gone:
            return [each.key for each in run]
        again = []
        for each in run:
            at = each.offset - start
            record = data[at : at + each.size]
            value = value_at(record, each.key.encode(), each.stamp, segment.seed)
            if value is not None:
                found[each.key] = value
            elif last or segment.sealed or segment.growing:
                place = self._place.path("segments", segment.name)
                why = "its checksum does not fit what is there"
                raise CorruptRecord(Damage(each.key, place, each.offset, why))
            else:
                again.append(each.key)
        return again


def _wanted(key: str, row: Row) -> _Wanted:
    size = record_size(len(key.encode()), row.length)
    return _Wanted(row.segment, row.offset, size, key, row.stamp)

"""The index as a file, so that opening a log need not read all of it.

A flushed index only makes opening faster: it records how far into each segment it reaches; the rest
is read from the segments. A damaged one is ignored.
"""

from __future__ import annotations

import json
import struct
import time
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from millstream.stores.disk import FileGoneError
from millstream.stores.log.format import Header
from millstream.stores.log.index import SHADOW, Index
from millstream.stores.log.places import Place
from millstream.stores.log.segments import Catalogue, Segment
from millstream.stores.log.table import ROW, Table
from millstream.stores.store import Damage

SUFFIX = ".idx"
_MAGIC = b"MSidx\n\x02\x00"
_PREAMBLE = struct.Struct("<8sIIIxxxxQ")
_FIRST_READ = 1 << 16


class _Meta(NamedTuple):
    name: str
    size: int
    data_at: int
    check: int
    facts: dict[str, Any]

    def covers(self, names: set[str]) -> int:
        """How many bytes of the existing segments it covers."""
        return sum(each["synced"] for each in self.facts["segments"] if each["name"] in names)

    def within(self, segments: Catalogue) -> bool:
        """Whether all that it covers of existing segments is covered by the given ones, too."""
        for each in self.facts["segments"]:
            segment = segments.named(each["name"])
            if segment is not None and segment.synced < each["synced"]:
                return False
        return True


def flush(place: Place, writer: str, segments: Catalogue, index: Index) -> int:
    """Write the index, remove those of others that cover less, and return its bytes."""
    # In this order: what is synced now is in the table after the merge.
    known = [_facts_of(segment) for segment in segments.all()]
    index.merge()
    table, shadows = index.table, index.shadows
    # Rows and shadows may also be of younger segments, some of which are removed again: a process
    # that opens this index gives their numbers to others.
    numbers = [each["number"] for each in known]
    table = table.filter(np.isin(table.rows["segment"], numbers))
    shadows = shadows[np.isin(shadows["segment"], numbers)]
    offsets = table.key_offsets
    columns = [
        table.hashes.tobytes(),
        table.rows.tobytes(),
        (offsets - offsets[0]).tobytes(),
        shadows.tobytes(),
        table.key_bytes(),
    ]
    check = 0
    for column in columns:
        check = google_crc32c.extend(check, column)
    facts = {
        "segments": known,
        "rows": len(table),
        "key_bytes": len(columns[-1]),
        "shadows": len(shadows),
    }
    meta = json.dumps(facts).encode()
    meta += b" " * (-len(meta) % 8)  # the columns are used in place, and must be aligned
    size = sum(map(len, columns))
    preamble = _PREAMBLE.pack(_MAGIC, len(meta), google_crc32c.value(meta), check, size)
    name = f"{writer}{SUFFIX}"
    place.write("index", name, [preamble, meta, *columns])
    others = [other for other in place.list("index") if other.endswith(SUFFIX) and other != name]
    metas = [(other, _meta(place, other)) for other in others]
    covered = [other for other, meta in metas if meta is None or meta.within(segments)]
    if covered:
        place.remove("index", covered)
    return size


def _facts_of(segment: Segment) -> dict[str, Any]:
    """What is recorded of a segment, which another thread may seal meanwhile."""
    synced = segment.synced
    sealed = segment.sealed
    return {
        "number": segment.number,
        "name": segment.name,
        "salt": segment.header.salt,
        "created": segment.header.created,
        # One that is sealed by now is synced to its end, and is not read again.
        "synced": segment.synced if sealed else synced,
        "sealed": sealed,
        "damaged": segment.damaged,
    }


def load(place: Place, segments: Catalogue, index: Index, timings: dict[str, float]) -> None:
    """Load the flushed index that covers most, if there is any."""
    existing = set(place.list("segments"))
    metas = [_meta(place, name) for name in place.list("index") if name.endswith(SUFFIX)]
    usable = sorted(filter(None, metas), key=lambda meta: meta.covers(existing), reverse=True)
    for meta in usable:
        began = time.perf_counter()
        try:
            data = place.read("index", meta.name, 0, meta.data_at + meta.size)
        except FileGoneError:
            continue
        timings["read"] = time.perf_counter() - began
        began = time.perf_counter()
        payload = np.frombuffer(data, np.uint8)[meta.data_at :]
        intact = len(payload) == meta.size and google_crc32c.value(payload) == meta.check
        timings["checksum"] = time.perf_counter() - began
        if intact:
            began = time.perf_counter()
            _build(meta, data, existing, segments, index)
            timings["build"] = time.perf_counter() - began
            return


def _build(meta: _Meta, data: bytes, existing: set[str], segments: Catalogue, index: Index) -> None:
    rows, keys, shadows = meta.facts["rows"], meta.facts["key_bytes"], meta.facts["shadows"]
    at = meta.data_at
    hashes = np.frombuffer(data, np.uint64, rows, at)
    at += hashes.nbytes
    places = np.frombuffer(data, ROW, rows, at)
    at += places.nbytes
    buffer = pa.py_buffer(data)
    offsets = buffer.slice(at, 8 * (rows + 1))
    at += offsets.size
    old = np.frombuffer(data, SHADOW, shadows, at)
    at += old.nbytes
    names = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, offsets, buffer.slice(at, keys)]
    )
    removed = []
    for each in meta.facts["segments"]:
        if each["name"] in existing:
            header = Header(each["salt"], each["created"])
            segment = segments.add(each["name"], header, each["number"])
            segment.synced, segment.sealed = each["synced"], each["sealed"]
            segment.damaged = each["damaged"]
        else:
            removed.append(each["number"])
    table = Table(hashes, places, names)
    if removed:
        table = table.filter(~np.isin(places["segment"], removed))
        old = old[~np.isin(old["segment"], removed)]
    index.load(table, old)


def _meta(place: Place, name: str) -> _Meta | None:
    """The header of an index file, or None if it cannot be used."""
    try:
        data = place.read("index", name, 0, _FIRST_READ)
        if len(data) < _PREAMBLE.size:
            return None
        magic, length, meta_check, check, size = _PREAMBLE.unpack_from(data)
        if magic != _MAGIC:
            return None
        end = _PREAMBLE.size + length
        if end > len(data):
            data = place.read("index", name, 0, end)
    except FileGoneError:
        return None
    text = data[_PREAMBLE.size : end]
    if len(text) < length or google_crc32c.value(text) != meta_check:
        return None
    return _Meta(name, size, end, check, json.loads(text))


def verify(place: Place) -> list[Damage]:
    """The flushed indexes that are damaged; no value is lost by it."""
    damages = []
    for name in sorted(place.list("index")):
        if not name.endswith(SUFFIX):
            continue
        meta = _meta(place, name)
        why = None
        if meta is None:
            why = "the header of the flushed index is damaged"
        else:
            try:
                payload = place.read("index", name, meta.data_at, meta.size)
            except FileGoneError:
                continue
            if len(payload) != meta.size or google_crc32c.value(payload) != meta.check:
                why = "the flushed index is damaged"
        if why is not None:
            why += "; it is ignored, and no value is lost"
            damages.append(Damage(None, place.path("index", name), 0, why))
    return damages

"""The bytes of a segment: its header, its records, and how to read what is damaged.

``docs/log-format.md`` describes it. Everything here is pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import google_crc32c
import xxhash

_extend = google_crc32c.extend

VERSION = 1
_SEGMENT = struct.Struct("<6sHQQ")
_CHECK = struct.Struct("<I4x")
_SEGMENT_MAGIC = b"MSlog\n"
_COPY_BYTES = _SEGMENT.size + _CHECK.size
HEADER_BYTES = 2 * _COPY_BYTES

_HEAD = struct.Struct("<4sBxHQQQ")
_CHECKS = struct.Struct("<II")
_WHOLE_HEAD = struct.Struct(_HEAD.format + _CHECKS.format.lstrip("<"))
_MAGIC = b"\xb7MSr"
HEAD_BYTES = _HEAD.size + _CHECKS.size
AROUND_BYTES = 2 * HEAD_BYTES  # what a record takes besides its key and value


class Kind(IntEnum):
    """The kind of a record."""

    VALUE = 1
    TOMBSTONE = 2  # the key was deleted
    MARK = 3  # everything before this was synced before this was written
    SEAL = 4  # nothing will follow


class Header(NamedTuple):
    """The header of a segment."""

    salt: int  # random; every checksum begins with it
    created: int  # of two copies of a record, the one in the younger segment is current

    @property
    def seed(self) -> int:
        """What the checksums of this segment's records begin with."""
        return seed_of(self.salt)


class Found(NamedTuple):
    """A record in a segment; with a flaw if it is not as it was written."""

    kind: int
    key: bytes | None  # None: unreadable
    digest: int  # the hash of the key; 0 if that is unreadable, too
    stamp: int
    offset: int
    length: int  # of the value
    flaw: str | None = None
    intact: bool = True  # whether the value is as it was written


def seed_of(salt: int) -> int:
    """The checksum to begin with."""
    return int(google_crc32c.value(salt.to_bytes(8, "little")))


def digest_of(key: bytes) -> int:
    """The 64-bit hash by which keys are indexed."""
    return xxhash.xxh3_64_intdigest(key)


def record_size(key_bytes: int, value_bytes: int) -> int:
    """How many bytes a record takes."""
    return AROUND_BYTES + key_bytes + value_bytes


def encode_header(header: Header) -> bytes:
    """A segment's header, twice: without its salt nothing else could be read."""
    data = _SEGMENT.pack(_SEGMENT_MAGIC, VERSION, header.salt, header.created)
    return 2 * (data + _CHECK.pack(google_crc32c.value(data)))


def decode_header(data: bytes) -> Header | None:
    """A segment's header from either copy, or None if both are damaged or not written yet."""
    for start in (0, _COPY_BYTES):
        copy = data[start : start + _COPY_BYTES]
        if len(copy) == _COPY_BYTES:
            magic, version, salt, created = _SEGMENT.unpack_from(copy)
            (check,) = _CHECK.unpack_from(copy, _SEGMENT.size)
            intact = check == google_crc32c.value(copy[: _SEGMENT.size])
            if intact and magic == _SEGMENT_MAGIC and version == VERSION:
                return Header(salt, created)
    return None


def header_flaw(data: bytes) -> str | None:
    """What is wrong with a header, though it may still be readable."""
    header = decode_header(data)
    if header is None:
        return "the header of the segment is damaged; nothing in it can be read"
    if data[:HEADER_BYTES] != encode_header(header):
        return "one of the two copies of the segment's header is damaged"
    return None


def encode(
    kind: Kind,
    keys: Sequence[bytes],
    values: Iterable[bytes],
    digests: Iterable[int],
    stamps: Iterable[int],
    seed: int,
) -> list[bytes]:
    """Records, as chunks to be joined."""
    chunks: list[bytes] = []
    head_of, checks_of, extend = _HEAD.pack, _CHECKS.pack, _extend
    for key, value, digest, stamp in zip(keys, values, digests, stamps, strict=False):
        head = head_of(_MAGIC, kind, len(key), len(value), stamp, digest)
        trust = extend(seed, head)
        checks = checks_of(trust, extend(extend(trust, key), value))
        chunks += (head, checks, key, value, head, checks)
    return chunks


def encode_sign(kind: Kind, stamp: int, seed: int) -> bytes:
    """A mark or a seal: a record without key and value."""
    return b"".join(encode(kind, [b""], [b""], [0], [stamp], seed))


class _Head(NamedTuple):
    kind: int
    key_bytes: int
    length: int
    stamp: int
    digest: int
    trust: int
    check: int

    @property
    def payload(self) -> int:
        return self.key_bytes + self.length


def _head_at(data: bytes, at: int, seed: int) -> _Head | None:
    """The head, or foot, at a position; None unless its own checksum holds."""
    if at < 0 or at + HEAD_BYTES > len(data):
        return None
    magic, kind, key_bytes, length, stamp, digest = _HEAD.unpack_from(data, at)
    trust, check = _CHECKS.unpack_from(data, at + _HEAD.size)
    if magic != _MAGIC or trust != _extend(seed, data[at : at + _HEAD.size]):
        return None
    return _Head(kind, key_bytes, length, stamp, digest, trust, check)


def _payload_holds(data: bytes, at: int, head: _Head) -> bool:
    payload = data[at : at + head.payload]
    return len(payload) == head.payload and _extend(head.trust, payload) == head.check


def value_at(data: bytes, at: int, key: bytes, length: int, stamp: int, seed: int) -> bytes | None:
    """The value of a record, or None if it is damaged, or another record."""
    start = at + HEAD_BYTES
    end = start + len(key) + length
    payload = data[start:end]
    for head in (data[at:start], data[end : end + HEAD_BYTES]):
        if len(head) < HEAD_BYTES:
            continue
        _, _, key_bytes, stated, found, _, trust, check = _WHOLE_HEAD.unpack(head)
        if (
            _extend(trust, payload) == check
            and trust == _extend(seed, head[: _HEAD.size])
            and found == stamp
            and key_bytes == len(key)
            and stated == length == len(payload) - key_bytes
            and payload.startswith(key)
        ):
            return payload[key_bytes:]
    return None


def _found(data: bytes, at: int, base: int, head: _Head, flaw: str | None, intact: bool) -> Found:
    key: bytes | None = data[at + HEAD_BYTES : at + HEAD_BYTES + head.key_bytes]
    if not intact and digest_of(key or b"") != head.digest:
        key = None
    return Found(head.kind, key, head.digest, head.stamp, base + at, head.length, flaw, intact)


def read_records(data: bytes, base: int, seed: int) -> tuple[list[Found], int]:
    """The records in a segment from offset ``base`` on, and the offset at which they end.

    After the end there may be a torn record, with no intact one after it.
    """
    records: list[Found] = []
    at = 0
    while at < len(data):
        head = _head_at(data, at, seed)
        if head is None:
            healed = _search(data, at, base, seed)
            if healed is None:
                break
            found, at = healed
            records += found
            continue
        end = at + AROUND_BYTES + head.payload
        if end > len(data):
            # Its length can be trusted, so a crash has cut it off here.
            break
        if _payload_holds(data, at + HEAD_BYTES, head):
            flaw = None
            if data[end - HEAD_BYTES : end] != data[at : at + HEAD_BYTES]:
                flaw = "its foot is damaged; the value is intact"
            records.append(_found(data, at, base, head, flaw, True))
        else:
            foot = _head_at(data, end - HEAD_BYTES, seed)
            if foot is not None and _payload_holds(data, at + HEAD_BYTES, foot):
                flaw = "its head is damaged; the value is intact"
                records.append(_found(data, at, base, foot, flaw, True))
            else:
                flaw = "its checksum does not match its key and value"
                records.append(_found(data, at, base, head, flaw, False))
        at = end
    return records, base + at


def _search(data: bytes, start: int, base: int, seed: int) -> tuple[list[Found], int] | None:
    """The records after an unreadable head, and where to continue; None if there are none.

    A foot has the length of its record, and so where it begins. Otherwise only an intact record
    counts: the salt distinguishes it from records that are part of a value.
    """
    at = data.find(_MAGIC, start + 1)
    while at >= 0:
        head = _head_at(data, at, seed)
        if head is not None:
            begin = at - HEAD_BYTES - head.payload
            if begin >= start and (begin == start or _payload_holds(data, at - head.payload, head)):
                intact = _payload_holds(data, at - head.payload, head)
                flaw = "its head is damaged" + ("; the value is intact" if intact else ", and more")
                found = [_found(data, begin, base, head, flaw, intact)]
                return _lost(start, begin, base) + found, at + HEAD_BYTES
            if _payload_holds(data, at + HEAD_BYTES, head):
                return _lost(start, at, base), at
        at = data.find(_MAGIC, at + 1)
    return None


def _lost(start: int, end: int, base: int) -> list[Found]:
    if start == end:
        return []
    flaw = f"{end - start} bytes are damaged and unreadable"
    return [Found(Kind.VALUE, None, 0, 0, base + start, end - start, flaw, False)]

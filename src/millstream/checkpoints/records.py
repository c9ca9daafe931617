"""The records of a checkpoint: their keys, and the parts of a base record.

A delta record is serialised changes, compressed. A base record is a small header in JSON, then its
parts, each the serialised state of one job for a few slots, compressed by itself so that a few
slots can be read alone. Serialised means pickled: whoever can write to a store can make its readers
run code, so protect a store as you protect the code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import MillstreamError

DATA = "data/"
_LENGTH = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_LARGEST = 2**40
_CODEC = pa.Codec("zstd", compression_level=1)


class BadRecordError(MillstreamError):
    """A record of a checkpoint has another format than its key implies."""


@dataclass(frozen=True)
class Part:
    """The complete state of the job with an id for a range of slots, through an epoch."""

    job: str
    slots: range
    through: int
    data: bytes


@dataclass(frozen=True)
class PackedPart:
    """A part as it is stored in a base record."""

    job: str
    slots: range
    through: int
    packed: bytes

    @property
    def data(self) -> bytes:
        return expanded(self.packed)


def compressed(data: bytes | pa.Buffer) -> bytes:
    """Serialised state as it is stored: its length, and its compressed bytes."""
    return b"".join([_SIZE.pack(len(data)), _CODEC.compress(data, asbytes=True)])


def expanded(record: bytes) -> bytes:
    """What was compressed."""
    try:
        (size,) = _SIZE.unpack_from(record)
        found = _CODEC.decompress(
            record[_SIZE.size :], decompressed_size=min(size, _LARGEST), asbytes=True
        )
    except (OSError, ValueError, struct.error) as problem:
        raise BadRecordError(f"this is not a compressed record: {problem}") from None
    if len(found) != size:
        raise BadRecordError(f"a record has {len(found)} bytes when expanded instead of {size}")
    return bytes(found)


def delta_key(epoch: int, incarnation: int, try_: int, job: str, slots: range, node: str) -> str:
    """The key of the changes that a node made to slots in an epoch."""
    return f"{_folder(epoch, incarnation)}/{try_}.{node[:8]}.{job}.{slots.start}-{slots.stop}"


def base_key(epoch: int, incarnation: int, slots: range, node: str, number: int) -> str:
    """The key of a base record; a node numbers those that it writes."""
    return f"{_folder(epoch, incarnation)}/base.{node[:8]}.{number}.{slots.start}-{slots.stop}"


def origin_of(key: str) -> tuple[int, int]:
    """The epoch and the incarnation in which a record was written."""
    try:
        _, epoch, incarnation, _ = key.split("/", 3)
        return int(epoch), int(incarnation)
    except ValueError:
        raise BadRecordError(f"{key!r} is not the key of a checkpoint's record") from None


def _folder(epoch: int, incarnation: int) -> str:
    return f"{DATA}{max(epoch, 0):012d}/{incarnation:06d}"


def pack(parts: Sequence[Part]) -> bytes:
    """A base record."""
    packed = [compressed(part.data) for part in parts]
    header = json.dumps(
        [
            [part.job, part.slots.start, part.slots.stop, part.through, len(data)]
            for part, data in zip(parts, packed, strict=True)
        ]
    ).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *packed])


def unpack(record: bytes) -> Iterator[PackedPart]:
    """The parts of a base record."""
    try:
        (length,) = _LENGTH.unpack_from(record)
        at = _LENGTH.size + length
        header = json.loads(record[_LENGTH.size : at])
    except (ValueError, struct.error) as problem:
        raise BadRecordError(f"this is not a base record: {problem}") from None
    for job, start, stop, through, size in header:
        yield PackedPart(job, range(start, stop), through, record[at : at + size])
        at += size

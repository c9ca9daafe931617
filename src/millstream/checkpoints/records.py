"""The records of a checkpoint: how they are called, and the parts that a base record holds.

A base record is a small header in JSON, then the parts one after the other, each the serialised
state of one job for a few slots. They are pickles: whoever can write to a store can make its
readers run code, so a store is as private as the code that runs on it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.errors import MillstreamError

DATA = "data/"
_LENGTH = struct.Struct("<I")


class BadRecord(MillstreamError):
    """A record of a checkpoint does not hold what its name says."""


@dataclass(frozen=True)
class Part:
    """The whole state of the job with an id for a range of slots, through an epoch."""

    job: str
    slots: range
    through: int
    data: bytes


def piece_key(epoch: int, incarnation: int, try_: int, job: str, slots: range, node: str) -> str:
    """The key of the changes that a node made to slots in an epoch."""
    return f"{_folder(epoch, incarnation)}/{try_}.{node[:8]}.{job}.{slots.start}-{slots.stop}"


def base_key(epoch: int, incarnation: int, slots: range, node: str, number: int) -> str:
    """The key of the whole state of slots; a node numbers those that it writes."""
    return f"{_folder(epoch, incarnation)}/base.{node[:8]}.{number}.{slots.start}-{slots.stop}"


def origin_of(key: str) -> tuple[int, int]:
    """The epoch and the incarnation in which a record was written."""
    try:
        _, epoch, incarnation, _ = key.split("/", 3)
        return int(epoch), int(incarnation)
    except ValueError:
        raise BadRecord(f"{key!r} is not the key of a checkpoint's record") from None


def _folder(epoch: int, incarnation: int) -> str:
    return f"{DATA}{max(epoch, 0):012d}/{incarnation:06d}"


def pack(parts: Sequence[Part]) -> bytes:
    """A base record."""
    header = json.dumps(
        [[p.job, p.slots.start, p.slots.stop, p.through, len(p.data)] for p in parts]
    ).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *(part.data for part in parts)])


def unpack(record: bytes) -> Iterator[Part]:
    """The parts of a base record."""
    try:
        (length,) = _LENGTH.unpack_from(record)
        at = _LENGTH.size + length
        header = json.loads(record[_LENGTH.size : at])
    except (ValueError, struct.error) as problem:
        raise BadRecord(f"this is not a base record: {problem}") from None
    for job, start, stop, through, size in header:
        yield Part(job, range(start, stop), through, record[at : at + size])
        at += size

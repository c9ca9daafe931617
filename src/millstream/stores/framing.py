"""Values with a checksum in front, for back-ends that have none of their own.

CRC32C (Castagnoli), four bytes, little-endian, over the key and the value: a value that turns up
under another key is as damaged as one with a flipped bit.
"""

from __future__ import annotations

import struct

import google_crc32c

from millstream.stores.store import CorruptRecordError, Damage

_CHECKSUM = struct.Struct("<I")


def checksum(key: str, value: bytes) -> int:
    """The checksum of a value under its key."""
    return int(google_crc32c.extend(google_crc32c.value(key.encode()), value))


def frame(key: str, value: bytes) -> bytes:
    """A value as it is written."""
    return _CHECKSUM.pack(checksum(key, value)) + value


def unframe(key: str, data: bytes, place: str, offset: int = 0) -> bytes:
    """The value that was written, or ``CorruptRecordError``."""
    damage = damage_of(key, data, place, offset)
    if damage is not None:
        raise CorruptRecordError(damage)
    return data[_CHECKSUM.size :]


def damage_of(key: str, data: bytes, place: str, offset: int = 0) -> Damage | None:
    """What is wrong with data that was read, if anything is."""
    if len(data) < _CHECKSUM.size:
        return Damage(key, place, offset, f"torn: {len(data)} bytes are left of it")
    (said,) = _CHECKSUM.unpack_from(data)
    found = checksum(key, data[_CHECKSUM.size :])
    if said != found:
        return Damage(key, place, offset, f"its checksum is {found:08x} and should be {said:08x}")
    return None

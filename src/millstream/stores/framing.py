"""Values with a checksum in front of them, for back-ends that have none.

CRC32C (Castagnoli), four bytes, little-endian, over the key and the value: a value under
another key counts as damaged, as one with a flipped bit does.
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
    """A value with its checksum."""
    return _CHECKSUM.pack(checksum(key, value)) + value


def unframe(key: str, data: bytes, place: str, offset: int = 0) -> bytes:
    """The value that was written, or ``CorruptRecordError``."""
    damage = damage_of(key, data, place, offset)
    if damage is not None:
        raise CorruptRecordError(damage)
    return data[_CHECKSUM.size :]


def damage_of(key: str, data: bytes, place: str, offset: int = 0) -> Damage | None:
    """The damage of a framed value, if there is any."""
    if len(data) < _CHECKSUM.size:
        return Damage(key, place, offset, f"torn: only {len(data)} bytes of it are left")
    (expected,) = _CHECKSUM.unpack_from(data)
    found = checksum(key, data[_CHECKSUM.size :])
    if expected != found:
        return Damage(key, place, offset, f"its checksum is {found:08x} instead of {expected:08x}")
    return None

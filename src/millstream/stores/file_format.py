"""The files of ``files://``: what they are named, and what is in them.

A value's file is named for its key, percent-encoded, with ``.value`` behind it; a key too long for
that is hashed, with ``.long`` behind it. Inside: the lengths of key and value, the key, and the
framed value.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from urllib.parse import quote, unquote

from millstream.stores.framing import damage_of, frame, unframe
from millstream.stores.store import CorruptRecordError, Damage

SUFFIXES = (".value", ".long")

_LONGEST_NAME = 249  # of 255, less the suffix
_HEADER = struct.Struct("<HQ")
_CHECKSUM_BYTES = len(frame("", b""))
_MISNAMED = "the key in it is not the one that the file is named for"


def name_of(key: str) -> str:
    """The name of a key's file."""
    name = quote(key, safe="")
    if len(name) > _LONGEST_NAME:
        return hashlib.sha256(key.encode()).hexdigest() + ".long"
    return name + ".value"


def key_of(file: Path) -> str | None:
    """The key of a file; None if it is damaged where only the file could tell, or a stranger."""
    try:
        if file.suffix == ".value":
            key = unquote(file.stem, errors="strict")
        else:
            with open(file, "rb") as opened:
                length, _ = _HEADER.unpack(opened.read(_HEADER.size))
                key = opened.read(length).decode()
    except (struct.error, UnicodeDecodeError):
        return None
    return key if name_of(key) == file.name else None


def record(key: str, value: bytes) -> bytes:
    """What is in a key's file."""
    name = key.encode()
    return _HEADER.pack(len(name), len(value)) + name + frame(key, value)


def value_in(key: str, data: bytes, place: str) -> bytes:
    """The value in a key's file, or ``CorruptRecordError``."""
    damage = damage_in(key, data, place)
    if damage is not None:
        raise CorruptRecordError(damage)
    return unframe(key, data[_begin(key) :], place)


def damage_in(key: str | None, data: bytes, place: str) -> Damage | None:
    """What is wrong with what was read from a key's file, if anything is."""
    if key is None:
        return Damage(None, place, 0, _MISNAMED)
    begin = _begin(key)
    if len(data) < begin:
        return Damage(key, place, 0, f"torn: {len(data)} bytes are left of it")
    key_bytes, value_bytes = _HEADER.unpack_from(data)
    if key_bytes != begin - _HEADER.size or data[_HEADER.size : begin] != key.encode():
        return Damage(key, place, 0, _MISNAMED)
    length = begin + _CHECKSUM_BYTES + value_bytes
    if len(data) != length:
        return Damage(key, place, 0, f"torn: it has {len(data)} bytes instead of {length}")
    return damage_of(key, data[begin:], place, begin)


def _begin(key: str) -> int:
    """Where the framed value begins."""
    return _HEADER.size + len(key.encode())

"""The files of ``files://``: their names and contents.

A value's file is named for its key, percent-encoded, with the suffix ``.value``; a key too long for
that is hashed, with the suffix ``.long``. Inside: the lengths of key and value, the key, and the
value with its checksum (``framing``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from urllib.parse import quote, unquote

from millstream.stores.framing import damage_of, frame, unframe
from millstream.stores.store import MAX_KEY_BYTES, CorruptRecordError, Damage

SUFFIXES = (".value", ".long")

_LONGEST_NAME = 249  # of 255, less the suffix
_HEADER = struct.Struct("<HQ")
_CHECKSUM_BYTES = len(frame("", b""))
_MISNAMED = "the key in it is not the one that the file is named for"

HEAD_BYTES = _HEADER.size + MAX_KEY_BYTES
"""How much of a file suffices to read its key."""


def name_of(key: str) -> str:
    """The name of a key's file."""
    name = quote(key, safe="")
    if len(name) > _LONGEST_NAME:
        return hashlib.sha256(key.encode()).hexdigest() + ".long"
    return name + ".value"


def key_of(name: str, read_head: Callable[[], bytes]) -> str | None:
    """The key of a file, read from its head if need be; None if it is damaged or not ours."""
    try:
        if name.endswith(".value"):
            key = unquote(name.removesuffix(".value"), errors="strict")
        else:
            head = read_head()
            length, _ = _HEADER.unpack_from(head)
            key = head[_HEADER.size : _HEADER.size + length].decode()
    except (struct.error, UnicodeDecodeError):
        return None
    return key if name_of(key) == name else None


def record(key: str, value: bytes) -> bytes:
    """The content of a key's file."""
    name = key.encode()
    return _HEADER.pack(len(name), len(value)) + name + frame(key, value)


def value_in(key: str, data: bytes, place: str) -> bytes:
    """The value in a key's file, or ``CorruptRecordError``."""
    damage = damage_in(key, data, place)
    if damage is not None:
        raise CorruptRecordError(damage)
    return unframe(key, data[_begin(key) :], place)


def damage_in(key: str | None, data: bytes, place: str) -> Damage | None:
    """The damage of a key's file, if there is any."""
    if key is None:
        return Damage(None, place, 0, _MISNAMED)
    begin = _begin(key)
    if len(data) < begin:
        return Damage(key, place, 0, f"torn: only {len(data)} bytes of it are left")
    key_bytes, value_bytes = _HEADER.unpack_from(data)
    if key_bytes != begin - _HEADER.size or data[_HEADER.size : begin] != key.encode():
        return Damage(key, place, 0, _MISNAMED)
    length = begin + _CHECKSUM_BYTES + value_bytes
    if len(data) != length:
        return Damage(key, place, 0, f"torn: it has {len(data)} bytes instead of {length}")
    return damage_of(key, data[begin:], place, begin)


def _begin(key: str) -> int:
    """The offset of the framed value."""
    return _HEADER.size + len(key.encode())

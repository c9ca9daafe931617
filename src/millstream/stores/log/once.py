"""Keys that are written once (``put_if_absent``): a file each, which is complete or not there.

Used by ``log://`` and ``rocksdb://``. A file has the header and the record of a segment.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote

import xxhash

from millstream.stores.disk import FileGoneError
from millstream.stores.log.format import (
    HEAD_BYTES,
    HEADER_BYTES,
    Header,
    Kind,
    decode_header,
    digest_of,
    encode,
    encode_header,
    header_flaw,
    read_records,
)
from millstream.stores.log.places import Files
from millstream.stores.store import CorruptRecordError, Damage

_FOLDER = "once"
_LONGEST_NAME = 200
_FEW = 32


def file_name(key: str) -> str:
    """The name of a key's file: the key itself if it is short, otherwise its hash."""
    name = quote(key, safe="")
    if len(name) <= _LONGEST_NAME:
        return f"k-{name}"
    return f"h-{xxhash.xxh3_128_hexdigest(key.encode())}"


class Once:
    """The keys that are written once."""

    def __init__(self, place: Files) -> None:
        self._place = place
        self._long: dict[str, str] = {}  # the keys of files that are named by a hash

    def put(self, key: str, value: bytes, stamp: int) -> bool:
        """Write a value unless the key has one."""
        # The salt is random: an object store compares bytes to see whose write has won.
        header = Header(secrets.randbits(64), stamp)
        name = key.encode()
        record = encode(Kind.VALUE, [name], [value], [digest_of(name)], [stamp], header.seed)
        data = b"".join([encode_header(header), *record])
        return self._place.write_once(_FOLDER, file_name(key), data)

    def get(self, keys: list[str], found: dict[str, bytes]) -> list[str]:
        """Read the values of keys into ``found``; return the keys that have none."""
        missing, names = [], None
        if len(keys) > _FEW:
            names = set(self._place.list(_FOLDER))
        for key in keys:
            name = file_name(key)
            try:
                if names is not None and name not in names:
                    raise FileGoneError(name)
                found[key] = self._value(key, name)
            except FileGoneError:
                missing.append(key)
        return missing

    def _value(self, key: str, name: str) -> bytes:
        data = self._data(name)
        why = "it is damaged"
        header = decode_header(data)
        if header is not None:
            records, _ = read_records(data[HEADER_BYTES:], HEADER_BYTES, header.seed)
            for record in records:
                if record.intact and record.key == key.encode():
                    start = record.offset + HEAD_BYTES + len(record.key)
                    return data[start : start + record.length]
                why = record.flaw or "it is the value of another key"
        raise CorruptRecordError(Damage(key, self._place.path(_FOLDER, name), HEADER_BYTES, why))

    def _data(self, name: str) -> bytes:
        size = self._place.version(_FOLDER, name).size
        return self._place.read(_FOLDER, name, 0, size)

    def scan(self, prefix: str) -> Iterator[str]:
        """The keys that begin with a prefix."""
        for name in self._place.list(_FOLDER):
            key = self._key(name)
            if key is not None and key.startswith(prefix):
                yield key

    def _key(self, name: str) -> str | None:
        if name.startswith("k-"):
            return unquote(name[2:])
        if name.startswith("h-") and name not in self._long:
            try:
                data = self._data(name)
            except FileGoneError:
                return None
            header = decode_header(data)
            if header is None:
                return None
            records, _ = read_records(data[HEADER_BYTES:], HEADER_BYTES, header.seed)
            if not records or records[0].key is None:
                return None
            self._long[name] = records[0].key.decode()
        return self._long.get(name)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove those of some keys that are here."""
        wanted = {file_name(key) for key in keys}
        if not wanted:
            return
        there = wanted.intersection(self._place.list(_FOLDER))
        if there:
            self._place.remove(_FOLDER, there)

    def verify(self) -> Iterator[Damage]:
        """Read everything, and yield what is damaged."""
        for name in sorted(self._place.list(_FOLDER)):
            try:
                data = self._data(name)
            except FileGoneError:
                continue
            place, key = self._place.path(_FOLDER, name), self._key(name)
            flaw = header_flaw(data)
            if flaw is not None:
                yield Damage(key, place, 0, flaw)
            header = decode_header(data)
            if header is None:
                continue
            records, end = read_records(data[HEADER_BYTES:], HEADER_BYTES, header.seed)
            for record in records:
                if record.flaw is not None:
                    yield Damage(key, place, record.offset, record.flaw)
                elif key is not None and record.key != key.encode():
                    yield Damage(key, place, record.offset, "it is the value of another key")
            if end < len(data) or not records:
                yield Damage(key, place, end, f"torn: only {len(data) - end} bytes of it are left")

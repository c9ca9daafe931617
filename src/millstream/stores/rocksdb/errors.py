"""RocksDB's errors as those of a store: the binding raises bare exceptions with a text."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import google_crc32c
from rocksdict import DbClosedError

from millstream.stores.durable_folder import no_space, translate_os_error
from millstream.stores.retries import UnavailableError
from millstream.stores.store import CorruptRecordError, Damage, StoreError

_NO_SPACE = ("No space left", "Disk quota exceeded", "File too large")
_IN_FILE = re.compile(r" in (\S+) offset (\d+)")
_NAMED_FILE = re.compile(r"(/\S+\.(?:sst|log|ldb)|/\S*MANIFEST-\d+|/\S*CURRENT)")
_BLOCK = 32768
_HEADER = struct.Struct("<IHB")


@contextmanager
def translated(place: Path, key: str | None = None) -> Iterator[None]:
    """Raise errors of RocksDB and the file system as a store's, or as ``UnavailableError``."""
    try:
        yield
    except OSError as problem:
        raise translate_os_error(problem, str(place)) from problem
    except DbClosedError as problem:
        raise UnavailableError(problem) from problem
    except Exception as problem:
        if type(problem) is not Exception:
            raise
        raise translate(str(problem), place, key) from problem


def translate(text: str, place: Path, key: str | None = None) -> StoreError | UnavailableError:
    """The error for one of RocksDB's messages."""
    if any(mark in text for mark in _NO_SPACE):
        return no_space(str(place), text)
    if text.startswith("Corruption"):
        return CorruptRecordError(_damage(text, place, key))
    if text.startswith(("IO error", "Busy", "Timed out", "Resource temporarily", "Shutdown")):
        return UnavailableError(text)
    return StoreError(f"{place}: {text}")


def _damage(text: str, place: Path, key: str | None) -> Damage:
    """A corruption and its place: RocksDB names the file unless it is a write-ahead log."""
    if found := _IN_FILE.search(text):
        return Damage(key, found[1], int(found[2]), text)
    if found := _NAMED_FILE.search(text):
        return Damage(key, found[1], 0, text)
    for log in sorted(place.glob("*.log")):
        offset = first_bad_record(log.read_bytes())
        if offset is not None:
            return Damage(key, str(log), offset, text)
    return Damage(key, str(place), 0, text)


def first_bad_record(log: bytes) -> int | None:
    """The offset of the first damaged record of a write-ahead log.

    Blocks of 32 KB, in them records of a masked CRC32C (over type and data), a length and a type.
    """
    for block in range(0, len(log), _BLOCK):
        at, end = block, min(block + _BLOCK, len(log))
        while at + _HEADER.size <= end:
            expected, length, kind = _HEADER.unpack_from(log, at)
            data = at + _HEADER.size
            if kind == 0 and length == 0:
                break  # space that was allocated
            if data + length > end:
                return at if end < len(log) else None  # the last one was never completed
            if expected != _masked(int(google_crc32c.value(log[data - 1 : data + length]))):
                return at
            at = data + length
    return None


def _masked(checksum: int) -> int:
    rotated = (checksum >> 15) | (checksum << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF

"""Keys that are written once, whoever comes first: one file each, linked when it is complete.

RocksDB lets one process write; a hard link is atomic among all processes that share a folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from millstream.stores.framing import damage_of, frame, unframe
from millstream.stores.store import MAX_KEY_BYTES, Damage

_KEY_LENGTH = 2


class Claims:
    """The claims in a folder; whoever makes one writes it in a folder of their own first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, str] = {}
        self._numbers = count()

    def draft(self, key: str, value: bytes, scratch: Path) -> Path:
        """Write what a claim is to be; it is durable, but claims nothing yet."""
        draft = scratch / f"claim-{next(self._numbers)}"
        with open(draft, "xb") as file:
            try:
                file.write(frame(key, _with_key(key, value)))
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                discard(draft)
                raise
        return draft

    def claim(self, key: str, draft: Path) -> bool:
        """Claim a key with a draft; whether it has the key now. May be tried again."""
        path = self._path(key)
        self._folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(draft, path)
        # Not by what the link said: an attempt before this one may have won and not been synced.
        won = os.path.samefile(draft, path)
        # The loser as well: it may act on what it lost to.
        sync_folder(self._folder)
        return won

    def holds(self, key: str) -> bool:
        """Whether a key is claimed; if it is, durably."""
        if not self._path(key).exists():
            return False
        sync_folder(self._folder)
        return True

    def get(self, key: str) -> bytes | None:
        """A claim's value."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return _without_key(unframe(key, data, str(path)))

    def keys(self, prefix: str) -> Iterator[str]:
        """The claimed keys that begin with a prefix."""
        for path in self._files():
            key = self._names.get(path.name)
            if key is None:
                key = _key_of(path)
                if self._path(key) != path:
                    continue  # gone meanwhile, or damaged: ``verify`` tells
                self._names[path.name] = key
            if key.startswith(prefix):
                yield key

    def delete(self, keys: list[str]) -> None:
        """Forget claims."""
        gone = [path for path in map(self._path, keys) if path.exists()]
        for path in gone:
            path.unlink(missing_ok=True)
        if gone:
            sync_folder(self._folder)

    def verify(self) -> Iterator[Damage]:
        """The claims that are damaged."""
        for path in self._files():
            key = _key_of(path)
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            if self._path(key) != path:
                yield Damage(None, str(path), 0, "its key is not the one that it was claimed by")
            elif damage := damage_of(key, data, str(path)):
                yield damage

    def _files(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.blake2b(key.encode(), digest_size=20).hexdigest()


def _with_key(key: str, value: bytes) -> bytes:
    name = key.encode()
    return len(name).to_bytes(_KEY_LENGTH, "little") + name + value


def _without_key(data: bytes) -> bytes:
    return data[_KEY_LENGTH + int.from_bytes(data[:_KEY_LENGTH], "little") :]


def _key_of(path: Path) -> str:
    """The key that a claim's file names; empty if the file is gone."""
    start = len(frame("", b""))
    try:
        with open(path, "rb") as file:
            head = file.read(start + _KEY_LENGTH + MAX_KEY_BYTES)[start:]
    except FileNotFoundError:
        return ""
    length = int.from_bytes(head[:_KEY_LENGTH], "little")
    return head[_KEY_LENGTH : _KEY_LENGTH + length].decode(errors="replace")


def discard(draft: Path) -> None:
    """Remove a draft that nobody needs any more; one that stays goes with its folder."""
    with suppress(OSError):
        draft.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""A disk in memory that forgets, when its power fails, whatever was not synced."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from millstream.stores.disk import Version
from millstream.stores.log.folder_place import FolderPlace
from millstream.stores.log.options import LogOptions
from millstream.stores.log.places import FOLDERS
from millstream.stores.log.store import LogStore

ROOT = "/disk/log"
_SECTOR = 64


class PowerFailure(BaseException):
    """The machine is gone in the middle of a call."""


@dataclass
class _Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    changed: int = 0


class MemoryDisk:
    """Files and folders, as they are and as they would be after a power failure.

    At a failure every name and every sector that was not synced is there or not, as chance has it.
    """

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._names: dict[str, dict[str, _Inode]] = {}
        self._synced_names: dict[str, dict[str, _Inode]] = {}
        self._open: dict[int, _Inode] = {}
        self._next = 1
        self.clock = 10**18
        self.calls_left: int | None = None  # until the power fails
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda call: None  # may raise

    def fail_power(self) -> None:
        """Forget what was not synced; nothing that was open is open any more."""
        self._open.clear()
        self.calls_left = None
        for folder, names in self._names.items():
            synced = self._synced_names[folder]
            after: dict[str, _Inode] = {}
            for name in {**names, **synced}:
                old, new = synced.get(name), names.get(name)
                kept = old if old is new or self._chance.random() < 0.5 else new
                if kept is not None:
                    after[name] = kept
            self._names[folder], self._synced_names[folder] = after, dict(after)
        for inode in {
            id(each): each for names in self._names.values() for each in names.values()
        }.values():
            inode.data[:] = self._torn(inode)
            inode.synced = bytes(inode.data)

    def _torn(self, inode: _Inode) -> bytes:
        old, new = inode.synced, bytes(inode.data)
        if old == new:
            return new
        size = self._chance.randint(min(len(old), len(new)), max(len(old), len(new)))
        torn = bytearray(old[:size].ljust(size, b"\0"))
        for at in range(0, size, _SECTOR):
            if self._chance.random() < 0.5:
                sector = new[at : min(at + _SECTOR, size)]
                torn[at : at + len(sector)] = sector
        return bytes(torn)

    def crash(self) -> None:
        """Only the processes are gone: what was written is there."""
        self._open.clear()
        self.calls_left = None

    def _call(self, what: str) -> None:
        if self.calls_left is not None:
            if not self.calls_left:
                raise PowerFailure
            self.calls_left -= 1
        self.calls.append(what)
        self.clock += 1000
        self.before(what)

    def _inode(self, path: str) -> _Inode:
        folder, _, name = path.rpartition("/")
        if folder not in self._names or name not in self._names[folder]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._names[folder][name]

    def _opened(self, inode: _Inode) -> int:
        self._next += 1
        self._open[self._next] = inode
        return self._next

    def create(self, path: str) -> int:
        self._call("create")
        folder, _, name = path.rpartition("/")
        if folder not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if name in self._names[folder]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._names[folder][name] = _Inode(changed=self.clock)
        return self._opened(self._names[folder][name])

    def open(self, path: str) -> int:
        return self._opened(self._inode(path))

    def append(self, file: int, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        inode = self._open[file]
        half = len(data) // 2
        inode.data += data[:half]
        self._call("append")
        inode.data += data[half:]
        inode.changed = self.clock

    def read(self, file: int, offset: int, size: int) -> bytes:
        if size < 0:
            raise OSError(errno.EINVAL, "Invalid argument")
        if file not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return bytes(self._open[file].data[offset : offset + size])

    def sync(self, file: int) -> None:
        self._call("sync")
        self._open[file].synced = bytes(self._open[file].data)

    def truncate(self, file: int, size: int) -> None:
        self._call("truncate")
        del self._open[file].data[size:]

    def close(self, file: int) -> None:
        self._open.pop(file, None)

    def version(self, path: str) -> Version:
        inode = self._inode(path)
        return Version(len(inode.data), inode.changed)

    def is_folder(self, path: str) -> bool:
        return path in self._names

    def is_same(self, one: str, other: str) -> bool:
        return self._inode(one) is self._inode(other)

    @property
    def used(self) -> int:
        """The bytes of all files of a log."""
        folders = (f"{ROOT}/{folder}" for folder in FOLDERS)
        return sum(len(inode.data) for each in folders for inode in self._names[each].values())

    def file(self, folder: str, name: str) -> bytearray:
        """The content of a file, to look at or to harm."""
        return self._names[f"{ROOT}/{folder}"][name].data

    def files(self, folder: str) -> list[str]:
        return sorted(self._names[f"{ROOT}/{folder}"])

    def list(self, folder: str) -> list[str]:
        self.calls.append("list")
        if folder not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        return list(self._names[folder])

    def make_folder(self, path: str) -> None:
        for folder in (os.path.dirname(path), path):
            self._names.setdefault(folder, {})
            self._synced_names.setdefault(folder, {})

    def sync_folder(self, path: str) -> None:
        self._call("sync_folder")
        self._synced_names[path] = dict(self._names[path])

    def rename(self, old: str, new: str) -> None:
        self._call("rename")
        self.link_over(old, new)
        del self._names[os.path.dirname(old)][os.path.basename(old)]

    def link_over(self, old: str, new: str) -> None:
        self._names[os.path.dirname(new)][os.path.basename(new)] = self._inode(old)

    def link(self, old: str, new: str) -> None:
        self._call("link")
        if os.path.basename(new) in self._names[os.path.dirname(new)]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self.link_over(old, new)

    def remove(self, path: str) -> None:
        self._call("remove")
        with suppress(KeyError):
            del self._names[os.path.dirname(path)][os.path.basename(path)]

    def erase(self, folder: str, name: str) -> None:
        del self._names[f"{ROOT}/{folder}"][name]


def open_log(
    disk: MemoryDisk,
    writer: str,
    *,
    segment: int = 4096,
    grace: float = 0,
    patience: float = 0,
    flush: int = 1 << 30,
) -> LogStore:
    """A log on a disk in memory."""
    options = LogOptions(segment=segment, grace=grace, patience=patience, flush=flush)
    return LogStore(FolderPlace(ROOT, writer, patience, disk), writer, options)


def abandon(store: LogStore) -> None:
    """Abandon a store as if its process had ended; only its thread is stopped."""
    store._closed = True
    store._wake.set()

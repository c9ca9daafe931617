"""Counts the files that are made in a folder, and the bytes in them, also of those that go again.

By Linux's inotify. A file counts once, however it is renamed or linked. Its bytes are the largest
size that it was seen to have; those of a file that is removed at once may be missed.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

_MODIFY, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO = 0x02, 0x08, 0x40, 0x80
_CREATE, _DELETE, _OVERFLOW, _ONLY_FOLDERS = 0x100, 0x200, 0x4000, 0x01000000
_MASK = _MODIFY | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_FOLDERS
_FOLDER = 0x40000000
_CLOEXEC = 0x80000
_EVENT = struct.Struct("iIII")
_AT_ONCE = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


class Written(NamedTuple):
    """What was written."""

    files: int
    bytes: int


@dataclass
class _File:
    names: int = 0
    size: int = 0


class Watch:
    """Watches a new folder, and all that come to be in it, while this lasts."""

    def __init__(self, folder: Path) -> None:
        self._root = str(folder)
        self._folders: dict[int, str] = {}
        self._untouched: set[str] = set()  # names that are new, and may be links
        self._count = 0
        self._inodes: dict[str, int] = {}
        self._alive: dict[int, _File] = {}
        self._files: list[_File] = []
        self._moving: dict[int, tuple[bool, tuple[int, _File] | None]] = {}
        self._overflown = False

    def __enter__(self) -> Watch:
        os.makedirs(self._root)
        self._notes = _libc.inotify_init1(_CLOEXEC)
        self._stop_read, self._stop_write = os.pipe()
        self._add(self._root)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.write(self._stop_write, b".")
        self._thread.join()
        for file in (self._notes, self._stop_read, self._stop_write):
            os.close(file)

    @property
    def written(self) -> Written:
        """What was written until this ended."""
        if self._overflown:
            raise SystemExit(f"too much went on in {self._root} to be counted")
        return Written(self._count, sum(file.size for file in self._files))

    def _watch(self) -> None:
        while True:
            ready, _, _ = select.select([self._notes, self._stop_read], [], [])
            if self._notes in ready:  # first, so that nothing is left when this ends
                self._take(os.read(self._notes, _AT_ONCE))
            elif self._stop_read in ready:
                return

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            watch, mask, cookie, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
            if mask & _OVERFLOW:
                self._overflown = True
            elif name and watch in self._folders:
                self._note(f"{self._folders[watch]}/{name}", mask, cookie)

    def _note(self, path: str, mask: int, cookie: int) -> None:
        if mask & _FOLDER:
            if mask & (_CREATE | _MOVED_TO):
                self._add(path)
            return
        if mask & (_DELETE | _MOVED_FROM):
            untouched = path in self._untouched
            self._untouched.discard(path)
            left = self._leave(path)
            if mask & _MOVED_FROM:
                self._moving[cookie] = (untouched, left)
            return
        if mask & _CREATE and path not in self._inodes:
            self._untouched.add(path)
        if mask & _MOVED_TO and cookie in self._moving:
            untouched, left = self._moving.pop(cookie)
            if untouched:
                self._untouched.add(path)
            if left is not None:
                self._alive.setdefault(*left)
        if mask & (_MODIFY | _CLOSE_WRITE):
            self._touch(path)
        self._see(path)

    def _touch(self, path: str) -> None:
        """A link is never written to under its new name: what is, is a file."""
        if path in self._untouched:
            self._untouched.remove(path)
            self._count += 1

    def _add(self, folder: str) -> None:
        watch = _libc.inotify_add_watch(self._notes, folder.encode(), _MASK)
        if watch < 0:
            return  # gone again
        self._folders[watch] = folder
        with os.scandir(folder) as entries:  # what was there before the watch
            for entry in entries:
                if entry.is_dir():
                    self._add(entry.path)
                elif entry.path not in self._inodes:
                    self._untouched.add(entry.path)
                    self._touch(entry.path)
                    self._see(entry.path)

    def _see(self, path: str) -> None:
        """Look at how large a file is."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        inode = status.st_ino
        if self._inodes.get(path) != inode:
            self._leave(path)
            self._inodes[path] = inode
            if inode not in self._alive:
                self._alive[inode] = _File()
                self._files.append(self._alive[inode])
            self._alive[inode].names += 1
        self._alive[inode].size = max(self._alive[inode].size, status.st_size)

    def _leave(self, path: str) -> tuple[int, _File] | None:
        """A name goes; what it was the name of."""
        inode = self._inodes.pop(path, None)
        if inode is None:
            return None
        file = self._alive[inode]
        file.names -= 1
        if not file.names:
            del self._alive[inode]  # the number may be another file's soon
        return inode, file

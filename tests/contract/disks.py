"""Disks that misbehave on request: one that is small, and one whose power fails."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from unittest.mock import patch

import pytest


class SmallDisk:
    """A file system of 32 MB in memory, mounted in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mounted = False

    def mount(self) -> None:
        if self._mounted:
            return
        self.folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
        self._mounted = True

    def unmount(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)
            self._mounted = False

    @contextmanager
    def full(self) -> Iterator[None]:
        """Nothing more can be written while this lasts."""
        ballast = self.folder / "ballast"
        with open(ballast, "wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                while _takes(file.fileno(), bytes(size)):
                    pass
        try:
            yield
        finally:
            ballast.unlink()


def _takes(descriptor: int, content: bytes) -> bool:
    try:
        return os.write(descriptor, content) == len(content)
    except OSError:
        return False


@contextmanager
def power_cut(root: Path) -> Iterator[None]:
    """What this process has not synced in a folder by the end of this is gone after it.

    The worst that a disk may do: a name is there if its folder was synced since, a content as it
    was when its file was synced. What was there before counts as synced.
    """
    disk = _Synced(root)
    with patch("os.fsync", disk.fsync), patch("os.fdatasync", disk.fsync):
        yield
    disk.restore()


class _Synced:
    """What of a folder has reached the disk, by inode."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = RLock()
        self._fsync = os.fsync
        self._folders: dict[int, list[tuple[str, int, bool]]] = {}
        self._files: dict[int, bytes] = {}
        self._held: list[int] = []  # open files, so that no inode is used for another one
        for path in (root, *root.rglob("*")):
            self._note(path)

    def fsync(self, file: int) -> None:
        with self._lock:
            self._fsync(file)
            self._note(Path(f"/proc/self/fd/{file}"))

    def _note(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        status = os.fstat(descriptor)
        self._held.append(descriptor)
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(descriptor) as entries:
                self._folders[status.st_ino] = [
                    (entry.name, entry.inode(), entry.is_dir()) for entry in entries
                ]
        else:
            self._files[status.st_ino] = os.pread(descriptor, status.st_size, 0)

    def restore(self) -> None:
        with self._lock:
            root = self._root.stat().st_ino
            for descriptor in self._held:
                os.close(descriptor)
            for path in self._root.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self._rebuild(self._root, root)

    def _rebuild(self, at: Path, inode: int) -> None:
        for name, entry, is_folder in self._folders.get(inode, []):
            if is_folder:
                (at / name).mkdir()
                self._rebuild(at / name, entry)
            else:
                (at / name).write_bytes(self._files.get(entry, b""))

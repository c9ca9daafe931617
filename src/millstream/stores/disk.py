"""The operations on files that stores need: small enough to be simulated by a test.

A simulated disk can lose, at a power cut, whatever was not synced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

_AT_ONCE = 1024  # chunks that one call may write


class FileGoneError(Exception):
    """A file does not exist (any more), though its store does."""


class Version(NamedTuple):
    """Changes when a file grows or is replaced."""

    size: int
    changed: int  # nanoseconds, by the clock of the file system


class Disk(Protocol):
    """Files and folders; errors are ``OSError``."""

    def create(self, path: str) -> int:
        """Create a file that must not exist yet, open for appending."""

    def open(self, path: str) -> int:
        """Open a file for reading."""

    def append(self, file: int, chunks: Sequence[bytes]) -> None:
        """Write all of them at the end; after an error a part of it may be there."""

    def read(self, file: int, offset: int, size: int) -> bytes:
        """As many bytes as there are, up to a size."""

    def sync(self, file: int) -> None:
        """Return when the file's contents are durable."""

    def truncate(self, file: int, size: int) -> None:
        """Cut off everything after a size."""

    def close(self, file: int) -> None:
        """Close a file."""

    def version(self, path: str) -> Version:
        """The size and age of a file."""

    def is_folder(self, path: str) -> bool:
        """Whether a path is a folder."""

    def is_same(self, one: str, other: str) -> bool:
        """Whether two names are links to the same file."""

    def list(self, folder: str) -> list[str]:
        """The names in a folder."""

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it, unless they exist."""

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder are durable."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; replaces a file of the new name."""

    def link(self, old: str, new: str) -> None:
        """Add a hard link to a file; ``FileExistsError`` if the name is taken."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Return when the names in a folder are durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class OsDisk:
    """The operating system itself."""

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def append(self, file: int, chunks: Sequence[bytes]) -> None:
        for first in range(0, len(chunks), _AT_ONCE):
            some = chunks[first : first + _AT_ONCE]
            written, size = os.writev(file, some), sum(map(len, some))
            if written < size:
                rest = memoryview(b"".join(some))
                while written < size:
                    written += os.write(file, rest[written:])

    def read(self, file: int, offset: int, size: int) -> bytes:
        data = os.pread(file, size, offset)
        if len(data) == size or not data:
            return data
        chunks = [data]
        read = len(data)
        while data and read < size:
            data = os.pread(file, size - read, offset + read)
            chunks.append(data)
            read += len(data)
        return b"".join(chunks)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def close(self, file: int) -> None:
        os.close(file)

    def version(self, path: str) -> Version:
        status = os.stat(path)
        return Version(status.st_size, status.st_mtime_ns)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_same(self, one: str, other: str) -> bool:
        return os.path.samefile(one, other)

    def list(self, folder: str) -> list[str]:
        return os.listdir(folder)

    def make_folder(self, path: str) -> None:
        made = []
        above = path
        while not os.path.isdir(above):
            made.append(above)
            above = os.path.dirname(above)
        os.makedirs(path, exist_ok=True)
        for folder in made:
            self.sync_folder(os.path.dirname(folder))

    def sync_folder(self, path: str) -> None:
        sync_folder(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

"""Files that are durable, and complete whenever they have a name, in the folders below a root.

What is written goes to a part file first, which is synced and then renamed to its name, or linked,
which decides races. The file ``format`` marks a root that is complete: without it the file system
is not mounted, and must not be mistaken for an empty store. Calls retry while it is unavailable.
"""

from __future__ import annotations

import errno
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from millstream.errors import ConfigError
from millstream.stores.disk import Disk, FileGoneError, OsDisk, Version
from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.store import StoreError, StoreFullError

T = TypeVar("T")

_MARKER = "format"
_PART = ".part-"
_CHUNK = 1 << 20
_ABANDONED = 24 * 3600.0  # seconds, of a part file whose writer has crashed
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNAVAILABLE = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ENODEV,
    errno.ENXIO,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


def no_space(place: str, why: object) -> StoreFullError:
    """The error of a store on a full disk."""
    return StoreFullError(f"no space is left for {place} ({why}); the store resumes when there is")


def translate_os_error(error: OSError, place: str) -> Exception:
    """An error of the operating system as one of a store, or as ``UnavailableError``."""
    if error.errno in _NO_SPACE:
        return no_space(place, error)
    if error.errno in _UNAVAILABLE:
        return UnavailableError(str(error))
    return StoreError(f"{place} cannot be used: {error}")


class DurableFolder:
    """The folders below a root, which all writers have mounted."""

    def __init__(
        self,
        root: str,
        folders: Sequence[str],
        format: str,
        writer: str,
        patience: float,
        disk: Disk | None = None,
    ) -> None:
        self._root, self._folders, self._format = root, folders, f"{format}\n".encode()
        self._patience = patience
        self._disk = disk if disk is not None else OsDisk()
        self._parts = itertools.count()
        # A writer may be open twice in a process: its name alone would not be unique.
        self._part = f"{_PART}{writer}-{uuid.uuid4().hex[:12]}"
        self.patiently(self._create)

    def _create(self) -> None:
        """Create the folders unless they exist; two processes may do so at once."""
        marker = f"{self._root}/{_MARKER}"
        try:
            found = self._read(marker)
        except (FileNotFoundError, NotADirectoryError):
            for folder in (self._root, *(f"{self._root}/{each}" for each in self._folders)):
                self._disk.make_folder(folder)
            # Last: it marks all the others as complete.
            part = self._write_part(self._root, [self._format])
            try:
                self._link(part, self._root, _MARKER)
            finally:
                self._discard(part)
            return
        if found != self._format:
            raise ConfigError(
                f"{self._root} is not a store of this version: {marker} contains {found[:40]!r} "
                f"instead of {self._format!r}"
            )

    def patiently(self, act: Callable[[], T]) -> T:
        """Do something that may be repeated; retry while the folder is unavailable."""
        return wait_for(self._root, self._patience, lambda: self.translated(act))

    def translated(self, act: Callable[[], T]) -> T:
        """Do something; raise errors of the operating system as errors of a store."""
        try:
            return act()
        except OSError as error:
            raise translate_os_error(error, self._root) from error

    def _missing(self, path: str, error: OSError) -> Exception:
        """The error for a missing file: is it only this file, or the whole store?"""
        try:
            self._disk.version(f"{self._root}/{_MARKER}")
        except OSError:
            return UnavailableError(str(error))
        if not self._disk.is_folder(os.path.dirname(path)):
            return UnavailableError(str(error))
        return FileGoneError(path)

    # -- reading -------------------------------------------------------------------------

    def has_folder(self, folder: str) -> bool:
        """Whether one of the folders exists."""

        def look() -> bool:
            self._disk.version(f"{self._root}/{_MARKER}")
            return self._disk.is_folder(f"{self._root}/{folder}")

        return self.patiently(look)

    def list(self, folder: str) -> list[str]:
        """The names in a folder."""
        names = self.patiently(lambda: self._disk.list(f"{self._root}/{folder}"))
        return [name for name in names if not name.startswith(_PART)]

    def version(self, folder: str, name: str) -> Version:
        """The size and age of a file."""
        path = self.path(folder, name)

        def look() -> Version:
            try:
                return self._disk.version(path)
            except FileNotFoundError as error:
                raise self._missing(path, error) from error

        return self.patiently(look)

    def read(self, folder: str, name: str, offset: int, size: int) -> bytes:
        """A part of a file; as much of it as there is."""
        path = self.path(folder, name)

        def read() -> bytes:
            try:
                return self._read(path, offset, size)
            except FileNotFoundError as error:
                raise self._missing(path, error) from error

        return self.patiently(read)

    def read_file(self, folder: str, name: str) -> bytes:
        """A whole file, of one version: another may replace it meanwhile."""
        path = self.path(folder, name)

        def read() -> bytes:
            try:
                return self._read_whole(path)
            except FileNotFoundError as error:
                raise self._missing(path, error) from error

        return self.patiently(read)

    def _read_whole(self, path: str) -> bytes:
        file = self._disk.open(path)
        try:
            found = bytearray()
            while chunk := self._disk.read(file, len(found), _CHUNK):
                found += chunk
            return bytes(found)
        finally:
            self._disk.close(file)

    def _read(self, path: str, offset: int = 0, size: int = 1 << 10) -> bytes:
        file = self._disk.open(path)
        try:
            return self._disk.read(file, offset, size)
        finally:
            self._disk.close(file)

    # -- writing -------------------------------------------------------------------------

    def write(self, folder: str, name: str, chunks: Sequence[bytes], *, sync: bool = True) -> None:
        """Write a whole file in the place of an older one; durable with its folder's ``sync``."""
        where = f"{self._root}/{folder}"

        def replace() -> None:
            part = self._write_part(where, chunks)
            try:
                self._disk.rename(part, f"{where}/{name}")
            except BaseException:
                self._discard(part)
                raise
            if sync:
                self._disk.sync_folder(where)

        self.patiently(replace)

    def write_once(self, folder: str, name: str, data: bytes) -> bool:
        """Write a whole file, durably, unless there is one; decides races."""
        where = f"{self._root}/{folder}"
        part = self.patiently(lambda: self._write_part(where, [data]))
        try:
            return self.patiently(lambda: self._link(part, where, name))
        finally:
            self._discard(part)

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove files, durably; those that do not exist are ignored."""
        removed = [*names]

        def remove() -> None:
            for name in removed:
                self._disk.remove(self.path(folder, name))
            self._disk.sync_folder(f"{self._root}/{folder}")

        self.patiently(remove)

    def sync(self, folder: str) -> None:
        """Make durable which files there are, also what others removed."""
        self.patiently(lambda: self._disk.sync_folder(f"{self._root}/{folder}"))

    def remove_parts(self, age: float = _ABANDONED) -> None:
        """Remove the part files that crashed writers left, if they are so many seconds old."""
        before = self.now() - age * 1e9
        for where in (self._root, *(f"{self._root}/{folder}" for folder in self._folders)):
            for name in self.patiently(lambda where=where: self._disk.list(where)):  # type: ignore[misc]
                if name.startswith(_PART):
                    with suppress(OSError):
                        if self._disk.version(f"{where}/{name}").changed < before:
                            self._disk.remove(f"{where}/{name}")

    def _write_part(self, where: str, data: Sequence[bytes]) -> str:
        """Write a durable file that has no name yet."""
        part = f"{where}/{self._part}-{next(self._parts)}"
        file = self._disk.create(part)
        try:
            self._disk.append(file, data)
            self._disk.sync(file)
        except BaseException:
            self._discard(part)
            raise
        finally:
            self._disk.close(file)
        return part

    def _link(self, part: str, where: str, name: str) -> bool:
        """Link a part to its name, durably; whether the name is its own now. May be repeated."""
        try:
            with suppress(FileExistsError):
                self._disk.link(part, f"{where}/{name}")
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise ConfigError(
                f"{self._root} is on a file system without hard links, which decide races; use "
                "another folder"
            ) from error
        # Not by what link() returned: over a network its answer may be lost and the call resent.
        won = self._disk.is_same(part, f"{where}/{name}")
        # Also for the loser, which may act on what the winner has not synced yet.
        self._disk.sync_folder(where)
        return won

    def _discard(self, part: str) -> None:
        """Remove a part file; one that cannot be removed now is removed when it is old."""
        with suppress(OSError):
            self._disk.remove(part)

    def now(self) -> int:
        """The time by the clock of ``version``, in nanoseconds."""

        def touch() -> int:
            part = self._write_part(self._root, [b""])
            try:
                return self._disk.version(part).changed
            finally:
                self._discard(part)

        return self.patiently(touch)

    def path(self, folder: str, name: str) -> str:
        """The path of a file."""
        return f"{self._root}/{folder}/{name}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root!r})"

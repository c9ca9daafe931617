"""A log in a folder: a local disk, or a network file system that all writers have mounted."""

from __future__ import annotations

import errno
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from millstream.errors import ConfigError
from millstream.stores.log.disk import Disk, OsDisk, Version
from millstream.stores.log.places import FOLDERS, Folder, Growing, SegmentGoneError
from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.store import StoreError, StoreFullError

T = TypeVar("T")

_FORMAT = b"millstream log 1\n"
_PART = ".part-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_AWAY = {
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


class _Open:
    """A file open for reading, until nobody reads it any more."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.file = disk.open(path)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            with suppress(OSError):
                self._disk.close(self.file)


class FolderPlace:
    """A folder with hard links; without the file ``format`` it is no log yet, or away."""

    appends = True
    _OPEN_FILES = 128

    def __init__(self, root: str, writer: str, patience: float, disk: Disk | None = None) -> None:
        self._root = root
        self._disk = disk if disk is not None else OsDisk()
        self._patience = patience
        self._parts = itertools.count()
        self._part = f"{_PART}{writer}-{uuid.uuid4().hex[:12]}"
        self._open: dict[tuple[str, str], _Open] = {}
        self._opening = threading.Lock()
        self.patiently(self._make)

    def _make(self) -> None:
        marker = f"{self._root}/format"
        try:
            self._disk.version(marker)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
        else:
            return
        for folder in FOLDERS:
            self._disk.make_folder(f"{self._root}/{folder}")
        part = self._write_part(self._root, [_FORMAT])
        try:
            self._disk.rename(part, marker)
        finally:
            self._disk.remove(part)
        self._disk.sync_folder(self._root)

    def patiently(self, act: Callable[[], T]) -> T:
        return wait_for(self._root, self._patience, lambda: self._told(act))

    def _told(self, act: Callable[[], T]) -> T:
        """Call, and say of an operating system's error what it means."""
        try:
            return act()
        except OSError as error:
            raise self.meaning(error) from error

    def meaning(self, error: OSError) -> Exception:
        """What an error of the operating system means for us."""
        if error.errno in _FULL:
            return StoreFullError(f"there is no space left for {self._root}: {error}")
        if error.errno in _AWAY:
            return UnavailableError(str(error))
        return StoreError(f"{self._root} cannot be used: {error}")

    def _missing(self, path: str, error: OSError) -> Exception:
        """A file is missing: is it only this file, or is the place away?"""
        try:
            self._disk.version(f"{self._root}/format")
        except OSError:
            return UnavailableError(str(error))
        return SegmentGoneError(path)

    def list(self, folder: Folder) -> list[str]:
        names = self.patiently(lambda: self._disk.list(f"{self._root}/{folder}"))
        return [name for name in names if not name.startswith(_PART)]

    def version(self, folder: Folder, name: str) -> Version:
        path = self.path(folder, name)

        def look() -> Version:
            try:
                return self._disk.version(path)
            except FileNotFoundError as error:
                raise self._missing(path, error) from error

        return self.patiently(look)

    def read(self, folder: Folder, name: str, offset: int, size: int) -> bytes:
        try:
            # Held until it is read, whoever forgets it meanwhile.
            opened = self._open.get((folder, name)) or self._file(folder, name)
            return self._disk.read(opened.file, offset, size)
        except (OSError, UnavailableError):
            with self._opening:
                self._open.pop((folder, name), None)
            return self.patiently(lambda: self._read(folder, name, offset, size))

    def _read(self, folder: Folder, name: str, offset: int, size: int) -> bytes:
        opened = self._file(folder, name)
        return self._disk.read(opened.file, offset, size)

    def _file(self, folder: Folder, name: str) -> _Open:
        path = self.path(folder, name)
        try:
            file = _Open(self._disk, path)
        except FileNotFoundError as error:
            raise self._missing(path, error) from error
        if folder == "segments":
            with self._opening:
                while len(self._open) >= self._OPEN_FILES:
                    del self._open[next(iter(self._open))]
                self._open[folder, name] = file
        return file

    def grow(self, name: str, pieces: Sequence[bytes]) -> Growing:
        return _GrowingFile(self, self._disk, f"{self._root}/segments", name, pieces)

    def _write_part(self, folder: str, pieces: Sequence[bytes]) -> str:
        part = f"{folder}/{self._part}-{next(self._parts)}"
        file = self._disk.create(part)
        try:
            self._disk.append(file, pieces)
            self._disk.sync(file)
        except BaseException:
            with suppress(OSError):
                self._disk.remove(part)
            raise
        finally:
            self._disk.close(file)
        return part

    def write(self, folder: Folder, name: str, pieces: Sequence[bytes]) -> None:
        where = f"{self._root}/{folder}"

        def replace() -> None:
            part = self._write_part(where, pieces)
            self._disk.rename(part, f"{where}/{name}")
            self._disk.sync_folder(where)

        self.patiently(replace)

    def write_once(self, folder: Folder, name: str, data: bytes) -> bool:
        where = f"{self._root}/{folder}"
        final = f"{where}/{name}"
        part = self.patiently(lambda: self._write_part(where, [data]))

        def link() -> bool:
            try:
                self._disk.link(part, final)
                won = True
            except FileExistsError:
                # Over a network an answer may be lost and the call be sent again: what is there
                # may be ours. The data holds something random, so equal bytes are the same file.
                won = self._holds(final, data)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise ConfigError(
                        f"{self._root} is on a file system without hard links, which decide "
                        "races; use another folder"
                    ) from error
                raise
            # Also for the loser, who may act on what the winner has not synced yet.
            self._disk.sync_folder(where)
            return won

        try:
            return self.patiently(link)
        finally:
            with suppress(OSError):
                self._disk.remove(part)

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            file = _Open(self._disk, path)
        except FileNotFoundError:
            return False
        return self._disk.read(file.file, 0, len(data) + 1) == data

    def remove(self, folder: Folder, names: Iterable[str]) -> None:
        gone = list(names)

        def remove() -> None:
            for name in gone:
                self._disk.remove(f"{self._root}/{folder}/{name}")
            self._disk.sync_folder(f"{self._root}/{folder}")

        self.patiently(remove)
        self.forget(gone)

    def sync(self, folder: Folder) -> None:
        self.patiently(lambda: self._disk.sync_folder(f"{self._root}/{folder}"))

    def now(self) -> int:
        def touch() -> int:
            part = self._write_part(self._root, [b""])
            try:
                return self._disk.version(part).changed
            finally:
                self._disk.remove(part)

        return self.patiently(touch)

    def tidy(self, age: float) -> None:
        now = self.now()
        for folder in ("", *(f"/{folder}" for folder in FOLDERS)):
            where = f"{self._root}{folder}"
            for name in self.patiently(lambda where=where: self._disk.list(where)):  # type: ignore[misc]
                if name.startswith(_PART):
                    with suppress(OSError):
                        if now - self._disk.version(f"{where}/{name}").changed > age * 1e9:
                            self._disk.remove(f"{where}/{name}")

    def path(self, folder: Folder, name: str) -> str:
        return f"{self._root}/{folder}/{name}"

    def forget(self, names: Iterable[str]) -> None:
        with self._opening:
            for name in names:
                self._open.pop(("segments", name), None)

    def close(self) -> None:
        with self._opening:
            self._open.clear()

    def __repr__(self) -> str:
        return f"FolderPlace({self._root!r})"


class _GrowingFile:
    """A segment file that is being appended to."""

    def __init__(
        self, place: FolderPlace, disk: Disk, folder: str, name: str, pieces: Sequence[bytes]
    ) -> None:
        self._place, self._disk = place, disk
        self._closed = self._broken = False
        self._file = place._told(lambda: disk.create(f"{folder}/{name}"))
        try:
            self.append(pieces)
            place._told(lambda: disk.sync_folder(folder))
        except BaseException:
            self.close()
            with suppress(OSError):
                disk.remove(f"{folder}/{name}")
            raise

    def append(self, pieces: Sequence[bytes]) -> None:
        def write() -> None:
            self._disk.append(self._file, pieces)
            self._broken = True
            self._disk.sync(self._file)
            self._broken = False

        self._place._told(write)

    def undo(self, size: int) -> None:
        def cut() -> None:
            if self._broken:
                raise OSError(errno.EIO, "a sync failed, and is not to be trusted any more")
            self._disk.truncate(self._file, size)
            self._disk.sync(self._file)

        self._place._told(cut)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                self._disk.close(self._file)

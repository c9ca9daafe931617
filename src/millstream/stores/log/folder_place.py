"""A log in a folder: a local disk, or a network file system that all writers have mounted."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress

from millstream.stores.disk import Disk
from millstream.stores.durable_folder import DurableFolder
from millstream.stores.log.places import FOLDERS, Growing
from millstream.stores.retries import UnavailableError


class _Open:
    """A file that is open for reading, closed when it is no longer referenced."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.file = disk.open(path)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            with suppress(OSError):
                self._disk.close(self.file)


class FolderPlace(DurableFolder):
    """A folder whose segments are appended to, and stay open for reading."""

    appends = True
    _OPEN_FILES = 128

    def __init__(self, root: str, writer: str, patience: float, disk: Disk | None = None) -> None:
        super().__init__(root, FOLDERS, "millstream log 1", writer, patience, disk)
        self._open: dict[str, _Open] = {}
        self._opening = threading.Lock()

    def read(self, folder: str, name: str, offset: int, size: int) -> bytes:
        if folder != "segments":
            return super().read(folder, name, offset, size)
        try:
            # Referenced until it is read, even if another thread drops it meanwhile.
            opened = self._open.get(name) or self._open_segment(name)
            return self._disk.read(opened.file, offset, size)
        except (OSError, UnavailableError):
            self.close_segments([name])
            return self.patiently(lambda: self._read_segment(name, offset, size))

    def _read_segment(self, name: str, offset: int, size: int) -> bytes:
        opened = self._open_segment(name)
        return self._disk.read(opened.file, offset, size)

    def _open_segment(self, name: str) -> _Open:
        path = self.path("segments", name)
        try:
            file = _Open(self._disk, path)
        except FileNotFoundError as error:
            raise self._missing(path, error) from error
        with self._opening:
            while len(self._open) >= self._OPEN_FILES:
                del self._open[next(iter(self._open))]
            self._open[name] = file
        return file

    def grow(self, name: str, chunks: Sequence[bytes]) -> Growing:
        return _GrowingFile(self, self._disk, f"{self._root}/segments", name, chunks)

    def remove(self, folder: str, names: Iterable[str]) -> None:
        removed = [*names]
        super().remove(folder, removed)
        self.close_segments(removed)

    def close_segments(self, names: Iterable[str]) -> None:
        with self._opening:
            for name in names:
                self._open.pop(name, None)

    def close(self) -> None:
        with self._opening:
            self._open.clear()


class _GrowingFile:
    """A segment file that is being appended to."""

    def __init__(
        self, place: FolderPlace, disk: Disk, folder: str, name: str, chunks: Sequence[bytes]
    ) -> None:
        self._place, self._disk = place, disk
        self._closed = self._broken = False
        self._file = place.translated(lambda: disk.create(f"{folder}/{name}"))
        try:
            self.append(chunks)
            place.translated(lambda: disk.sync_folder(folder))
        except BaseException:
            self.close()
            with suppress(OSError):
                disk.remove(f"{folder}/{name}")
            raise

    def append(self, chunks: Sequence[bytes]) -> None:
        def write() -> None:
            self._disk.append(self._file, chunks)
            self._broken = True
            self._disk.sync(self._file)
            self._broken = False

        self._place.translated(write)

    def undo(self, size: int) -> None:
        def cut() -> None:
            if self._broken:
                raise OSError(errno.EIO, "a sync failed, so that its file is not used any more")
            self._disk.truncate(self._file, size)
            self._disk.sync(self._file)

        self._place.translated(cut)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                self._disk.close(self._file)

"""A log in an object store, through fsspec: without appends or renames, and few listings.

Every group of puts becomes a segment of its own, uploaded at once; compaction merges them.
Races are decided by the store's exclusive creation (``If-None-Match`` on S3).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import fsspec  # type: ignore[import-untyped]

from millstream.errors import ConfigError
from millstream.stores.disk import FileGoneError, Version
from millstream.stores.log.places import Growing
from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.store import StoreError

T = TypeVar("T")


class ObjectPlace:
    """A prefix in an object store."""

    appends = False

    def __init__(self, url: str, patience: float) -> None:
        self._url, self._patience = url, patience
        try:
            self._fs: Any
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"log+{url} cannot be opened: {error}") from error
        self._root = self._root.rstrip("/")
        _check_exclusive(self._fs, url)

    def patiently(self, act: Callable[[], T]) -> T:
        return wait_for(self._url, self._patience, lambda: self._translated(act))

    def _translated(self, act: Callable[[], T]) -> T:
        """Do something; an error that is not about a file means that the store is unavailable."""
        try:
            return act()
        except FileNotFoundError as error:
            raise FileGoneError(str(error)) from error
        except (FileGoneError, UnavailableError, StoreError, FileExistsError):
            raise
        except (PermissionError, NotImplementedError, TypeError, ValueError) as error:
            raise StoreError(f"{self._url} cannot be used: {error}") from error
        except Exception as error:
            raise UnavailableError(f"{type(error).__name__}: {error}") from error

    def list(self, folder: str) -> list[str]:
        def look() -> list[str]:
            try:
                found = self._fs.ls(f"{self._root}/{folder}", detail=False, refresh=True)
            except FileNotFoundError:
                return []
            except TypeError:
                found = self._fs.ls(f"{self._root}/{folder}", detail=False)
            return [str(path).rstrip("/").rpartition("/")[2] for path in found]

        return self.patiently(look)

    def version(self, folder: str, name: str) -> Version:
        info = self.patiently(lambda: self._fs.info(self.path(folder, name)))
        changed = info.get("LastModified") or info.get("mtime") or info.get("created")
        seconds = changed.timestamp() if hasattr(changed, "timestamp") else float(changed or 0)
        return Version(int(info["size"]), int(seconds * 1e9))

    def read(self, folder: str, name: str, offset: int, size: int) -> bytes:
        path = self.path(folder, name)

        def fetch() -> bytes:
            return bytes(self._fs.cat_file(path, start=offset, end=offset + size))

        return self.patiently(fetch)

    def grow(self, name: str, chunks: Sequence[bytes]) -> Growing:
        path, data = self.path("segments", name), b"".join(chunks)
        self._translated(lambda: self._fs.pipe_file(path, data))
        return _Uploaded()

    def write(self, folder: str, name: str, chunks: Sequence[bytes]) -> None:
        data = b"".join(chunks)
        self.patiently(lambda: self._fs.pipe_file(self.path(folder, name), data))

    def write_once(self, folder: str, name: str, data: bytes) -> bool:
        path = self.path(folder, name)

        def create() -> bool:
            try:
                self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                # An earlier attempt may have succeeded, and its answer been lost. The data contains
                # a random salt, so equal bytes are our own.
                return bool(self._fs.cat_file(path) == data)
            return True

        return self.patiently(create)

    def remove(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            path = self.path(folder, name)
            with suppress(FileGoneError):
                self.patiently(lambda path=path: self._fs.rm_file(path))  # type: ignore[misc]

    def sync(self, folder: str) -> None:
        """Nothing to do: what an object store has acknowledged is durable."""

    def remove_parts(self, age: float) -> None:
        """Nothing to do: an upload is complete or absent."""

    def now(self) -> int:
        return time.time_ns()

    def path(self, folder: str, name: str) -> str:
        return f"{self._root}/{folder}/{name}"

    def close_segments(self, names: Iterable[str]) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""

    def __repr__(self) -> str:
        return f"ObjectPlace({self._url!r})"


class _Uploaded:
    """A segment that was uploaded at once."""

    def append(self, chunks: Sequence[bytes]) -> None:
        raise StoreError("an object cannot be appended to")

    def undo(self, size: int) -> None:
        raise StoreError("an object cannot be truncated")

    def close(self) -> None:
        """It is complete."""


def _check_exclusive(fs: Any, url: str) -> None:
    """Reject file systems in which two processes may both create the same object."""
    pipe = getattr(fs, "_pipe_file", None) or fs.pipe_file
    plain = type(fs).pipe_file is fsspec.AbstractFileSystem.pipe_file
    if plain or "mode" not in inspect.signature(pipe).parameters:
        raise ConfigError(
            f"fsspec cannot create files exclusively in {url.partition(':')[0]}://, which "
            "decides races; use a store that can, such as s3:// or gs://, or a folder"
        )

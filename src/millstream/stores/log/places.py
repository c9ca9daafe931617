"""Where the files of a log are: what it needs of a folder or an object store.

A place has three folders: ``segments``, ``once`` (what ``put_if_absent`` wrote) and ``index``
(flushed indexes, which only make opening faster).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from millstream.stores.disk import Version

T = TypeVar("T")

FOLDERS = ("segments", "once", "index")


class Growing(Protocol):
    """A segment that is being written."""

    def append(self, chunks: Sequence[bytes]) -> None:
        """Write at the end, durably."""

    def undo(self, size: int) -> None:
        """Cut off what a failed append may have left after a size."""

    def close(self) -> None:
        """Nothing more will be written."""


class Files(Protocol):
    """Files in folders. Retries while unavailable; ``FileGoneError`` for a missing file."""

    def list(self, folder: str) -> list[str]:
        """The names in a folder."""

    def version(self, folder: str, name: str) -> Version:
        """The size and age of a file."""

    def read(self, folder: str, name: str, offset: int, size: int) -> bytes:
        """A part of a file; as much of it as there is."""

    def write_once(self, folder: str, name: str, data: bytes) -> bool:
        """Write a whole file, durably, unless there is one; decides races."""

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove files, durably."""

    def path(self, folder: str, name: str) -> str:
        """The path of a file, for messages."""


class Place(Files, Protocol):
    """The files of a log, in three folders."""

    appends: bool  # whether a segment can grow; otherwise it is written at once

    def grow(self, name: str, chunks: Sequence[bytes]) -> Growing:
        """Begin a segment with some data, durably. Does not retry."""

    def write(self, folder: str, name: str, chunks: Sequence[bytes]) -> None:
        """Write a whole file, durably, in the place of an older one; readers see either."""

    def sync(self, folder: str) -> None:
        """Make durable which files there are, also what others removed."""

    def remove_parts(self, age: float) -> None:
        """Remove what crashed writers left unfinished, if it is so many seconds old."""

    def now(self) -> int:
        """The time by the clock of ``version``, in nanoseconds."""

    def patiently(self, act: Callable[[], T]) -> T:
        """Do something that may be repeated; retry while the place is unavailable."""

    def close_segments(self, names: Iterable[str]) -> None:
        """Close segments that are open for reading."""

    def close(self) -> None:
        """Close everything."""

"""Where a log is kept: what is asked of a folder or an object store.

A place has three folders: ``segments``, ``once`` (what ``put_if_absent`` wrote) and ``index``
(flushed indexes, which are only ever a help). A folder without the file ``format`` is no log yet,
or a mount that is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from millstream.stores.log.disk import Version

T = TypeVar("T")
Folder = Literal["segments", "once", "index"]

FOLDERS: tuple[Folder, ...] = ("segments", "once", "index")


class SegmentGoneError(Exception):
    """A file is not there (any more), though the place is."""


class Growing(Protocol):
    """A segment that is being written."""

    def append(self, pieces: Sequence[bytes]) -> None:
        """Write at the end, durably."""

    def undo(self, size: int) -> None:
        """Cut off what an append that failed may have left behind a size."""

    def close(self) -> None:
        """Nothing more will be written."""


class Place(Protocol):
    """Files in three folders. Retries while unavailable; ``SegmentGoneError`` if a file is gone."""

    appends: bool  # whether a segment can grow; otherwise it is written once, whole

    def list(self, folder: Folder) -> list[str]:
        """The names in a folder."""

    def version(self, folder: Folder, name: str) -> Version:
        """Whether a file changed since it was looked at."""

    def read(self, folder: Folder, name: str, offset: int, size: int) -> bytes:
        """A piece of a file; as much of it as there is."""

    def grow(self, name: str, pieces: Sequence[bytes]) -> Growing:
        """Begin a segment with some data, durably. Does not wait for a place that is away."""

    def write(self, folder: Folder, name: str, pieces: Sequence[bytes]) -> None:
        """Write a whole file, durably, in the place of an older one; never seen half-written."""

    def write_once(self, folder: Folder, name: str, data: bytes) -> bool:
        """Write a whole file, durably, unless there is one; decides races."""

    def remove(self, folder: Folder, names: Iterable[str]) -> None:
        """Remove files, durably."""

    def sync(self, folder: Folder) -> None:
        """Make durable which files there are, also what others removed."""

    def tidy(self, age: float) -> None:
        """Remove what crashed writers left unfinished, if it is so many seconds old."""

    def now(self) -> int:
        """The time by the clock that ``version`` goes by, in nanoseconds."""

    def path(self, folder: Folder, name: str) -> str:
        """How to call a file in a message."""

    def patiently(self, act: Callable[[], T]) -> T:
        """Do something that may be repeated; wait while the place is away."""

    def forget(self, names: Iterable[str]) -> None:
        """Let go of what is held open of segments."""

    def close(self) -> None:
        """Let go of everything."""

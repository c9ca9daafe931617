"""The segments that this process has read, and how far."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from millstream.stores.disk import Version
from millstream.stores.log.format import HEADER_BYTES, Header


@dataclass
class Segment:
    """A segment, and how far its records are in the index."""

    number: int  # in this process; rows of the index refer to it
    name: str
    header: Header
    synced: int = HEADER_BYTES  # everything before it is synced and indexed
    sealed: bool = False
    growing: bool = False  # this process appends to it
    seen: Version | None = None  # when it was last read
    damaged: bool = False
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        self.seed = self.header.seed

    @property
    def age(self) -> tuple[int, str]:
        """Of two records with the same stamp, the one in the younger segment is current."""
        return self.header.created, self.name


class Catalogue:
    """All segments by number and by name; numbers are never reused.

    The writer, the compactor and readers use it from threads of their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[int, Segment] = {}
        self._names: dict[str, Segment] = {}
        self._next = 0

    def __getitem__(self, number: int) -> Segment:
        return self._all[number]

    def get(self, number: int) -> Segment | None:
        """A segment, unless it was removed."""
        return self._all.get(number)

    def named(self, name: str) -> Segment | None:
        """The segment of a name."""
        return self._names.get(name)

    def add(
        self, name: str, header: Header, number: int | None = None, *, growing: bool = False
    ) -> Segment:
        """Register a segment, under a number that rows refer to already or under the next.

        A ``growing`` one is registered before its file exists: else a refresh would find the file,
        and register it as another writer's.
        """
        with self._lock:
            chosen = self._next if number is None else number
            segment = Segment(chosen, name, header, growing=growing)
            self._next = max(self._next, segment.number + 1)
            self._all[segment.number] = self._names[name] = segment
            return segment

    def drop(self, segments: list[Segment]) -> None:
        """Remove segments that were removed from the disk."""
        with self._lock:
            for segment in segments:
                self._all.pop(segment.number, None)
                self._names.pop(segment.name, None)

    def all(self) -> list[Segment]:
        """All segments."""
        with self._lock:
            return list(self._all.values())

"""Reads of committed state: single keys, and scans of a job as of one epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.errors import MillstreamError
from millstream.wire.commit import Commit
from millstream.wire.request import Request
from millstream.wire.scan_filters import ScanFilter


@dataclass(frozen=True)
class FoundStates:
    """The states of keys at a committed epoch, as a pickled list; None for keys without state."""

    epoch: int
    values: bytes


@dataclass(frozen=True)
class GetStates(Request[FoundStates]):
    """Reads the state of keys whose slots the node owns, at a commit or a later one."""

    job: int
    keys: tuple[Any, ...]
    slots: tuple[int, ...]
    ring: int
    committed: Commit


@dataclass(frozen=True)
class OpenScan(Request[None]):
    """Opens a view of a job at a commit; later epochs do not change what it shows.

    A node that has missed the placement of version ``ring`` fetches it first: a first assignment
    would close the view.
    """

    scan: str
    job: int
    committed: Commit
    ring: int


@dataclass(frozen=True)
class ReadScan(Request[list[tuple[Any, bytes]]]):
    """Reads the keys of some slots, with their pickled state, from an open view.

    With a filter, those that it selects.
    """

    scan: str
    slots: range
    ring: int
    where: ScanFilter | None = None


@dataclass(frozen=True)
class CloseScan(Request[None]):
    """Closes a view."""

    scan: str


class ScanBrokenError(MillstreamError):
    """A scan cannot continue: no node holds the state of its epoch any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a scan of state was aborted: {self.reason}; scan again"

"""Reads of committed state: single keys, and scans of a job as of one epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.errors import MillstreamError
from millstream.wire.commit import Commit
from millstream.wire.request import Request


@dataclass(frozen=True)
class GetState(Request[bytes]):
    """Reads the committed state of a key, pickled; None if the node does not own its slot."""

    job: int
    key: Any
    ring: int


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
    """Reads the keys of some slots, with their pickled state, from an open view."""

    scan: str
    slots: range
    ring: int


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

"""What the HTTP API serves: a run, as far as its contract goes.

``live_run`` implements it in the driver; errors are ``MillstreamError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.api.contract import (
    Change,
    Events,
    History,
    ScanQuery,
    SlotRange,
    Snapshot,
    StateItems,
    StateJob,
    TopQuery,
)
from millstream.errors import MillstreamError


class ContinuationGoneError(MillstreamError):
    """The continuation of a scan is unknown, was used, or has expired."""

    def __str__(self) -> str:
        return (
            "this continuation was used before, has expired, or belongs to another job; scan again "
            "from the start"
        )


class ServedRun(Protocol):
    """A run that can be looked at and changed; its methods are called from several threads."""

    @property
    def workflow(self) -> str: ...

    def snapshot(self) -> Snapshot:
        """The run now; the same object as long as nothing but the time has changed."""

    def history(self, since: float) -> History:
        """The time series after a time."""

    def events(self, since: int, limit: int) -> Events:
        """The newest events with a number above ``since``, at most ``limit``."""

    def state_jobs(self) -> list[StateJob]:
        """The jobs whose state can be read."""

    def get_many(self, job: str, keys: Sequence[str]) -> StateItems:
        """The state of keys, in the order asked for."""

    def scan(self, query: ScanQuery) -> StateItems:
        """A page of a scan."""

    def top(self, query: TopQuery) -> StateItems:
        """The keys with the largest values."""

    def scale(self, nodes: int, *, dry_run: bool) -> Change:
        """Set how many nodes shall be active."""

    def rebalance(self, *, dry_run: bool) -> Change:
        """Give every node a fair share of the load."""

    def drain(self, node: str, *, dry_run: bool) -> Change:
        """Let a node give up its slots and leave."""

    def move(self, slots: Sequence[SlotRange], to: str, *, dry_run: bool) -> Change:
        """Make a node the owner of slots."""

    def stop(self, *, dry_run: bool) -> Change:
        """Finish the epoch under way, then end the run, in the background."""

"""What the processes of a run need from the world: calls, feeds, time, threads and locks.

The coordinator, the nodes and the feeders are written against this protocol. Arrow Flight and
the machine's clock implement it in production (:mod:`millstream.wire.flight_net`), a
deterministic world with seeded faults in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from millstream.wire.feed import End, Feed
from millstream.wire.request import Request

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class Delivery:
    """A feed to one node: where it listens, and the header of the feed as that node gets it."""

    address: str
    header: Feed


class Net(Protocol):
    """The world as one process of a run sees it."""

    def call(self, address: str, request: Request[A], timeout: float = 30.0) -> A:
        """Send a request to a server and return its answer.

        Raises the server's own ``MillstreamError``, or ``UnreachableError`` if there is no answer:
        then the request may have been executed or not.
        """

    def feed(
        self,
        primary: Delivery,
        copies: Sequence[Delivery],
        rows: pa.Table,
        end: End,
        abandoned: Callable[[], bool],
    ) -> list[pa.RecordBatch]:
        """Stream blocks and their end marker to a primary, and the same to its backups.

        Returns the primary's outputs; failures of the copies are not reported. While the primary
        does not answer, ``abandoned`` is called about once a second; if it returns true, the feed
        is cancelled.
        """

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Run calls concurrently; return the result or the exception of each."""

    def spawn(self, function: Callable[[], None], name: str) -> None:
        """Run a function in the background until it returns or the process ends."""

    def lock(self) -> AbstractContextManager[Any]:
        """Create a reentrant lock of this process."""

    def sleep(self, seconds: float) -> None:
        """Block for so many seconds."""

    def now(self) -> float:
        """Read a monotonic clock, in seconds."""

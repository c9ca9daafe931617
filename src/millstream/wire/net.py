"""What the drivers of a run need from the world: calls, feeds, time, threads and locks.

The coordinator, the nodes and the feeders are written against this protocol. Arrow Flight and
the machine's clock stand behind it in production (:mod:`millstream.wire.flight_net`), a
deterministic world with seeded faults in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

T = TypeVar("T")


@dataclass(frozen=True)
class Delivery:
    """A feed to one node: where it listens, and the header of the feed as that node gets it."""

    address: str
    header: Any


class Net(Protocol):
    """The world as one process of a run sees it."""

    def call(self, address: str, action: str, body: object = None, timeout: float = 30.0) -> Any:
        """Call an action of a server and give its answer.

        Raises the server's own ``MillstreamError``, or ``UnreachableError`` without an answer:
        the action may have happened, or not.
        """

    def feed(
        self,
        primary: Delivery,
        copies: Sequence[Delivery],
        rows: pa.Table,
        end: Any,
        abandoned: Callable[[], bool],
    ) -> list[pa.RecordBatch]:
        """Stream blocks and their end marker to a primary, and the same to its backups.

        Gives the primary's outputs; what becomes of the copies is not told. While the primary is
        silent, ``abandoned`` is asked about once a second; when true, the call is given up.
        """

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Run calls side by side; each gives its result or the exception that ended it."""

    def spawn(self, function: Callable[[], None], name: str) -> None:
        """Run a function in the background until it returns or the process ends."""

    def lock(self) -> AbstractContextManager[Any]:
        """A new reentrant lock of this process."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def now(self) -> float:
        """Seconds of a clock that never goes back."""

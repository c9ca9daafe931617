"""The links of a simulated world: servers, delays of messages, and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from millstream.sim.kernel import Kernel
from millstream.sim.tasks import Process, Task

Answer = Callable[[Any], object]
Exchange = Callable[[Any, Iterator[Any]], list[pa.RecordBatch]]

_COMMON_DELAY = 0.001
_RARELY = 0.05


@dataclass(frozen=True)
class Faults:
    """How likely it is that a message or a step meets a fault."""

    lose_request: float = 0.0
    lose_answer: float = 0.0  # after the request was executed
    duplicate: float = 0.0  # the server executes a call twice, the second time later
    break_feed: float = 0.0  # per receiver: it gets only the beginning
    slow: float = 0.0  # a message takes up to World.slow_delay
    stall: float = 0.0  # a task waits up to World.slow_delay before a step


@dataclass(frozen=True)
class Server:
    process: Process
    answer: Answer
    exchange: Exchange | None


class UnderWay(Protocol):
    """A request that a server has begun to execute and has not answered."""

    sender: Process
    server: Process | None

    def crashed(self) -> None:
        """Its sender or its server has crashed."""


class Links(Kernel):
    """The servers of a world's processes, the links between them, and their faults."""

    def __init__(self, seed: int, trace_limit: int = 10_000) -> None:
        super().__init__(seed, trace_limit)
        self.faults = Faults()
        self.max_delay = 0.05
        self.slow_delay = 5.0
        self.bandwidth: float | None = None  # bytes a second
        self._servers: dict[str, Server] = {}
        self._cuts: set[tuple[str, str]] = set()
        self.under_way: dict[int, UnderWay] = {}

    def serve(
        self, name: str, address: str, answer: Answer, exchange: Exchange | None = None
    ) -> None:
        """Let a process listen at an address.

        Every call runs ``answer(request)`` as a task of the process, every feed
        ``exchange(header, blocks)``; the last of the blocks is the end marker, unless the sender
        broke off. A ``MillstreamError`` is raised to the caller, anything else stops the world.
        """
        if not self.alive(name):
            raise ValueError(f"no process {name} is alive: create it first")
        self._servers[address] = Server(self._processes[name], answer, exchange)

    def crash(self, name: str) -> None:
        """End a process at once; what it was sending or serving breaks."""
        process = self._processes.get(name)
        super().crash(name)
        for exchange in list(self.under_way.values()):
            if process in (exchange.server, exchange.sender):
                exchange.crashed()

    def cut(self, source: str, target: str) -> None:
        """Lose every message from one process to another; the way back stays open."""
        self.note(f"{source} -/-> {target} cut")
        self._cuts.add((source, target))

    def mend(self, source: str, target: str) -> None:
        """Undo a cut."""
        self.note(f"{source} ---> {target} mended")
        self._cuts.discard((source, target))

    def is_cut(self, source: str, target: str) -> bool:
        """Whether messages from one process to another are lost."""
        return (source, target) in self._cuts

    def delay(self) -> float:
        """How long the next message takes."""
        if self.maybe(self.faults.slow):
            return self.random.random() * self.slow_delay
        if self.maybe(_RARELY):
            return self.random.random() * self.max_delay
        return _COMMON_DELAY * (0.5 + self.random.random())

    def transfer(self, size: int) -> float:
        """How long so many bytes take, in addition to the delay of any message."""
        return 0.0 if self.bandwidth is None else size / self.bandwidth

    def step(self, what: str, process: Process | None = None) -> Task:
        """A step, which may be delayed."""
        task = super().step(what, process)
        if self.maybe(self.faults.stall):
            self.wait("for a busy core", self.random.random() * self.slow_delay)
        return task

    def name_at(self, address: str) -> str:
        """Who listens at an address."""
        server = self._servers.get(address)
        return server.process.name if server else address

    def server_at(self, address: str) -> Server | None:
        """The server at an address, if its process lives."""
        server = self._servers.get(address)
        return server if server and server.process.alive else None

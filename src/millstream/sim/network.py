"""Calls and feeds between the processes of a simulated world, and the ``Net`` that makes them.

Messages take random times, so they overtake each other. Nothing is shared between processes:
messages cross pickled, and rows are immutable. Which faults happen is up to the scenario.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.sim.brief import brief
from millstream.sim.links import Links, Server
from millstream.sim.promises import Promise, SimLock
from millstream.sim.tasks import Crashed, Process
from millstream.wire.calls import UnreachableError
from millstream.wire.feed import End
from millstream.wire.net import Delivery
from millstream.wire.request import Request

A = TypeVar("A")
T = TypeVar("T")

# Arrow Flight's messages for the same events.
REFUSED = "Flight returned unavailable error, with message: failed to connect to all addresses"
CLOSED = "Flight returned unavailable error, with message: Stream removed (Socket closed)"
LATE = "Flight returned timeout error, with message: Deadline Exceeded"
ABANDONED = "abandoned"

# TCP: a feed over a cut link tries again this often; half-open ends are noticed this late.
_RETRANSMIT = 0.5
_NOTICED = 10.0


class _Exchange:
    """One request or feed to a server and its answer, or its failure."""

    def __init__(self, world: Links, sender: Process, address: str, message: object) -> None:
        self.world, self.sender, self.address = world, sender, address
        self.what, self.text = type(message).__name__, brief(message)
        self.answer: Promise[Any] = Promise(world)
        self.server: Process | None = None
        self.serial = world.serial()
        self.size = 0  # of the answer, in bytes
        self._forfeited = False

    def fail(self, reason: str, within: float = 0.0) -> None:
        """Let the caller see a failure, now or soon."""
        error = UnreachableError(self.address, reason)
        if within:
            self.world.at(self.world.random.random() * within, partial(self.answer.fail, error))
        else:
            self.answer.fail(error)

    def crashed(self) -> None:
        """The server, or the sender, has crashed."""
        self.world.under_way.pop(self.serial, None)
        self.fail(CLOSED, within=self.world.max_delay)

    def begin(self, server: Server, work: Callable[[], object], answered: bool = True) -> None:
        """Start the task of the server that executes the request."""
        world = self.world
        world.note(f"{server.process.name} <- {self.sender.name} {self.text}")
        if answered:
            self.server = server.process
            world.under_way[self.serial] = self
            if world.maybe(world.faults.lose_answer):
                self._forfeited = True
                self.forfeit()
        task = f"{self.what} of {self.sender.name}"
        world.start(server.process, task, partial(self._execute, server.process, work, answered))

    def _execute(self, server: Process, work: Callable[[], object], answered: bool) -> None:
        world, peer = self.world, self.sender.name
        world.step(f"serve {peer} {self.what}", server)
        value, error = None, None
        try:
            value = work()
        except MillstreamError as problem:
            error = pickle.loads(pickle.dumps(problem, 5))
        world.step(f"answer {peer} {self.what}", server)
        if answered:
            world.under_way.pop(self.serial, None)
            delay = world.delay() + world.transfer(self.size)
            world.at(delay, partial(self.arrive, server, value, error))

    def arrive(self, server: Process, value: Any, error: MillstreamError | None) -> None:
        """The answer reaches the caller, unless it is lost."""
        world = self.world
        if self._forfeited:
            world.note(f"{self.sender.name} <- {server.name} {self.what}: answer lost")
        elif world.is_cut(server.name, self.sender.name):
            self.lost(server, value, error)
        elif not self.answer.done and self.sender.alive:
            text = type(error).__name__ if error else brief(value)
            world.note(f"{self.sender.name} <- {server.name} {self.what} = {text or None}")
            if error:
                self.answer.fail(error)
            else:
                self.answer.resolve(value)

    def lost(self, server: Process, value: Any, error: MillstreamError | None) -> None:
        """The way back is cut: a caller waits until its timeout."""
        self.world.note(f"{self.sender.name} <- {server.name} {self.what}: answer lost")

    def forfeit(self) -> None:
        """The answer will be lost: the connection breaks soon, or nothing comes."""
        if self.world.maybe(0.5):
            self.fail(CLOSED, within=self.world.max_delay)


class _Call(_Exchange):
    """A request and its answer."""

    def __init__(self, world: Links, sender: Process, address: str, request: Request[Any]) -> None:
        super().__init__(world, sender, address, request)
        self._request = pickle.dumps(request, 5)
        world.at(world.delay() + world.transfer(len(self._request)), self._deliver)

    def _deliver(self) -> None:
        world, server = self.world, self.world.server_at(self.address)
        if server is None:
            self.fail(REFUSED)
        elif world.is_cut(self.sender.name, server.process.name) or world.maybe(
            world.faults.lose_request
        ):
            world.note(f"{server.process.name} <- {self.sender.name} {self.what}: request lost")
            if world.maybe(0.5):
                self.fail(CLOSED)
        else:
            self.begin(server, partial(self._answer, server))
            if world.maybe(world.faults.duplicate):
                world.at(world.delay() + world.delay(), self._deliver_again)

    def _deliver_again(self) -> None:
        server = self.world.server_at(self.address)
        if server is not None and not self.world.is_cut(self.sender.name, server.process.name):
            self.begin(server, partial(self._answer, server), answered=False)

    def _answer(self, server: Server) -> object:
        answer = pickle.dumps(server.answer(pickle.loads(self._request)), 5)
        self.size = len(answer)
        return pickle.loads(answer)


class _Feed(_Exchange, Iterator[Any]):
    """A stream of chunks and their end marker to one node; the node iterates over it."""

    def __init__(
        self, world: Links, sender: Process, to: Delivery, chunks: list[Any], end: End
    ) -> None:
        super().__init__(world, sender, to.address, to.header)
        self._header = pickle.dumps(to.header, 5)
        self._items: list[Any] = [*chunks, pickle.loads(pickle.dumps(end, 5))]
        broken = world.maybe(world.faults.break_feed)
        self._break_at = world.random.randrange(len(self._items)) if broken else -1
        self._sent = 0
        self._came: deque[Any] = deque()
        self._over = False  # nothing more will come
        self._arrival: Promise[None] = Promise(world)
        world.schedule(world.delay(), self._open, sender)

    def stop(self) -> None:
        """The sender cancels: the node sees the stream break off."""
        if not self._over:
            self.world.at(self.world.delay(), self._break_off)

    def crashed(self) -> None:
        if not self.sender.alive:
            self.stop()
        super().crashed()

    def _open(self) -> None:
        world, server = self.world, self.world.server_at(self.address)
        if self._over:
            return
        if server is None or server.exchange is None:
            self._over = True
            self.fail(REFUSED)
        elif self._is_cut(server.process):
            self._wait_or_break(self._open)
        elif world.maybe(world.faults.lose_request):
            world.note(f"{server.process.name} <- {self.sender.name} {self.what}: lost")
            self._over = True
            self.fail(CLOSED, within=_NOTICED)
        else:
            exchange, header = server.exchange, pickle.loads(self._header)
            self.begin(server, lambda: _in_one_schema(exchange(header, self)))
            world.schedule(world.delay(), self._send, self.sender)

    def _send(self) -> None:
        world, server = self.world, self.server
        if self._over or server is None or not server.alive:
            return
        if self._is_cut(server):
            self._wait_or_break(self._send)
        elif self._sent == self._break_at:
            self._break_off()
            self._forfeited = True
            self.fail(CLOSED, within=world.max_delay)
        else:
            self._came.append(self._items[self._sent])
            self._sent += 1
            self._over = self._sent == len(self._items)
            self._notify()
            if not self._over:
                size = getattr(self._items[self._sent], "nbytes", 0)
                world.schedule(world.delay() + world.transfer(size), self._send, self.sender)

    def _is_cut(self, server: Process) -> bool:
        return self.world.is_cut(self.sender.name, server.name)

    def _wait_or_break(self, again: Callable[[], None]) -> None:
        """The link is cut: TCP retransmits until the cut is undone, or times out."""
        if self.world.maybe(0.2):
            self.fail(CLOSED)
            self.world.at(self.world.random.random() * _NOTICED, self._break_off)
        else:
            self.world.schedule(_RETRANSMIT, again, self.sender)

    def _break_off(self) -> None:
        if not self._over:
            self.world.note(f"feed of {self.sender.name} to {self.address} breaks off")
            self._over = True
            self._notify()

    def _notify(self) -> None:
        arrival, self._arrival = self._arrival, Promise(self.world)
        arrival.resolve(None)

    def __next__(self) -> Any:
        self.world.step(f"read {self.sender.name}", self.server)
        while not self._came:
            if self._over:
                raise StopIteration
            self._arrival.wait(f"for rows of {self.sender.name}")
        return self._came.popleft()

    def lost(self, server: Process, value: Any, error: MillstreamError | None) -> None:
        self.world.at(_RETRANSMIT, partial(self.arrive, server, value, error))

    def forfeit(self) -> None:
        self.fail(CLOSED, within=_NOTICED)


class World(Links):
    """Simulated processes on one virtual clock; the same seed gives the same run.

    A context manager: at its end all tasks are unwound and their threads ended.
    """

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def process(self, name: str) -> SimNet:
        """Create a process, and return its view of the world."""
        return SimNet(self, self._create(name))


class SimNet:
    """The world as one simulated process sees it; implements ``millstream.wire.net.Net``."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    @property
    def process(self) -> Process:
        """Whose view this is."""
        return self._process

    def call(self, address: str, request: Request[A], timeout: float = 30.0) -> A:
        world, peer = self._world, self._world.name_at(address)
        what = type(request).__name__
        world.step(f"call {peer} {what}", self._process)
        call = _Call(world, self._process, address, request)
        if not call.answer.wait(f"for {peer} to answer {what}", timeout):
            call.fail(LATE)
        answer: A = call.answer.get()
        return answer

    def feed(
        self,
        primary: Delivery,
        copies: Sequence[Delivery],
        rows: pa.Table,
        end: End,
        abandoned: Callable[[], bool],
    ) -> list[pa.RecordBatch]:
        world, peer = self._world, self._world.name_at(primary.address)
        world.step(f"feed {peer}", self._process)
        chunks = self._chunks(rows)
        feeds = [_Feed(world, self._process, to, chunks, end) for to in (primary, *copies)]
        answer = feeds[0].answer
        try:
            while not answer.wait(f"for {peer} to answer a feed", 1.0):
                if abandoned():
                    raise UnreachableError(primary.address, ABANDONED)
            outputs: list[pa.RecordBatch] = answer.get()
            return outputs
        except Exception:
            feeds[0].stop()
            for feed in feeds[1:]:
                if world.maybe(0.5):
                    feed.stop()
            raise

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        world = self._world
        parent = world.step(f"gather {len(calls)}", self._process)
        results: dict[int, T | Exception] = {}
        all_done: Promise[None] = Promise(world)

        def run(number: int, call: Callable[[], T]) -> None:
            try:
                results[number] = call()
            except Exception as problem:
                results[number] = problem
            if len(results) == len(calls):
                all_done.resolve(None)

        for number, call in enumerate(calls):
            world.start(self._process, f"{parent.name}.{number}", partial(run, number, call))
        if calls:
            all_done.wait(f"for {len(calls)} gathered calls")
        return [results[number] for number in range(len(calls))]

    def spawn(self, function: Callable[[], None], name: str) -> None:
        world = self._world
        if world.current is not None and world.current.process is self._process:
            world.step(f"spawn {name}", self._process)
        if self._process.alive:
            world.start(self._process, name, function)

    def lock(self) -> AbstractContextManager[Any]:
        self._check()
        return SimLock(self._world)

    def sleep(self, seconds: float) -> None:
        self._world.step(f"sleep {seconds:g}", self._process)
        self._world.wait(f"{seconds:g} s", seconds)

    def now(self) -> float:
        self._check()
        return self._world.now

    def _check(self) -> None:
        if not self._process.alive and self._world.current is not None:
            raise Crashed(self._process.name)

    def _chunks(self, rows: pa.Table) -> list[pa.RecordBatch]:
        """Cut rows at random, as a sender may."""
        world = self._world
        cut: list[pa.RecordBatch] = []
        for batch in rows.to_batches():
            where = world.random.randrange(batch.num_rows + 1)
            parts = (batch.slice(0, where), batch.slice(where))
            cut += [part for part in parts if part.num_rows]
        return cut


def _in_one_schema(outputs: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The outputs of a feed; a stream of Arrow Flight carries batches of one schema only."""
    batches = list(outputs)
    if len({str(batch.schema) for batch in batches}) > 1:
        raise TypeError("the outputs of a feed have several schemas")
    return batches

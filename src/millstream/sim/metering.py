"""The processor time that one simulated process takes for itself, apart from the simulation.

What is metered are its own functions, what it serialises to send it, and what it unpickles of the
answers. The world around it, the other processes, and whatever waits do not count; nor do threads
and gRPC, which the simulation does not have.
"""

from __future__ import annotations

import cProfile
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.sim.network import LATE, REFUSED, SimNet, World
from millstream.sim.promises import Promise
from millstream.wire.auth import new_nonce, new_secret, proved, proved_answer, verified
from millstream.wire.calls import UnreachableError
from millstream.wire.envelope import opened, sealed
from millstream.wire.feed import End
from millstream.wire.net import Delivery
from millstream.wire.request import Request

A = TypeVar("A")
T = TypeVar("T")
_CALIBRATIONS = 100

Reply = Callable[[Any], None]


class Meter:
    """Counts the processor time of the running thread between ``resume`` and ``pause``.

    What it takes to read the clock does not count.
    """

    def __init__(self, profile: cProfile.Profile | None = None) -> None:
        self.seconds = 0.0
        self._profile = profile
        self._since: float | None = None  # while it counts
        self._own = 0.0  # what an interval counts in which nothing happens
        self._own = min(self._empty_interval() for _ in range(_CALIBRATIONS))
        self.seconds = 0.0

    def _empty_interval(self) -> float:
        self.seconds = 0.0
        self.resume()
        self.pause()
        return self.seconds

    def resume(self) -> None:
        """Count from here on."""
        if self._profile is not None:
            self._profile.enable()
        self._since = time.thread_time()

    def pause(self) -> bool:
        """Count no further; return whether it did."""
        since = self._since
        if since is None:
            return False
        self.seconds += time.thread_time() - since - self._own
        self._since = None
        if self._profile is not None:
            self._profile.disable()
        return True

    def metered(self) -> _Metered:
        """Count what happens within."""
        return _Metered(self)

    def suspended(self) -> _Suspended:
        """Do not count what happens within."""
        return _Suspended(self)


class _Metered:
    """Classes and not generators: these are entered tens of thousands of times in an epoch."""

    __slots__ = ("_meter",)

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._meter.resume()

    def __exit__(self, *exc: object) -> None:
        self._meter.pause()


class _Suspended:
    __slots__ = ("_counted", "_meter")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._counted = self._meter.pause()

    def __exit__(self, *exc: object) -> None:
        if self._counted:
            self._meter.resume()


class Peer(Protocol):
    """A process that the metered one calls; it answers without waiting, or replies later."""

    @property
    def alive(self) -> bool: ...

    def serve(self, request: Any, reply: Reply) -> None:
        """Serve a request; a ``MillstreamError`` that it raises is the answer."""


class MeteredNet:
    """The world as the metered process sees it; implements ``millstream.wire.net.Net``.

    Messages to others are serialised as in production, but not unpickled there.
    """

    def __init__(self, world: World, process: SimNet, meter: Meter) -> None:
        self._world = world
        self._inner = process
        self._meter = meter
        self._secret = new_secret()
        self.peers: dict[str, Peer] = {}
        self.calls = self.bytes_sent = 0

    # -- calls of the process ------------------------------------------------------------

    def call(self, address: str, request: Request[A], timeout: float = 30.0) -> A:
        nonce = new_nonce()
        self.bytes_sent += sealed(nonce, request).size
        self.calls += 1
        with self._meter.suspended():
            content = self._exchange(address, nonce, request, timeout)
        answer: A = pickle.loads(verified(self._secret, address, nonce, content))
        return answer

    def _exchange(self, address: str, nonce: bytes, request: Request[Any], timeout: float) -> bytes:
        world, what = self._world, type(request).__name__
        answer: Promise[bytes] = Promise(world)
        world.step(f"call {address} {what}", self._inner.process)
        world.at(world.delay(), partial(self._deliver, address, nonce, request, answer))
        if not answer.wait(f"for {address} to answer {what}", timeout):
            raise UnreachableError(address, LATE)
        return answer.get()

    def _deliver(
        self, address: str, nonce: bytes, request: Request[Any], answer: Promise[bytes]
    ) -> None:
        world, peer = self._world, self.peers.get(address)
        if peer is None or not peer.alive:
            answer.fail(UnreachableError(address, REFUSED))
            return

        def reply(value: Any) -> None:
            content = proved(self._secret, address, nonce, pickle.dumps(value, 5))
            world.at(world.delay(), partial(answer.resolve, content))

        try:
            peer.serve(request, reply)
        except MillstreamError as problem:
            world.at(world.delay(), partial(answer.fail, problem))

    # -- calls to the process ------------------------------------------------------------

    def serve(self, answer: Callable[[Request[A]], A], request: Request[A]) -> A:
        """Have the process answer a request of another one, in the running task."""
        nonce = new_nonce()
        body = sealed(nonce, request)
        with self._meter.metered():
            value = answer(opened(body))
            proved_answer(self._secret, "driver", nonce, value)
        return value

    def ask(
        self, answer: Callable[[Request[A]], A], request: Request[A], then: Callable[[A], None]
    ) -> None:
        """Like ``serve``, in a task of its own."""
        what = type(request).__name__
        self._world.start(self._inner.process, what, lambda: then(self.serve(answer, request)))

    def serve_all(
        self, answer: Callable[[Request[A]], A], requests: Sequence[Request[A]]
    ) -> list[A | Exception]:
        """Like ``serve``, with requests that may wait for each other."""
        return self._inner.gather([partial(self.serve, answer, request) for request in requests])

    # -- the rest of the protocol --------------------------------------------------------

    def feed(
        self,
        primary: Delivery,
        copies: Sequence[Delivery],
        rows: pa.Table,
        end: End,
        abandoned: Callable[[], bool],
    ) -> list[pa.RecordBatch]:
        raise NotImplementedError("the metered process feeds nobody")

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        with self._meter.suspended():
            return self._inner.gather([partial(self._metered, call) for call in calls])

    def spawn(self, function: Callable[[], None], name: str) -> None:
        with self._meter.suspended():
            self._inner.spawn(partial(self._metered, function), name)

    def _metered(self, function: Callable[[], T]) -> T:
        with self._meter.metered():
            return function()

    def lock(self) -> AbstractContextManager[Any]:
        return _MeteredLock(self._inner.lock(), self._meter)

    def sleep(self, seconds: float) -> None:
        with self._meter.suspended():
            self._inner.sleep(seconds)

    def now(self) -> float:
        return self._inner.now()


class _MeteredLock:
    """A lock; to wait for it does not count."""

    def __init__(self, inner: AbstractContextManager[Any], meter: Meter) -> None:
        self._inner = inner
        self._meter = meter

    def __enter__(self) -> None:
        with self._meter.suspended():
            self._inner.__enter__()

    def __exit__(self, *exc: Any) -> None:
        with self._meter.suspended():
            self._inner.__exit__(*exc)

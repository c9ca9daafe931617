"""The world as it is: Arrow Flight, threads, and the machine's clock."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from millstream.errors import MillstreamError
from millstream.wire.auth import UnprovedPeerError, new_nonce
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint, UnreachableError, call, client_of, translated
from millstream.wire.net import Delivery

T = TypeVar("T")

_LOOK_EVERY = 1.0
_COPIES_WAIT = 5.0
# What a backup that is busy takes in at least, in bytes per second.
_LEAST_RATE = 4 * 2**20
_TOGETHER = 32


class FlightNet:
    """Speaks to the servers of one run, whose secret and certificate it holds."""

    def __init__(self, secret: bytes, certificate: bytes | None = None) -> None:
        self._secret = secret
        self._certificate = certificate

    @classmethod
    def to(cls, server: Endpoint) -> FlightNet:
        """The net of the run that a server belongs to."""
        return cls(server.secret, server.certificate)

    def endpoint(self, address: str) -> Endpoint:
        """A server of the run."""
        return Endpoint(address, self._secret, self._certificate)

    def call(self, address: str, action: str, body: object = None, timeout: float = 30.0) -> Any:
        return call(self.endpoint(address), action, body, timeout)

    def feed(
        self,
        primary: Delivery,
        copies: Sequence[Delivery],
        rows: pa.Table,
        end: Any,
        abandoned: Callable[[], bool],
    ) -> list[pa.RecordBatch]:
        streams = [_Stream(self.endpoint(c.address), c.header, rows, end) for c in copies]
        for stream in streams:  # side by side: a backup that is slow must not hold up the primary
            threading.Thread(target=stream.run_quietly, daemon=True).start()
        main = _Stream(self.endpoint(primary.address), primary.header, rows, end)
        with _Watch(main, abandoned):
            outputs = main.run()
        deadline = time.monotonic() + _COPIES_WAIT + rows.nbytes / _LEAST_RATE
        for stream in streams:
            if not stream.done.wait(max(0.0, deadline - time.monotonic())):
                stream.cancel()
        return outputs

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        if len(calls) == 1:
            return [_outcome(calls[0])]
        if not calls:
            return []
        with ThreadPoolExecutor(min(len(calls), _TOGETHER)) as pool:
            futures: list[Future[T | Exception]] = [pool.submit(_outcome, c) for c in calls]
            return [future.result() for future in futures]

    def spawn(self, function: Callable[[], None], name: str) -> None:
        threading.Thread(target=function, name=f"millstream-{name}", daemon=True).start()

    def lock(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()


def _outcome(function: Callable[[], T]) -> T | Exception:
    try:
        return function()
    except Exception as problem:
        return problem


class _Stream:
    """One feed to one node."""

    def __init__(self, endpoint: Endpoint, header: Any, rows: pa.Table, end: Any) -> None:
        self._endpoint = endpoint
        self._header = header
        self._rows = rows
        self._end = end
        self._reader: Any = None
        self._cancelled = False
        self.done = threading.Event()

    def run(self) -> list[pa.RecordBatch]:
        """Stream everything, and wait for the answer."""
        nonce = new_nonce()
        try:
            client = client_of(self._endpoint)
            if self._cancelled:
                raise UnreachableError(self._endpoint.address, "the feed was abandoned")
            command = b"".join((nonce, pickle.dumps(self._header, 5)))
            descriptor = flight.FlightDescriptor.for_command(command)
            writer, self._reader = client.do_exchange(descriptor)
            if self._cancelled:  # in between
                self._reader.cancel()
            with writer:
                try:
                    writer.begin(BLOCK_SCHEMA)
                    for batch in self._rows.to_batches():
                        writer.write_batch(batch)
                    writer.write_metadata(pickle.dumps(self._end, 5))
                    writer.done_writing()
                except pa.ArrowException:
                    # The node hung up: its own words say why. Not read_all(), which after a
                    # cancel interrupts the main thread as Ctrl-C does.
                    list(self._reader)
                    raise
                return self._outputs(nonce)
        except MillstreamError:
            raise
        except (flight.FlightError, pa.ArrowException, UnprovedPeerError) as problem:
            if self._cancelled:
                raise UnreachableError(self._endpoint.address, "the feed was abandoned") from None
            raise translated(self._endpoint, nonce, problem) from None
        finally:
            self.done.set()

    def _outputs(self, nonce: bytes) -> list[pa.RecordBatch]:
        """What the node answers: its proof, and then outputs, which may hold pickled values."""
        chunks = iter(self._reader)
        first = next(chunks, None)
        given = None if first is None else first.app_metadata
        self._endpoint.verified(nonce, b"" if given is None else given)
        return [chunk.data for chunk in chunks if chunk.data.num_rows]

    def run_quietly(self) -> None:
        """Stream to a backup: whether it has the copy, its own receipt will tell."""
        try:
            self.run()
        except MillstreamError:
            return

    def cancel(self) -> None:
        """Give up; the call ends at once with an error."""
        self._cancelled = True
        if self._reader is not None:
            self._reader.cancel()


class _Watch:
    """Asks now and then, while a feed waits for its answer, whether it is to be given up."""

    def __init__(self, stream: _Stream, abandoned: Callable[[], bool]) -> None:
        self._stream = stream
        self._abandoned = abandoned
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *problem: object) -> None:
        return  # the stream is done, which ends the thread

    def _look(self) -> None:
        while not self._stream.done.wait(_LOOK_EVERY):
            if self._abandoned():
                self._stream.cancel()
                return

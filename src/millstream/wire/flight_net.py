"""``Net`` in production: Arrow Flight, threads, and the machine's clock."""

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
from millstream.log_context import inheriting
from millstream.wire.auth import UnprovedPeerError, new_nonce
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.calls import Endpoint, UnreachableError, call, client_of, translated
from millstream.wire.feed import End, Feed
from millstream.wire.net import Delivery
from millstream.wire.request import Request
from millstream.wire.timeouts import timeout_for

A = TypeVar("A")
T = TypeVar("T")

_POLL_ABANDONED = 1.0
_MAX_THREADS = 32


class FlightNet:
    """Calls the servers of one run, whose secret and certificate it holds."""

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

    def call(self, address: str, request: Request[A], timeout: float = 30.0) -> A:
        return call(self.endpoint(address), request, timeout)

    def feed(
        self,
        primary: Delivery,
        copies: Sequence[Delivery],
        rows: pa.Table,
        end: End,
        abandoned: Callable[[], bool],
    ) -> list[pa.RecordBatch]:
        streams = [_Stream(self.endpoint(c.address), c.header, rows, end) for c in copies]
        for stream in streams:  # concurrently: a slow backup must not delay the primary
            threading.Thread(target=stream.run_quietly, daemon=True).start()
        main = _Stream(self.endpoint(primary.address), primary.header, rows, end)
        with _Watch(main, abandoned):
            outputs = main.run()
        deadline = time.monotonic() + timeout_for(rows.nbytes)
        for stream in streams:
            if not stream.done.wait(max(0.0, deadline - time.monotonic())):
                stream.cancel()
        return outputs

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        if len(calls) == 1:
            return [_outcome(calls[0])]
        if not calls:
            return []
        with ThreadPoolExecutor(min(len(calls), _MAX_THREADS)) as pool:
            futures: list[Future[T | Exception]] = [pool.submit(_outcome, c) for c in calls]
            return [future.result() for future in futures]

    def spawn(self, function: Callable[[], None], name: str) -> None:
        work = inheriting(function)
        threading.Thread(target=work, name=f"millstream-{name}", daemon=True).start()

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

    def __init__(self, endpoint: Endpoint, header: Feed, rows: pa.Table, end: End) -> None:
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
                    # The node closed the stream; reading raises its error. Not read_all(), which
                    # after a cancel interrupts the main thread as Ctrl-C does.
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
        """Read the answer: the node's proof, then outputs, which may hold pickled values."""
        chunks = iter(self._reader)
        first = next(chunks, None)
        proof = None if first is None else first.app_metadata
        self._endpoint.verified(nonce, b"" if proof is None else proof)
        return [chunk.data for chunk in chunks if chunk.data.num_rows]

    def run_quietly(self) -> None:
        """Stream to a backup; its own receipt says whether it has the copy."""
        try:
            self.run()
        except MillstreamError:
            return

    def cancel(self) -> None:
        """Cancel the call, which ends at once with an error."""
        self._cancelled = True
        if self._reader is not None:
            self._reader.cancel()


class _Watch:
    """Polls, while a feed waits for its answer, whether the feed is abandoned."""

    def __init__(self, stream: _Stream, abandoned: Callable[[], bool]) -> None:
        self._stream = stream
        self._abandoned = abandoned
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *problem: object) -> None:
        return  # the thread ends because the stream is done

    def _poll(self) -> None:
        while not self._stream.done.wait(_POLL_ABANDONED):
            if self._abandoned():
                self._stream.cancel()
                return

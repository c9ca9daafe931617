"""Calls over Arrow Flight: requests, their answers or typed errors, and cached clients.

A process has one authenticated client per endpoint; the cache is here because functions that Spark
ships to its workers lose their own module's globals.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from millstream.errors import MillstreamError
from millstream.wire.auth import ClientAuth, UnprovedPeerError, new_nonce, verified
from millstream.wire.envelope import sealed
from millstream.wire.request import Request
from millstream.wire.tls import NAME

A = TypeVar("A")


@dataclass(frozen=True)
class Endpoint:
    """Where a server of this run listens, the secret that opens it, and the run's certificate."""

    address: str
    secret: bytes
    certificate: bytes | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.address})"

    def verified(self, nonce: bytes, answer: Any) -> memoryview:
        """The content of an answer; raises ``UnprovedPeerError`` if its proof is wrong."""
        return verified(self.secret, self.address, nonce, answer)


class UnreachableError(MillstreamError):
    """A server of the run did not answer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    @property
    def refused(self) -> bool:
        """Whether no process listens there.

        A call to a slow server times out instead. A broken connection alone proves nothing: the
        next call shows whether the process is alive.
        """
        return "failed to connect" in self.reason

    @property
    def timed_out(self) -> bool:
        """Whether the call timed out: the server may be slow, or stopped."""
        return "Deadline Exceeded" in self.reason

    def __str__(self) -> str:
        return f"{self.address} does not answer: {self.reason}"


_ACTION = "request"  # of Flight; servers dispatch by the type of the message
_HANDSHAKE_TIMEOUT = 10.0
_clients: dict[Endpoint, flight.FlightClient] = {}
_lock = threading.Lock()
_CACHED = 256
# An error travels in the trailer of a call, for which gRPC allows 8 KB, the message included.
_MESSAGE_LENGTH = 200
_ERROR_BYTES = 5_000


def client_of(endpoint: Endpoint, timeout: float = _HANDSHAKE_TIMEOUT) -> flight.FlightClient:
    """The process's authenticated client for an endpoint."""
    with _lock:
        client = _clients.get(endpoint)
    if client is not None:
        return client
    client = _connected(endpoint)
    try:
        options = flight.FlightCallOptions(timeout=min(timeout, _HANDSHAKE_TIMEOUT))
        client.authenticate(ClientAuth(endpoint.secret, endpoint.address), options)
    except (flight.FlightError, pa.ArrowException) as problem:
        # Not translated(): a peer without proof may send a pickle that runs code here.
        client.close()
        raise _unreachable(endpoint, problem) from None
    with _lock:
        cached = _clients.setdefault(endpoint, client)
        # Spark's workers outlive runs and their nodes: evict the oldest clients first.
        for other in list(_clients)[: max(0, len(_clients) - _CACHED)]:
            del _clients[other]
    if cached is not client:  # another thread was first
        client.close()
    return cached


def _connected(endpoint: Endpoint) -> flight.FlightClient:
    if endpoint.certificate is None:
        return flight.connect(endpoint.address)
    return flight.connect(
        endpoint.address, tls_root_certs=endpoint.certificate, override_hostname=NAME
    )


def drop_client(endpoint: Endpoint) -> None:
    """Evict a client whose connection broke from the cache.

    It is not closed: other threads may be in the middle of a call, and the process would crash. It
    is freed with the last of them.
    """
    with _lock:
        _clients.pop(endpoint, None)


def call(endpoint: Endpoint, request: Request[A], timeout: float = 30.0) -> A:
    """Send a request to a server and return its answer, or raise the server's own error."""
    nonce = new_nonce()
    try:
        client = client_of(endpoint, timeout)
        options = flight.FlightCallOptions(timeout=timeout)
        results = client.do_action(flight.Action(_ACTION, sealed(nonce, request)), options)
        body = b"".join(bytes(part.body) for part in results)
        answer: A = pickle.loads(endpoint.verified(nonce, body))
        return answer
    except (flight.FlightError, pa.ArrowException, UnprovedPeerError) as problem:
        raise translated(endpoint, nonce, problem) from None


def translated(endpoint: Endpoint, nonce: bytes, problem: Exception) -> MillstreamError:
    """The error behind a failed call: the server's own, or ``UnreachableError``."""
    blob = getattr(problem, "extra_info", None)
    if blob:
        try:
            error = pickle.loads(endpoint.verified(nonce, blob))
        except UnprovedPeerError as unproved:
            problem = unproved
        else:
            if isinstance(error, MillstreamError):
                return error
    if not isinstance(problem, flight.FlightTimedOutError):
        # After a timeout the connection is still good: other calls may be using it.
        drop_client(endpoint)
    return _unreachable(endpoint, problem)


def _unreachable(endpoint: Endpoint, problem: Exception) -> UnreachableError:
    return UnreachableError(endpoint.address, str(problem).split("\n")[0])


def error_text(problem: BaseException) -> str:
    """The text of an error for gRPC's status message."""
    return str(problem)[:_MESSAGE_LENGTH]


def error_blob(problem: BaseException) -> bytes:
    """Pickle an error with its long arguments truncated, so that it fits into a trailer."""
    if not isinstance(problem, MillstreamError):
        problem = InternalError(f"{type(problem).__name__}: {problem}")
    for limit in (_ERROR_BYTES, 1_000, 200):
        try:
            blob = pickle.dumps(type(problem)(*[_cut(arg, limit) for arg in problem.args]), 5)
        except Exception:  # it cannot be pickled, or not be made from its arguments
            break
        if len(blob) <= _ERROR_BYTES:
            return blob
    return pickle.dumps(InternalError(_cut(f"{type(problem).__name__}: {problem}", 500)), 5)


def _cut(arg: object, limit: int) -> object:
    return f"{arg[:limit]}…" if isinstance(arg, str) and len(arg) > limit else arg


class InternalError(MillstreamError):
    """A server failed with an error that is not a ``MillstreamError``."""

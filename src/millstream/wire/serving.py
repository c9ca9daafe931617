"""The Flight server of a process of the run: callers authenticate, each answer carries a proof.

Two functions serve what arrives: one serves requests, the other feeds.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from millstream.wire.auth import NONCE_BYTES, ServerAuth, proved, proved_answer
from millstream.wire.calls import Endpoint, error_blob, error_text
from millstream.wire.envelope import nonce_of, opened
from millstream.wire.tls import Identity

Answer = Callable[[Any], Any]
Exchange = Callable[[Any, Iterator[Any]], list[pa.RecordBatch]]


class RunServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves requests, and feeds if ``exchange`` is given; ``endpoint`` is where it listens.

    With port 0 it listens on a free one. With an ``identity`` connections are encrypted.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        answer: Answer,
        exchange: Exchange | None = None,
        identity: Identity | None = None,
    ) -> None:
        auth = ServerAuth(secret)
        certificates = [] if identity is None else [(identity.certificate, identity.key)]
        super().__init__(address, auth_handler=auth, tls_certificates=certificates)
        self._answer = answer
        self._exchange = exchange
        if self.port > 0:  # TCP
            address = f"{address.removesuffix(':0')}:{self.port}"
        certificate = None if identity is None else identity.certificate
        self.endpoint = Endpoint(address, secret, certificate)
        auth.address = address

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        nonce = nonce_of(action.body)
        try:
            answer = self._answer(opened(action.body))
            return [proved_answer(self.endpoint.secret, self.endpoint.address, nonce, answer)]
        except Exception as problem:
            raise self._error(nonce, problem) from problem

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        nonce, header = _header(descriptor.command)
        try:
            if self._exchange is None:
                raise flight.FlightUnavailableError("this server takes no feeds")
            outputs = self._exchange(pickle.loads(header), _items(reader))
        except flight.FlightError:
            raise
        except Exception as problem:
            raise self._error(nonce, problem) from problem
        # A call stays on its connection: what follows the proof has the same sender.
        writer.write_metadata(self._proved(nonce, b""))
        writer.begin(outputs[0].schema if outputs else pa.schema([]))
        for batch in outputs:
            writer.write_batch(batch)

    def _proved(self, nonce: bytes, content: bytes) -> bytes:
        return proved(self.endpoint.secret, self.endpoint.address, nonce, content)

    def _error(self, nonce: bytes, problem: BaseException) -> flight.FlightServerError:
        """Wrap an error so that the caller raises it as it was raised here."""
        blob = self._proved(nonce, error_blob(problem))
        return flight.FlightServerError(error_text(problem), extra_info=blob)


def tcp_address(host: str, identity: Identity | None) -> str:
    """The address of a server on a free port of a host."""
    scheme = "grpc" if identity is None else "grpc+tls"
    return f"{scheme}://{host}:0"


def _header(command: Any) -> tuple[bytes, memoryview]:
    content = memoryview(command)
    return bytes(content[:NONCE_BYTES]), content[NONCE_BYTES:]


def _items(reader: Any) -> Iterator[Any]:
    """The chunks of a feed, and its end marker."""
    for chunk in reader:
        if chunk.data is not None:
            yield chunk.data
        if chunk.app_metadata is not None:
            yield pickle.loads(chunk.app_metadata)

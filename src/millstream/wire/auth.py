"""Who may speak: proof of the run's secret, which itself never travels on our channels.

A handshake opens each connection: both sides prove that they hold the secret before any call is
served. But gRPC reconnects by itself, to whoever listens at the address by then, and repeats no
handshake. So the proof is repeated with every call: the caller sends a fresh nonce, and the answer
carries a proof over the nonce, the server's address and the bytes that are about to be unpickled.
An answer without one is refused unread. The address is part of every proof, so that a server of
the run cannot be made to prove for another.

The secret reaches executors inside Spark's own task closures. What is said over a Unix socket stays
on the host; what is said over TCP is encrypted (:mod:`millstream.wire.tls`), unless that was
switched off, and then whoever can change what travels can take a session over.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import pyarrow.flight as flight

NONCE_BYTES = 16
PROOF_BYTES = 32
_TOKEN_BYTES = 32


class UnprovedPeerError(Exception):
    """An answer did not prove that its sender holds the run's secret."""


def new_secret() -> bytes:
    """Make the secret of one run."""
    return secrets.token_bytes(32)


def new_nonce() -> bytes:
    """Make the nonce of one call."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, role: str, address: str, nonce: bytes, content: Any = b"") -> bytes:
    """What only a holder of the secret can say about a nonce and some bytes."""
    about = f"{role}\0{address}\0{nonce.hex()}\0".encode()
    return hmac.digest(secret, b"".join((about, content)), "sha256")


def proved(secret: bytes, address: str, nonce: bytes, content: Any) -> bytes:
    """An answer with its proof in front."""
    return b"".join((proof(secret, "answer", address, nonce, content), content))


def verified(secret: bytes, address: str, nonce: bytes, answer: Any) -> memoryview:
    """The content of an answer; raises ``UnprovedPeerError`` before anybody looks into it."""
    given = memoryview(answer)
    content = given[PROOF_BYTES:]
    if not hmac.compare_digest(
        given[:PROOF_BYTES], proof(secret, "answer", address, nonce, content)
    ):
        raise UnprovedPeerError("the server did not prove that it holds the run's secret")
    return content


class ServerAuth(flight.ServerAuthHandler):  # type: ignore[misc]
    """The server's side of the handshake; its address is set when it is known."""

    def __init__(self, secret: bytes, address: str = "") -> None:
        super().__init__()
        self._secret = secret
        self.address = address
        self._tokens: set[bytes] = set()

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        asked = incoming.read()
        nonce = new_nonce()
        outgoing.write(nonce + proof(self._secret, "server", self.address, asked))
        expected = proof(self._secret, "client", self.address, nonce)
        if not hmac.compare_digest(incoming.read(), expected):
            raise flight.FlightUnauthenticatedError("the caller does not hold the run's secret")
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._tokens.add(token)
        outgoing.write(token)

    def is_valid(self, token: bytes) -> bytes:
        if token not in self._tokens:
            raise flight.FlightUnauthenticatedError("the caller did not authenticate")
        return b"peer"


class ClientAuth(flight.ClientAuthHandler):  # type: ignore[misc]
    """The client's side of the handshake."""

    def __init__(self, secret: bytes, address: str) -> None:
        super().__init__()
        self._secret = secret
        self._address = address
        self._token = b""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        asked = new_nonce()
        outgoing.write(asked)
        answer = incoming.read()
        nonce, given = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(given, proof(self._secret, "server", self._address, asked)):
            raise flight.FlightUnauthenticatedError("the server does not hold the run's secret")
        outgoing.write(proof(self._secret, "client", self._address, nonce))
        self._token = incoming.read()

    def get_token(self) -> bytes:
        return self._token

"""Mutual authentication: proofs of the run's secret, which itself is never sent.

A handshake opens each connection: both sides prove that they hold the secret before any call is
served. But gRPC reconnects by itself, to any process that listens at the address by then, without
another handshake. So the proof is repeated with every call: the caller sends a fresh nonce, and the
answer carries a proof over the nonce, the server's address and the digest of the bytes to be
unpickled; the digest of an answer that many get is computed once. An answer without a valid proof
is rejected before it is unpickled. The address is part of every proof, so that the proof of one
server of the run cannot be used for another.

The secret reaches executors inside Spark's own task closures. Traffic over a Unix socket stays on
the host; traffic over TCP is encrypted (:mod:`millstream.wire.tls`), unless encryption is switched
off: then an attacker who can change packets can hijack a session.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import secrets
from typing import Any

import pyarrow.flight as flight

from millstream.wire.pickled_once import PickledOnce

NONCE_BYTES = 16
PROOF_BYTES = 32
_TOKEN_BYTES = 32
_NOTHING = pickle.dumps(None, 5)  # the answer to most calls
_DIGEST_OF_NOTHING = hashlib.sha256(_NOTHING).digest()


class UnprovedPeerError(Exception):
    """An answer did not prove that its sender holds the run's secret."""


def new_secret() -> bytes:
    """Make the secret of one run."""
    return secrets.token_bytes(32)


def new_nonce() -> bytes:
    """Make the nonce of one call."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, role: str, address: str, nonce: bytes, digest: bytes = b"") -> bytes:
    """Compute the keyed BLAKE2 of a nonce and a digest, which only a holder of the secret can."""
    about = f"{role}\0{address}\0{nonce.hex()}\0".encode()
    return hashlib.blake2b(about + digest, key=secret, digest_size=PROOF_BYTES).digest()


def digest_of(content: Any) -> bytes:
    """The digest of an answer, over which its proof is computed."""
    return hashlib.sha256(content).digest()


def proved(
    secret: bytes, address: str, nonce: bytes, content: bytes, digest: bytes | None = None
) -> bytes:
    """Prepend the proof to an answer, whose ``digest`` may be known already."""
    of_content = digest_of(content) if digest is None else digest
    return b"".join((proof(secret, "answer", address, nonce, of_content), content))


def proved_answer(secret: bytes, address: str, nonce: bytes, answer: object) -> bytes:
    """Serialise an answer, and prepend the proof."""
    if answer is None:
        return proved(secret, address, nonce, _NOTHING, _DIGEST_OF_NOTHING)
    if isinstance(answer, PickledOnce):
        return proved(secret, address, nonce, answer.message, answer.message_digest)
    return proved(secret, address, nonce, pickle.dumps(answer, 5))


def verified(secret: bytes, address: str, nonce: bytes, answer: Any) -> memoryview:
    """Check the proof of an answer and return its content, or raise ``UnprovedPeerError``."""
    received = memoryview(answer)
    content = received[PROOF_BYTES:]
    if not hmac.compare_digest(
        received[:PROOF_BYTES], proof(secret, "answer", address, nonce, digest_of(content))
    ):
        raise UnprovedPeerError("the server did not prove that it holds the run's secret")
    return content


class ServerAuth(flight.ServerAuthHandler):  # type: ignore[misc]
    """The server's side of the handshake; its address is set when the port is known."""

    def __init__(self, secret: bytes, address: str = "") -> None:
        super().__init__()
        self._secret = secret
        self.address = address
        self._tokens: set[bytes] = set()

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        challenge = incoming.read()
        nonce = new_nonce()
        outgoing.write(nonce + proof(self._secret, "server", self.address, challenge))
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
        challenge = new_nonce()
        outgoing.write(challenge)
        answer = incoming.read()
        nonce, received = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        expected = proof(self._secret, "server", self._address, challenge)
        if not hmac.compare_digest(received, expected):
            raise flight.FlightUnauthenticatedError("the server does not hold the run's secret")
        outgoing.write(proof(self._secret, "client", self._address, nonce))
        self._token = incoming.read()

    def get_token(self) -> bytes:
        return self._token

"""Who may speak: a mutual challenge over a secret that never travels on our channels.

Both sides prove that they hold the run's secret before any call is served, and nothing is
unpickled before that. The secret reaches executors inside Spark's own task closures. Over TCP
(``listen=``) calls are not encrypted: whoever can read the network can take over a session, so it
needs a network that is trusted.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import pyarrow.flight as flight

_NONCE = 32


def new_secret() -> bytes:
    """Make the secret of one run."""
    return secrets.token_bytes(32)


def _proof(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + nonce, "sha256")


class ServerAuth(flight.ServerAuthHandler):  # type: ignore[misc]
    """The server's side of the handshake."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._secret = secret
        self._tokens: set[bytes] = set()

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        asked = incoming.read()
        nonce = secrets.token_bytes(_NONCE)
        outgoing.write(nonce + _proof(self._secret, b"server", asked))
        if not hmac.compare_digest(incoming.read(), _proof(self._secret, b"client", nonce)):
            raise flight.FlightUnauthenticatedError("the caller does not hold the run's secret")
        token = secrets.token_bytes(_NONCE)
        self._tokens.add(token)
        outgoing.write(token)

    def is_valid(self, token: bytes) -> bytes:
        if token not in self._tokens:
            raise flight.FlightUnauthenticatedError("the caller did not authenticate")
        return b"peer"


class ClientAuth(flight.ClientAuthHandler):  # type: ignore[misc]
    """The client's side of the handshake."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._secret = secret
        self._token = b""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        nonce = secrets.token_bytes(_NONCE)
        outgoing.write(nonce)
        answer = incoming.read()
        if not hmac.compare_digest(answer[_NONCE:], _proof(self._secret, b"server", nonce)):
            raise flight.FlightUnauthenticatedError("the server does not hold the run's secret")
        outgoing.write(_proof(self._secret, b"client", answer[:_NONCE]))
        self._token = incoming.read()

    def get_token(self) -> bytes:
        return self._token

"""Tokens of the HTTP API: what they allow, until when, and the links that log a browser in.

Only digests are held. A token that is presented is compared with every valid one, in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from millstream.api.contract import Right

TOKEN_LIFETIME = 24 * 3600.0
SESSION_LIFETIME = 12 * 3600.0
LINK_LIFETIME = 300.0
_MOST = 256  # tokens, and links, that are valid at a time; the oldest ones go first


@dataclass(frozen=True)
class Grant:
    """What the holder of a token may do, and until when."""

    right: Right
    expires: float
    digest: bytes

    def allows(self, right: Right) -> bool:
        """Whether a right is included: operators may look as well."""
        return right == "viewer" or self.right == "operator"


@dataclass(frozen=True)
class Token:
    """A new token; its text exists nowhere else."""

    text: str
    right: Right
    expires: float


class TokenBook:
    """Issues and checks tokens and login codes; safe for use by several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: list[Grant] = []
        self._codes: list[Grant] = []

    def issue(self, right: Right, lifetime: float = TOKEN_LIFETIME) -> Token:
        """A token that is valid from now on."""
        return self._add(self._tokens, right, lifetime)

    def check(self, text: str) -> Grant | None:
        """What a token allows; None if it is unknown or expired."""
        with self._lock:
            return self._find(self._tokens, text)

    def login_code(self, right: Right) -> Token:
        """The code of a login link."""
        return self._add(self._codes, right, LINK_LIFETIME)

    def redeem(self, code: str) -> Token | None:
        """Exchange the code of a login link for a session's token, once."""
        with self._lock:
            found = self._find(self._codes, code)
            if found is None:
                return None
            self._codes.remove(found)
        return self.issue(found.right, SESSION_LIFETIME)

    def _add(self, grants: list[Grant], right: Right, lifetime: float) -> Token:
        token = Token(secrets.token_urlsafe(32), right, self._clock() + lifetime)
        with self._lock:
            self._forget_expired(grants)
            grants.append(Grant(right, token.expires, _digest(token.text)))
            del grants[:-_MOST]
        return token

    def _find(self, grants: list[Grant], text: str) -> Grant | None:
        self._forget_expired(grants)
        presented, found = _digest(text), None
        for grant in grants:  # all of them: the time says nothing about which one is equal
            if hmac.compare_digest(grant.digest, presented):
                found = grant
        return found

    def _forget_expired(self, grants: list[Grant]) -> None:
        now = self._clock()
        grants[:] = [grant for grant in grants if grant.expires > now]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

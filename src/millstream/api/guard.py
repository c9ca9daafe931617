"""The guard before every request: host, origin, size, token, right, rate; and security headers.

A page of another site may send requests to a loopback port, and through DNS rebinding may even read
the answers. So the ``Host`` must be an IP address, ``localhost`` or a name of ours, an ``Origin``
must be that same host, and the cookie is ``SameSite=Strict``. There is no CORS.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.api.login_page import unauthorised
from millstream.api.problems import problem_response
from millstream.api.rate_limit import RateLimit
from millstream.api.tokens import Grant, TokenBook

MOST_BYTES = 4 * 2**20
LOGIN = "/login"
_REQUESTS = (200.0, 400.0)  # of one token: a second, and at once
_FAILURES = (2.0, 20.0)  # with a wrong token, or none, of one address
_SAFE = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests that are not allowed; passes the others on with their ``grant``."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: TokenBook,
        cookie: str,
        hosts: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``hosts`` are names, beside IP addresses and localhost, of the server."""
        self._app = app
        self._tokens = tokens
        self._cookie = cookie
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._requests = RateLimit(*_REQUESTS, clock)
        self._failures = RateLimit(*_FAILURES, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        send = _with_headers(send)
        refusal = self._foreign(scope, headers) or self._too_large(headers)
        if refusal is None and scope["path"] == LOGIN:
            refusal = self._too_often(scope)
        elif refusal is None:
            refusal = self._authenticate(scope, headers)
        if refusal is not None:
            await _answer(scope, *refusal)(scope, receive, send)
            return
        await self._app(scope, _limited(receive), send)

    def _foreign(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return 421, f"the host {host[:100]!r} is not a name of this server"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "requests from other sites are refused"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # A link in a chat or a mail may be followed; that reads nothing and changes nothing.
            is_link = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in _SAFE
            if not is_link or scope["path"].startswith("/api/"):
                return 403, "requests from other sites are refused"
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower() in self._hosts
        return True

    def _too_large(self, headers: Headers) -> tuple[int, str] | None:
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, "Content-Length must be a number"
        return (413, _LARGE) if int(length) > MOST_BYTES else None

    def _authenticate(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        grant, by_cookie = self._grant(headers)
        if grant is None:
            return self._too_often(scope) or (
                401,
                "this needs a valid token; `millstream dashboard NAME` prints a link for a browser",
            )
        if not self._requests.admit(grant.digest):
            return 429, "too many requests with this token; wait a second"
        if by_cookie and scope["method"] not in _SAFE and headers.get("origin") is None:
            return 403, "a change from a browser must name its origin"
        scope.setdefault("state", {})["grant"] = grant
        return None

    def _too_often(self, scope: Scope) -> tuple[int, str] | None:
        """Count a request without a valid token, which may be a guess."""
        client = (scope.get("client") or ("",))[0]
        if self._failures.admit(client):
            return None
        return 429, "too many requests without a valid token; wait a few seconds"

    def _grant(self, headers: Headers) -> tuple[Grant | None, bool]:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind:
            return (self._tokens.check(token.strip()) if kind.lower() == "bearer" else None), False
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None, True
        cookie = cookies.get(self._cookie)
        return (None if cookie is None else self._tokens.check(cookie.value)), True


def _answer(scope: Scope, status: int, detail: str) -> Response:
    if status == 401:
        return unauthorised(scope, detail, "This browser has no login, or its login has expired.")
    return problem_response(status, detail)


_LARGE = f"a request may have at most {MOST_BYTES:,} bytes"


def _limited(receive: Receive) -> Receive:
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MOST_BYTES:
            raise HTTPException(413, _LARGE)  # the application answers with it
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)  # a page may have a policy of its own
        await send(message)

    return sending

"""A client of the HTTP API, for commands: answers are objects of the contract."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from millstream.api import contract as c
from millstream.api.operations import PREFIX
from millstream.errors import MillstreamError

A = TypeVar("A")
_TIMEOUT = 30.0
_POLL = 0.2


class ApiUnreachableError(MillstreamError):
    """Nobody answered."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"{self.url} does not answer: {self.reason}"


class RefusedError(MillstreamError):
    """The run refused a request; ``detail`` says why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail

    def __str__(self) -> str:
        return self.detail


class ApiClient:
    """Sends requests to the HTTP API of a run."""

    def __init__(self, url: str, token: str, timeout: float = _TIMEOUT) -> None:
        self.url = url
        self._token = token
        self._timeout = timeout

    def get(self, path: str, answer: type[A], **query: object) -> A:
        """Ask; parameters that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        asked = f"{PREFIX}{path}?{urlencode(given)}" if given else PREFIX + path
        return msgspec.json.decode(self._send("GET", asked, None), type=answer)

    def post(self, path: str, body: object, answer: type[A]) -> A:
        """Send a request of the contract."""
        sent = msgspec.json.encode(body)
        return msgspec.json.decode(self._send("POST", PREFIX + path, sent), type=answer)

    def snapshot(self) -> c.Snapshot:
        """The run now."""
        return self.get("/snapshot", c.Snapshot)

    def await_settled(
        self, seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> c.Snapshot:
        """Wait until no change is under way, or until the time is over."""
        deadline = clock() + seconds
        while True:
            now = self.snapshot()
            if now.run.is_settled or clock() >= deadline:
                return now
            sleep(_POLL)

    def _send(self, method: str, path: str, body: bytes | None) -> bytes:
        address = urlsplit(self.url)
        kinds: Mapping[str, Any] = {
            "http": http.client.HTTPConnection,
            "https": http.client.HTTPSConnection,
        }
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection = kinds[address.scheme](
                address.hostname, address.port, timeout=self._timeout
            )
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                content: bytes = answer.read()
            finally:
                connection.close()
        except ConnectionRefusedError:
            raise ApiUnreachableError(
                self.url, "nothing listens there; it has ended, or runs on another host"
            ) from None
        except TimeoutError:
            raise ApiUnreachableError(
                self.url, "it is busy or stopped; a change that was asked for may still be made"
            ) from None
        except (OSError, http.client.HTTPException) as problem:
            raise ApiUnreachableError(self.url, str(problem) or repr(problem)) from None
        if answer.status != 200:
            raise RefusedError(answer.status, _detail(content))
        return content


def _detail(content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=c.Problem).detail
    except msgspec.DecodeError:
        return "the answer is not that of a workflow; is the address right?"

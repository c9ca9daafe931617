"""Requests between the processes of a run, and how a server dispatches them by type.

A request is a frozen dataclass that says what it is answered with. The concrete requests are in the
modules beside this one, each with the values and errors that travel with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from millstream.errors import MillstreamError

A = TypeVar("A")
Handler = tuple[type["Request[Any]"], Callable[[Any], Any]]


class Request(Generic[A]):
    """A message to a server that is answered with an ``A``."""

    @classmethod
    def served_by(cls, handler: Callable[[Self], A]) -> tuple[type[Self], Callable[[Self], A]]:
        """An entry of a dispatcher; the type checker compares request, handler and answer."""
        return cls, handler


class UnknownRequestError(MillstreamError):
    """A server was sent a request that it does not serve."""


class Dispatcher:
    """Passes each request to the handler of its type."""

    def __init__(self, server: str, *handlers: Handler) -> None:
        """``server`` is what error messages call this server."""
        self._server = server
        self._handlers = dict(handlers)

    def __call__(self, request: Request[A]) -> A:
        handler = self._handlers.get(type(request))
        if handler is None:
            raise UnknownRequestError(f"{self._server} does not serve {type(request).__name__}")
        answer: A = handler(request)
        return answer

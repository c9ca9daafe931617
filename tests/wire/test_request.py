"""Requests reach the handler of their type."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from millstream.wire.request import Dispatcher, Request, UnknownRequestError
from tests.wire.requests import Sent


@dataclass(frozen=True)
class Double(Request[int]):
    number: int


@dataclass(frozen=True)
class Special(Double):
    """Of a type that has no handler of its own."""


def test_a_request_is_served_by_the_handler_of_its_type() -> None:
    dispatch = Dispatcher(
        "a server",
        Double.served_by(lambda request: 2 * request.number),
        Sent.served_by(lambda request: request.body),
    )

    assert dispatch(Double(3)) == 6 and dispatch(Sent("echo", "x")) == "x"


@pytest.mark.parametrize("request_", [Special(3), Sent("echo")])
def test_a_request_without_a_handler_of_its_type_is_rejected(request_: Request[object]) -> None:
    dispatch = Dispatcher("a server", Double.served_by(lambda request: 2 * request.number))

    with pytest.raises(UnknownRequestError, match=f"does not serve {type(request_).__name__}"):
        dispatch(request_)

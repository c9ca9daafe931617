"""A request and feed headers for tests of the wire, whatever the server makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from millstream.wire.feed import End, Feed
from millstream.wire.request import Request


@dataclass(frozen=True)
class Sent(Request[Any]):
    action: str
    body: Any = None


def header_of(value: Any) -> Feed:
    """Any value in the place of a feed's header."""
    return cast(Feed, value)


def end_of(value: Any) -> End:
    """Any value in the place of a feed's end marker."""
    return cast(End, value)

"""The state of keys, and the queries that read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from millstream.api.contract.terms import KeyText, Name

MOST_KEYS = 10_000
MOST_ITEMS = 10_000


@dataclass(frozen=True, kw_only=True)
class StateJob:
    """A job whose state can be read, and the type of its keys, if that is known yet."""

    job: str
    key_type: str | None
    state_keys: int


@dataclass(frozen=True, kw_only=True)
class StateItem:
    """A key, as JSON and as the text by which it is looked up, with its state as JSON.

    ``found`` is false for a key that has no state.
    """

    key: Any
    text: str
    found: bool
    value: Any


@dataclass(frozen=True, kw_only=True)
class StateItems:
    """Keys with their state, all of one committed ``epoch``.

    ``continuation`` gets the next page, of the same epoch; None at the end, and for single keys.
    """

    job: str
    epoch: int
    items: list[StateItem]
    continuation: str | None = None


@dataclass(frozen=True, kw_only=True)
class GetQuery:
    """A key, written as on the command line."""

    job: Name
    key: KeyText


@dataclass(frozen=True, kw_only=True)
class GetManyRequest:
    """Keys, written as on the command line."""

    job: Name
    keys: Annotated[list[KeyText], Meta(max_length=MOST_KEYS)]


@dataclass(frozen=True, kw_only=True)
class ScanQuery:
    """All keys of a job, or those with a prefix, or from ``start`` to before ``stop``.

    Keys come in no order. A ``continuation`` needs no other parameter than ``job`` and ``limit``;
    it is valid once, for a minute.
    """

    job: Name
    prefix: KeyText | None = None
    start: KeyText | None = None
    stop: KeyText | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ITEMS)] = 1000
    continuation: Annotated[str, Meta(max_length=200)] | None = None


@dataclass(frozen=True, kw_only=True)
class TopQuery:
    """The keys with the largest values; ``by`` names a part of the value."""

    job: Name
    n: Annotated[int, Meta(ge=1, le=MOST_ITEMS)] = 10
    by: Name | None = None

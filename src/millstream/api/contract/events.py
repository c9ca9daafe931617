"""What happened to a run, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from millstream.api.contract.terms import Count

MOST_EVENTS = 1000


@dataclass(frozen=True, kw_only=True)
class DecisionView:
    """What a policy decided: from which figures, with which prediction, and what came of it.

    ``after`` and ``errors`` (by how much predictions were too high) are None until it shows.
    """

    policy: str
    actions: list[str]
    is_dry_run: bool
    inputs: dict[str, Any]
    predicted: dict[str, float]
    after: dict[str, Any] | None
    errors: dict[str, float] | None


@dataclass(frozen=True, kw_only=True)
class EventView:
    """Something that happened: ``kind`` is for tools, ``text`` for people.

    ``epoch`` is the newest that was committed. A decision of a policy has its ``decision``.
    """

    number: int
    time: float
    epoch: int
    kind: str
    text: str
    facts: dict[str, Any]
    decision: DecisionView | None = None


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events, oldest first; pass ``newest`` as ``since`` to get those that follow."""

    events: list[EventView]
    newest: int


@dataclass(frozen=True, kw_only=True)
class EventsQuery:
    """Events with a larger number than ``since``; the newest of them, if there are more."""

    since: Count = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = MOST_EVENTS

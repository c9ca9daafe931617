"""Events as the contract shows them; a decision together with what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.api.contract import DecisionView, Events, EventView
from millstream.checkpoints.tables import jsonable
from millstream.elastic.events import Event


def page_of(events: Sequence[Event], since: int, limit: int) -> Events:
    """The newest of the events with a number above ``since``."""
    outcomes = {event.facts.get("decision"): event for event in events if event.kind == "outcome"}
    found = [event for event in events if event.number > since][-limit:]
    newest = events[-1].number if events else 0
    return Events(events=[_view(event, outcomes) for event in found], newest=newest)


def _view(event: Event, outcomes: Mapping[Any, Event]) -> EventView:
    is_decision = event.kind == "decision"
    return EventView(
        number=event.number,
        time=event.time,
        epoch=event.epoch,
        kind=event.kind,
        text=event.text,
        facts=jsonable(event.facts),
        decision=_decision(event, outcomes.get(event.number)) if is_decision else None,
    )


def _decision(event: Event, outcome: Event | None) -> DecisionView:
    facts = jsonable(event.facts)
    came = {} if outcome is None else jsonable(outcome.facts)
    return DecisionView(
        policy=facts["policy"],
        actions=facts["actions"],
        is_dry_run=facts["dry_run"],
        inputs=facts["inputs"],
        predicted=facts["predicted"],
        after=came.get("after"),
        errors=came.get("errors"),
    )

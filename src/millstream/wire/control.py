"""What users are shown of a running workflow: its nodes, its progress, what happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from millstream.elastic.events import Event

Role = Literal["active", "standby", "leaving"]
"""What a member is for: to hold slots, to wait until it is needed, or to give up what it holds."""


@dataclass(frozen=True)
class NodeStatus:
    """A node at one moment: its own slots, and the slots that it has copies of."""

    node: str
    host: str
    executor: str
    zone: str
    pid: int
    slots: int
    copies: int
    in_sync: int
    role: Role = "active"


@dataclass(frozen=True)
class EventPage:
    """Events, oldest first, and what the clock that timed them shows now."""

    now: float
    events: tuple[Event, ...]

    def by_clock(self, now: float) -> list[Event]:
        """The events with their times by another clock, which shows ``now`` at this moment."""
        return [replace(event, time=event.time - self.now + now) for event in self.events]

"""What users are shown of a running workflow: its nodes, its progress, what happened."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """A run as its coordinator sees it.

    ``under_way`` is the epoch that has been admitted and not committed, ``durable`` the newest
    epoch in the store, if there is one. ``target`` is how many nodes shall be active, ``pending``
    how many slots are on their way to another owner; a run ``is_settled`` when no change is under
    way. ``owned`` are the slots of each node. ``failure`` says why no epoch can be committed any
    more.
    """

    workflow: str
    incarnation: int
    committed: int
    under_way: int | None
    durable: int | None
    ring: int
    slots: int
    target: int
    pending: int
    is_settled: bool
    nodes: tuple[NodeStatus, ...]
    owned: Mapping[str, tuple[range, ...]]
    lost: tuple[str, ...]
    fenced_alive: tuple[str, ...]
    slow: tuple[str, ...]
    waits: tuple[str, ...]
    failure: str | None

    @property
    def active(self) -> int:
        """How many nodes are active."""
        return sum(node.role == "active" for node in self.nodes)


@dataclass(frozen=True)
class EventPage:
    """Events, oldest first, and what the clock that timed them shows now."""

    now: float
    events: tuple[Event, ...]

    def by_clock(self, now: float) -> list[Event]:
        """The events with their times by another clock, which shows ``now`` at this moment."""
        return [replace(event, time=event.time - self.now + now) for event in self.events]

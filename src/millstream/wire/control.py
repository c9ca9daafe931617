"""Describing and changing a running workflow: what its user sends to the coordinator.

Nodes may be named by the beginning of their id. Changes take effect between two epochs; their
answer describes the run as it is when the change was accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from millstream.elastic.events import Event
from millstream.wire.request import Request

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


@dataclass(frozen=True)
class DescribeRun(Request[RunDescription]):
    """Asks for the nodes, the slots and the progress of the run."""


@dataclass(frozen=True)
class ListEvents(Request[EventPage]):
    """Asks for the retained events later than a time of the run's clock."""

    since: float


@dataclass(frozen=True)
class ScaleTo(Request[RunDescription]):
    """Sets how many nodes shall be active."""

    nodes: int


@dataclass(frozen=True)
class Rebalance(Request[RunDescription]):
    """Gives every node a fair share of the load."""


@dataclass(frozen=True)
class DrainNode(Request[RunDescription]):
    """Lets a node give up its slots and leave."""

    node: str


@dataclass(frozen=True)
class MoveSlots(Request[RunDescription]):
    """Makes a node the owner of slots."""

    slots: tuple[range, ...]
    to: str

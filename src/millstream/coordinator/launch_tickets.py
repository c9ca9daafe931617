"""Tickets of nodes that are started for a running workflow.

The pool says how many nodes to start on which executors; Spark's tasks claim them, and each claim
is given a ticket, with which one node may join. Spark may run a task twice: then there are more
claims than launches, or more processes than tickets, and what is too much is rejected.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.elastic.pool_plan import LaunchPlan
from millstream.wire.membership import ClaimLaunch, FencedError
from millstream.wire.net import Net

VALID = 60.0
"""How many seconds a node has to start and to join."""


@dataclass(frozen=True)
class Ticket:
    """Admits one node, which was started on an executor, until it expires."""

    name: str
    executor: str
    host: str
    expires: float


@dataclass(frozen=True)
class TicketsView:
    """The launches at one moment: claimed by executor, and not claimed yet."""

    version: int
    starting: Mapping[str, int]
    unclaimed: int


class LaunchTickets:
    """Knows which nodes are expected to join."""

    def __init__(self, net: Net, valid: float = VALID) -> None:
        self._net = net
        self._lock = net.lock()
        self._valid = valid
        self._plan = LaunchPlan()
        self._tickets: dict[str, Ticket] = {}
        self._version = 0

    def view(self) -> TicketsView:
        """The launches as they are now."""
        with self._lock:
            starting = Counter(ticket.executor for ticket in self._tickets.values())
            return TicketsView(self._version, starting, self._plan.total)

    def allow(self, plan: LaunchPlan, seen: TicketsView | None = None) -> None:
        """Let tasks claim the launches of a plan, instead of those not claimed before.

        A plan that was made from a view which is out of date is dropped: a launch that was claimed
        meanwhile would be made twice.
        """
        with self._lock:
            stale = seen is not None and seen.version != self._version
            self._plan = LaunchPlan() if stale else plan

    def claim(self, request: ClaimLaunch) -> str | None:
        """Give a task the ticket of a node to start on its executor, if one is wanted there."""
        with self._lock:
            rest = self._plan.claimed_by(request.executor)
            if rest is None:
                return None
            self._plan = rest
            name = uuid.uuid4().hex
            self.expect(name, request.executor, request.host)
            return name

    def expect(self, name: str, executor: str, host: str) -> None:
        """Expect one node to join with a ticket."""
        with self._lock:
            expires = self._net.now() + self._valid
            self._tickets[name] = Ticket(name, executor, host, expires)
            self._version += 1

    def check(self, name: str) -> None:
        """Raise ``FencedError`` unless a ticket is valid."""
        with self._lock:
            ticket = self._tickets.get(name)
            if ticket is None or self._net.now() >= ticket.expires:
                raise FencedError("another node joined with this ticket, or it has expired")

    def spend(self, name: str) -> None:
        """Admit no further node with a ticket."""
        with self._lock:
            if self._tickets.pop(name, None) is not None:
                self._version += 1

    def remove_expired(self) -> list[Ticket]:
        """Remove the tickets that nobody used in time, and return them."""
        with self._lock:
            now = self._net.now()
            expired = [ticket for ticket in self._tickets.values() if now >= ticket.expires]
            for ticket in expired:
                self.spend(ticket.name)
            return expired

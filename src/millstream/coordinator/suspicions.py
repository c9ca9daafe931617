"""Who is taken for dead: refused calls, long silence, or persistent reports. No I/O, no clock.

A process that is gone refuses its callers at once; one that is slow or stopped is silent, and
gets time. A node that answers the coordinator, but that another cannot reach time after time, is
of no use to that one: it is fenced as if it were dead, if its slots have other copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from millstream.ring.ring import NodeId


class Verdict(Enum):
    """What is to be done about a suspected node."""

    ALIVE = "alive"
    ASK_AGAIN = "ask again"
    UNREACHABLE = "alive, but unreachable for others"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the coordinator waits before it takes a node for dead (seconds, counts)."""

    silence: float = 10.0
    refusals: int = 2
    reports: int = 4
    memory: float = 10.0


class Suspicions:
    """What speaks against each node."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._silent_since: dict[NodeId, float] = {}
        self._refusals: dict[NodeId, int] = {}
        self._reports: dict[NodeId, float] = {}

    def reported(self, node: NodeId, times: int, now: float) -> None:
        """Somebody could not reach the node so many times in a row."""
        if times >= self._patience.reports:
            self._reports[node] = now

    def answered(self, node: NodeId, now: float) -> Verdict:
        """The node has answered the coordinator."""
        self._silent_since.pop(node, None)
        self._refusals.pop(node, None)
        if now - self._reports.get(node, -self._patience.memory) < self._patience.memory:
            return Verdict.UNREACHABLE
        return Verdict.ALIVE

    def failed(self, node: NodeId, refused: bool, asked: float, now: float) -> Verdict:
        """The node has refused the coordinator, or not answered since it was asked."""
        silent_since = self._silent_since.setdefault(node, asked)
        if refused:
            self._refusals[node] = self._refusals.get(node, 0) + 1
            if self._refusals[node] >= self._patience.refusals:
                return Verdict.DEAD
        return Verdict.DEAD if now - silent_since >= self._patience.silence else Verdict.ASK_AGAIN

    def forget(self, node: NodeId) -> None:
        """The node is out of the run."""
        self._silent_since.pop(node, None)
        self._refusals.pop(node, None)
        self._reports.pop(node, None)

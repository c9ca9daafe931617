"""Evidence of failures: refused connections, silence, broken links. No I/O, no clock.

Connections to a process that has ended are refused at once. A slow process answers its pings late:
it is *silent* only when it has answered no ping for ``node_timeout``, counted in the timeouts of
pings and not by the clock, so that a pause of the coordinator does not count against the node. A
node that answers the coordinator, but that a peer cannot reach, has a broken link if that stays so
over several rounds, in each of which the coordinator reached it.

Here are the counts and their thresholds; ``fencing`` decides which nodes are declared dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from millstream.ring.ring import NodeId

Reporter = str
"""A node, or an attempt of a task."""

# Timeouts grow: pings are sent when these shares of ``node_timeout`` have passed.
_PING_AT = (0.1, 0.25, 0.5)
_MIN_TIMEOUT = 0.05


class Verdict(Enum):
    """What is known about a node that was not reached."""

    ALIVE = "alive"
    UNDECIDED = "undecided"
    SILENT = "silent for node_timeout"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the coordinator waits before it declares a node dead (seconds, counts).

    ``silence`` is ``node_timeout``; for a node with the last copies of slots it is multiplied by
    ``last_copy``. A link is broken after so many ``rounds``, over at least ``silence``; reports
    further apart than ``memory`` are unrelated.
    """

    silence: float = 10.0
    refusals: int = 2
    rounds: int = 4
    memory: float = 30.0
    last_copy: int = 3


@dataclass
class _Link:
    """Rounds in a row in which a reporter did not reach a node that answered the coordinator."""

    first: float
    last: float
    rounds: int = 0


class FailureEvidence:
    """The evidence against each node, compared with the thresholds of ``Patience``."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._silent: dict[NodeId, float] = {}
        self._refusals: dict[NodeId, int] = {}
        self._links: dict[tuple[NodeId, Reporter], _Link] = {}

    # -- the coordinator's own pings ------------------------------------------------------

    def ping_timeout(self, node: NodeId) -> float:
        """The timeout of the next ping to a node."""
        silent, silence = self._silent.get(node, 0.0), self._patience.silence
        ends = [share * silence for share in _PING_AT]
        end = next((end for end in ends if end > silent), silence)
        return max(_MIN_TIMEOUT, end - silent if silent < silence else silence / 2)

    def answered(self, node: NodeId) -> Verdict:
        """Note that a node has answered the coordinator."""
        self._silent.pop(node, None)
        self._refusals.pop(node, None)
        return Verdict.ALIVE

    def is_last_refusal(self, node: NodeId) -> bool:
        """Whether one more refusal makes a node dead."""
        return self._refusals.get(node, 0) + 1 >= self._patience.refusals

    def failed(self, node: NodeId, refused: bool, seconds: float) -> Verdict:
        """Note that a node has refused a ping, or not answered it for so many seconds."""
        silent = self._silent[node] = self._silent.get(node, 0.0) + seconds
        if refused:
            self._refusals[node] = self._refusals.get(node, 0) + 1
            if self._refusals[node] >= self._patience.refusals:
                return Verdict.DEAD
        if silent >= self._patience.silence * self._patience.last_copy:
            return Verdict.DEAD
        return Verdict.SILENT if silent >= self._patience.silence else Verdict.UNDECIDED

    def silent(self) -> list[NodeId]:
        """The nodes that have not answered for half of ``node_timeout``, or longer."""
        return [n for n, seconds in self._silent.items() if seconds >= self._patience.silence / 2]

    def silent_too_long(self) -> list[NodeId]:
        """The nodes that have not answered for ``node_timeout``."""
        return [n for n, seconds in self._silent.items() if seconds >= self._patience.silence]

    # -- reports of peers and tasks ------------------------------------------------------

    def add_report(self, node: NodeId, by: Reporter, rounds: int, now: float) -> bool:
        """Note that a reporter did not reach a node that just answered the coordinator.

        Returns whether the link between them is broken. Reports in quick succession are one round.
        """
        patience, pair = self._patience, (node, by)
        link = self._links.get(pair)
        if link is None or rounds <= 1 or now - link.last > patience.memory:
            link = self._links[pair] = _Link(now, now, 1)
        elif now - link.last >= patience.silence / (2 * patience.rounds):
            link.last, link.rounds = now, link.rounds + 1
        return link.rounds >= patience.rounds and now - link.first >= patience.silence

    def has_more_broken_links(self, node: NodeId, by: Reporter, now: float) -> bool:
        """Whether the reporter has more links that may be broken than the node."""
        return self._partners(NodeId(by), now) > self._partners(node, now)

    def _partners(self, node: NodeId, now: float) -> int:
        recent = [p for p, link in self._links.items() if now - link.last <= self._patience.memory]
        return len({a if b == node else b for a, b in recent if node in (a, b)})

    def forget(self, node: NodeId) -> None:
        """Drop the evidence against a node that left the ring, and all links, which may change."""
        self._silent.pop(node, None)
        self._refusals.pop(node, None)
        self._links.clear()

"""The inquiry: pings, to find out whether a node that somebody could not reach is dead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from millstream.coordinator.failure_evidence import FailureEvidence, Patience, Reporter, Verdict
from millstream.coordinator.roster import Roster
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.net import Net

_PING_TIMEOUT = 1.0
_SWEEP_TIMEOUT = 0.5
_ASK_AGAIN = 0.05
_ROUNDS = 3


class NodeRpc(Protocol):
    """What an inquiry needs of the coordinator."""

    @property
    def net(self) -> Net: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def closed(self) -> bool: ...

    def ask(self, node: NodeId, action: str, body: object, timeout: float) -> Any: ...


class FailureDetector:
    """Asks nodes whether they live; one inquiry about a node at a time."""

    def __init__(self, asking: NodeRpc, patience: Patience) -> None:
        self._rpc = asking
        self._net = asking.net
        self._evidence = FailureEvidence(patience)
        self._lock = self._net.lock()
        self._about: dict[NodeId, Any] = {}
        self._under_way: set[NodeId] = set()

    @contextmanager
    def about(self, node: NodeId) -> Iterator[None]:
        """Look into a node; others who ask about it wait."""
        with self._lock:
            mine = self._about.setdefault(node, self._net.lock())
        with mine:
            self._under_way.add(node)
            try:
                yield
            finally:
                self._under_way.discard(node)

    def is_under_way(self, node: NodeId) -> bool:
        """Whether somebody looks into a node already."""
        return node in self._under_way

    def forget(self, node: NodeId) -> None:
        """The node is gone for good."""
        with self._lock:
            self._evidence.forget(node)

    def silent(self) -> list[NodeId]:
        """The nodes that do not answer at present."""
        with self._lock:
            return self._evidence.silent()

    def finding(self, node: NodeId) -> Verdict:
        """Ask a node until it answers, or has not for too long."""
        while not self._rpc.closed:
            verdict = self._verdict(node)
            if verdict is not Verdict.ASK_AGAIN:
                return verdict
        return Verdict.ALIVE

    def _verdict(self, node: NodeId) -> Verdict:
        with self._lock:
            timeout = self._evidence.ping_timeout(node)
        asked = self._net.now()
        [answer] = self._net.gather([partial(self._ping, node, timeout)])
        if not isinstance(answer, UnreachableError):
            with self._lock:
                return self._evidence.answered(node)
        self._net.sleep(_ASK_AGAIN)
        # No longer than the ping was to wait: the coordinator may have been stopped meanwhile.
        waited = min(self._net.now() - asked, timeout + _ASK_AGAIN)
        with self._lock:
            return self._evidence.failed(node, answer.refused, waited)

    def is_cut_off(self, node: NodeId, by: Reporter, rounds: int) -> bool:
        """Whether the link of a reporter to a node, which just answered us, is broken."""
        with self._lock:
            return self._evidence.unreached(node, by, rounds, self._net.now())

    def to_blame(self, node: NodeId, by: Reporter) -> NodeId:
        """Which end of a broken link to do without: the one with more links of that kind."""
        with self._lock:
            worse = by in self._rpc.roster.domains and self._evidence.worse(
                node, by, self._net.now()
            )
        return NodeId(by) if worse else node

    def can_do_without(self, node: NodeId) -> bool:
        """Whether nodes that answer now have complete copies of all that a node owns."""
        others = [other for other in self._rpc.roster.nodes if other != node]
        answers = self._net.gather([partial(self._ping, other, _PING_TIMEOUT) for other in others])
        silent = [o for o, a in zip(others, answers, strict=True) if isinstance(a, Exception)]
        return self._rpc.roster.survives([node, *silent])

    def others_gone(self, known: NodeId) -> list[NodeId]:
        """Nodes that are gone as well: whole executors and zones go at once."""
        others = [node for node in self._rpc.roster.nodes if node != known]
        dead: set[NodeId] = set()
        for _ in range(_ROUNDS):
            asked = [node for node in others if node not in dead]
            verdicts = self._net.gather([partial(self._refuses, node) for node in asked])
            found = {n for n, gone in zip(asked, verdicts, strict=True) if gone is True}
            dead |= found
            if not found:
                break
        return sorted(dead)

    def _refuses(self, node: NodeId) -> bool:
        """Whether a node refuses its callers, asked twice; silence is another matter."""
        for _ in range(2):
            try:
                self._ping(node, _SWEEP_TIMEOUT)
                return False
            except UnreachableError as problem:
                if not problem.refused:
                    return False
        return True

    def _ping(self, node: NodeId, timeout: float) -> None:
        self._rpc.ask(node, "ping", None, timeout)

"""The inquiry: whether a node that somebody could not reach is to be taken for dead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from millstream.coordinator.roster import Roster
from millstream.coordinator.suspicions import Patience, Suspicions, Verdict
from millstream.ring.ring import NodeId
from millstream.wire.calls import Unreachable
from millstream.wire.net import Net

_PING_TIMEOUT = 1.0
_SWEEP_TIMEOUT = 0.5
_ASK_AGAIN = 0.05
_ROUNDS = 3


class Asking(Protocol):
    """What an inquiry needs of the coordinator."""

    @property
    def net(self) -> Net: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def closed(self) -> bool: ...

    def ask(self, node: NodeId, action: str, body: object, timeout: float) -> Any: ...


class Inquiry:
    """Asks nodes whether they live; one inquiry about a node at a time."""

    def __init__(self, asking: Asking, patience: Patience) -> None:
        self._asking = asking
        self._net = asking.net
        self._suspicions = Suspicions(patience)
        self._lock = self._net.lock()
        self._about: dict[NodeId, Any] = {}

    @contextmanager
    def about(self, node: NodeId, times: int) -> Iterator[None]:
        """Look into a node that was tried in vain so often; others who ask about it wait."""
        with self._lock:
            self._suspicions.reported(node, times, self._net.now())
            mine = self._about.setdefault(node, self._net.lock())
        with mine:
            yield

    def forget(self, node: NodeId) -> None:
        """The node is gone for good."""
        with self._lock:
            self._suspicions.forget(node)

    def finding(self, node: NodeId) -> Verdict:
        """Whether a node is alive, dead, or out of reach for others who can do without it."""
        while not self._asking.closed:
            verdict = self._verdict(node)
            if verdict is Verdict.UNREACHABLE and not self._can_do_without(node):
                return Verdict.ALIVE
            if verdict is not Verdict.ASK_AGAIN:
                return verdict
            self._net.sleep(_ASK_AGAIN)
        return Verdict.ALIVE

    def _verdict(self, node: NodeId) -> Verdict:
        asked = self._net.now()
        try:
            self._ping(node, _PING_TIMEOUT)
        except Unreachable as problem:
            with self._lock:
                return self._suspicions.failed(node, problem.refused, asked, self._net.now())
        with self._lock:
            return self._suspicions.answered(node, self._net.now())

    def _can_do_without(self, node: NodeId) -> bool:
        """Whether nodes that answer now have complete copies of all that a node owns."""
        others = [other for other in self._asking.roster.nodes if other != node]
        answers = self._net.gather([partial(self._ping, other, _PING_TIMEOUT) for other in others])
        silent = [o for o, a in zip(others, answers, strict=True) if isinstance(a, Exception)]
        return self._asking.roster.survives([node, *silent])

    def others_gone(self, known: NodeId) -> list[NodeId]:
        """Nodes that are gone as well: whole executors and zones go at once."""
        others = [node for node in self._asking.roster.nodes if node != known]
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
            except Unreachable as problem:
                if not problem.refused:
                    return False
        return True

    def _ping(self, node: NodeId, timeout: float) -> None:
        self._asking.ask(node, "ping", None, timeout)

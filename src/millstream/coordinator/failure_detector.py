"""The failure detector: pings a node that was not reached, and gives a verdict about it.

Whether the node is fenced is decided in ``fencing``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from millstream.coordinator.failure_evidence import FailureEvidence, Patience, Reporter, Verdict
from millstream.coordinator.run_context import RunContext
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.membership import Ping
from millstream.wire.timeouts import PING_TIMEOUT, RETRY_PAUSE

_SWEEP_TIMEOUT = 0.5
_SWEEPS = 3


class FailureDetector:
    """Pings nodes; one investigation of a node at a time."""

    def __init__(self, run: RunContext, patience: Patience) -> None:
        self._run = run
        self._net = run.net
        self._evidence = FailureEvidence(patience)
        self._lock = self._net.lock()
        self._looked = -math.inf  # when all nodes were looked at last
        self._heard: dict[NodeId, float] = {}  # when a node answered another ping of ours
        self._locks: dict[NodeId, Any] = {}
        self._investigated: set[NodeId] = set()

    @contextmanager
    def investigation(self, node: NodeId) -> Iterator[None]:
        """Investigate a node; others that want to investigate it wait."""
        with self._lock:
            lock = self._locks.setdefault(node, self._net.lock())
        with lock:
            self._investigated.add(node)
            try:
                yield
            finally:
                self._investigated.discard(node)

    def is_investigating(self, node: NodeId) -> bool:
        """Whether an investigation of a node is under way."""
        return node in self._investigated

    def hear(self, nodes: Iterable[NodeId]) -> None:
        """Note that nodes have answered the coordinator's regular pings."""
        now = self._net.now()
        with self._lock:
            self._heard.update(dict.fromkeys(nodes, now))

    def forget(self, node: NodeId) -> None:
        """Drop the evidence against a node that is out of the run."""
        with self._lock:
            self._evidence.forget(node)
            self._heard.pop(node, None)

    def silent(self) -> list[NodeId]:
        """The nodes that do not answer at present."""
        with self._lock:
            return self._evidence.silent()

    def silent_too_long(self) -> list[NodeId]:
        """The nodes that have not answered for ``node_timeout``."""
        with self._lock:
            return self._evidence.silent_too_long()

    def await_verdict(self, node: NodeId) -> Verdict:
        """Ping a node until it answers, or has not answered for too long."""
        while not self._run.is_closed:
            verdict = self._ping_once(node)
            if verdict is not Verdict.UNDECIDED:
                return verdict
        return Verdict.ALIVE

    def _ping_once(self, node: NodeId) -> Verdict:
        with self._lock:
            timeout = self._evidence.ping_timeout(node)
            last_chance = self._evidence.is_last_refusal(node)
        began = self._net.now()
        [answer] = self._net.gather([partial(self._ping, node, timeout)])
        if not isinstance(answer, UnreachableError):
            with self._lock:
                return self._evidence.answered(node)
        if not (answer.refused and last_chance):
            self._net.sleep(RETRY_PAUSE)
        # At most the timeout: the coordinator itself may have been paused meanwhile.
        waited = min(self._net.now() - began, timeout + RETRY_PAUSE)
        with self._lock:
            # A ping may be lost, and a paused node may answer another one first.
            if not answer.refused and self._heard.get(node, -math.inf) > began:
                return self._evidence.answered(node)
            return self._evidence.failed(node, answer.refused, waited)

    def is_cut_off(self, node: NodeId, by: Reporter, rounds: int) -> bool:
        """Whether the link of a reporter to a node, which just answered us, is broken."""
        with self._lock:
            return self._evidence.add_report(node, by, rounds, self._net.now())

    def to_blame(self, node: NodeId, by: Reporter) -> NodeId:
        """The end of a broken link to fence: the one with more broken links."""
        with self._lock:
            worse = by in self._run.roster.domains and self._evidence.has_more_broken_links(
                node, by, self._net.now()
            )
        return NodeId(by) if worse else node

    def is_dispensable(self, node: NodeId) -> bool:
        """Whether nodes that answer now have complete copies of all that a node owns."""
        others = [other for other in self._run.roster.nodes if other != node]
        answers = self._net.gather([partial(self._ping, other, PING_TIMEOUT) for other in others])
        silent = [o for o, a in zip(others, answers, strict=True) if isinstance(a, Exception)]
        return self._run.roster.survives_without([node, *silent])

    def others_dead(self, known: NodeId) -> list[NodeId]:
        """Further nodes that are dead: executors and zones fail as a whole.

        None just after they were looked for: then they are being taken over.
        """
        if self._net.now() - self._looked < _SWEEP_TIMEOUT:
            return []
        others = [node for node in self._run.roster.nodes if node != known]
        dead: set[NodeId] = set()
        for _ in range(_SWEEPS):
            pinged = [node for node in others if node not in dead]
            verdicts = self._net.gather([partial(self._refuses, node) for node in pinged])
            refusing = {n for n, refuses in zip(pinged, verdicts, strict=True) if refuses is True}
            dead |= refusing
            if not refusing:
                break
        self._looked = self._net.now()
        return sorted(dead)

    def _refuses(self, node: NodeId) -> bool:
        """Whether a node refuses two connections in a row; a timeout proves nothing."""
        for _ in range(2):
            try:
                self._ping(node, _SWEEP_TIMEOUT)
                return False
            except UnreachableError as problem:
                if not problem.refused:
                    return False
        return True

    def _ping(self, node: NodeId, timeout: float) -> None:
        self._run.rpc.call(node, Ping(), timeout)

"""Fencing: nodes that are declared dead leave the ring, and their slots are reassigned.

A slow node is not a dead node. A node is fenced when its process has ended; when it did not answer
for ``node_timeout``; or when its link to a peer stays broken, though it answers the coordinator. In
the last two cases it may be alive, so the copies must suffice without it: every slot has a complete
copy on a node that answers, or the store can restore it. Otherwise the coordinator waits for it.
After three times ``node_timeout`` (``Patience.last_copy``) a silent node is declared dead even if
no other copy exists.

The decision is made here. ``FailureDetector`` pings nodes and gives a verdict about one;
``FailureEvidence`` counts what was observed and compares it with the thresholds of ``Patience``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from millstream.coordinator.failure_detector import FailureDetector
from millstream.coordinator.failure_evidence import Patience, Reporter, Verdict
from millstream.coordinator.rereplication import Rereplication
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunContext
from millstream.ring.drawing import draw
from millstream.ring.ring import NodeId

log = logging.getLogger("millstream")


class Fencing:
    """Decides which nodes are dead; it alone removes nodes from the roster."""

    def __init__(
        self,
        run: RunContext,
        rereplication: Rereplication,
        lock: AbstractContextManager[Any],
        changing: AbstractContextManager[Any],
        patience: Patience,
    ) -> None:
        """``changing`` is held by whoever changes the placement."""
        self._run = run
        self._net = run.net
        self._rereplication = rereplication
        self._lock = lock
        self._changing = changing
        self._detector = FailureDetector(run, patience)
        self._taking_over = run.net.lock()
        self._fenced_alive: list[NodeId] = []
        self._fenced_since_replicated = 0
        self.on_lost: Callable[[], None] = lambda: None
        self.state_lost: StateLostError | None = None

    @property
    def fenced_alive(self) -> tuple[NodeId, ...]:
        """The nodes that answered when they were fenced, or have called since."""
        return tuple(self._fenced_alive)

    def note_alive(self, node: NodeId) -> None:
        """Note that a fenced node is alive."""
        with self._lock:
            if node not in self._fenced_alive:
                self._fenced_alive.append(node)

    def investigate(self, node: NodeId, by: Reporter | None = None, rounds: int = 0) -> None:
        """Ping a node that was not reached, and reassign its slots if it is dead.

        ``rounds`` is how often in a row a peer or a task could not reach it.
        """
        if self.state_lost is not None:
            raise self.state_lost
        if node not in self._run.roster.domains or self._run.is_closed:
            return
        with self._detector.investigation(node):
            if self._await_answer_or_fence(node) and by is not None:
                if self._detector.is_cut_off(node, by, rounds):
                    self._fence_one_end(node, by)

    def is_investigating(self, node: NodeId) -> bool:
        """Whether an investigation of a node is under way."""
        return self._detector.is_investigating(node)

    def hear(self, nodes: Iterable[NodeId]) -> None:
        """Note that nodes have answered the coordinator's regular pings."""
        self._detector.hear(nodes)

    def _await_answer_or_fence(self, node: NodeId) -> bool:
        """Ping a node until it answers (True), or fence it (False)."""
        with self._run.waits.wait(f"the decision about node {node[:8]}") as wait:
            while node in self._run.roster.domains and self.state_lost is None:
                verdict = self._detector.await_verdict(node)
                if verdict is Verdict.ALIVE:
                    return True
                if verdict is Verdict.SILENT and not self._is_replaceable(node):
                    wait.because("it does not answer, but some of its slots have no other copy")
                    continue
                # One after the other: of many that died together, the first finds the others.
                with self._taking_over:
                    if node in self._run.roster.domains:
                        # All that are silent were counted when it was found replaceable.
                        also = self._detector.silent_too_long() if verdict is Verdict.SILENT else []
                        self._take_over([node, *also, *self._detector.others_dead(node)])
        return False

    def _is_replaceable(self, node: NodeId) -> bool:
        """Whether all slots of a silent node have other copies, or are in the store."""
        run, dead = self._run, [node, *self._detector.silent()]
        answering = [other for other in run.roster.nodes if other not in dead]
        if not answering:
            return False  # the coordinator itself may be cut off
        if run.commits.can_restore(run.ledger.committed) or run.roster.survives_without(dead):
            return True
        self._rereplication.update_reach(answering)
        return run.roster.survives_without(dead)

    # -- broken links --------------------------------------------------------------------

    def _fence_one_end(self, node: NodeId, by: Reporter) -> None:
        """Of two nodes that cannot reach each other, fence one, if the copies suffice."""
        roster = self._run.roster
        victim = self._detector.to_blame(node, by)
        if not self._detector.is_dispensable(victim):
            self._run.waits.slow(victim, "it answers, but other nodes cannot reach it")
            return
        with self._changing:
            if not roster.is_under_replicated:
                self._fenced_since_replicated = 0
            ends = [end for end in (node, by) if end in roster.dead_nodes]
            most = max(1, roster.replicas)
            enough = self._fenced_since_replicated >= most
            if ends or enough or not roster.survives_without([victim]):
                return  # one end is fenced already, or copies are still missing since the last time
            self._fenced_since_replicated += 1
            self.note_alive(victim)
            log.warning(
                "node %s answers, but node %s cannot reach it: the link is broken",
                node[:8],
                by[:8],
            )
            self._take_over([victim])

    # -- takeover ------------------------------------------------------------------------

    def _take_over(self, declared: list[NodeId]) -> None:
        run = self._run
        with self._changing:
            dead = [node for node in dict.fromkeys(declared) if node in run.roster.domains]
            if not dead:
                return  # another thread was first
            if not run.roster.survives_without(dead):
                self._rereplication.update_reach(n for n in run.roster.nodes if n not in dead)
            with self._lock:
                self._remove(dead)
        log.warning(
            "declared dead: %s; reassigned their slots\n%s",
            ", ".join(node[:8] for node in dead),
            draw(run.roster.placement, run.roster.domains),
        )
        for node in dead:
            run.events.add("lost", f"node {node[:8]} was declared dead", {"node": node})
        run.publish_placement()
        # They may be alive, and unreachable for others only.
        run.stop_removed(dead)

    def _remove(self, dead: list[NodeId]) -> None:
        run = self._run
        try:
            restorable = run.commits.can_restore(run.ledger.committed)
            run.roster.remove(dead, restorable=restorable)
            run.ledger.replace_placement()
        except StateLostError as lost:
            self.state_lost = lost
            self._net.spawn(self.on_lost, "lost")
            raise
        finally:
            for node in dead:
                self._detector.forget(node)
                run.waits.forget(node)
                run.rpc.forget(node)

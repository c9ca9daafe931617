"""Fencing: nodes that are dead are taken out of the ring, and their slots reassigned.

A node that is slow is not a node that is dead. It is fenced when its process is gone; when it was
silent for ``node_timeout``; or when its link to a peer stays broken, though it answers us. In the
last two cases it may be alive, so its loss must be one that the copies can bear: every slot has a
complete copy on a node that answers, or the store can restore it. Else it is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from millstream.coordinator.commit_modes import CommitMode
from millstream.coordinator.failure_detector import FailureDetector
from millstream.coordinator.failure_evidence import Patience, Reporter, Verdict
from millstream.coordinator.rereplication import Rereplication
from millstream.coordinator.roster import StateLostError
from millstream.coordinator.run_context import RunContext
from millstream.coordinator.wait_log import WaitLog
from millstream.ring.drawing import draw
from millstream.ring.ring import NodeId

log = logging.getLogger("millstream")


class FencingRun(RunContext, Protocol):
    """What fencing needs of the coordinator."""

    @property
    def commits(self) -> CommitMode: ...

    @property
    def closed(self) -> bool: ...

    def ask(self, node: NodeId, action: str, body: object, timeout: float) -> Any: ...

    def tell(self) -> None: ...

    def dismiss(self, nodes: list[NodeId]) -> None: ...


class Fencing:
    """Decides which nodes are lost; it alone takes nodes out of the roster."""

    def __init__(
        self,
        run: FencingRun,
        healing: Rereplication,
        waits: WaitLog,
        lock: AbstractContextManager[Any],
        changing: AbstractContextManager[Any],
        patience: Patience,
    ) -> None:
        """``changing`` is held by whoever changes the placement."""
        self._run = run
        self._net = run.net
        self._rereplication = healing
        self._waits = waits
        self._lock = lock
        self._changing = changing
        self._inquiry = FailureDetector(run, patience)
        self._alive: list[NodeId] = []
        self._since_whole = 0
        self.on_lost: Callable[[], None] = lambda: None
        self.lost: StateLostError | None = None

    @property
    def fenced_alive(self) -> tuple[NodeId, ...]:
        """The nodes that answered when they were fenced, or have been heard of since."""
        return tuple(self._alive)

    def returned(self, node: NodeId) -> None:
        """A node that was fenced has called."""
        with self._lock:
            if node not in self._alive:
                self._alive.append(node)

    def suspect(self, node: NodeId, by: Reporter | None = None, rounds: int = 0) -> None:
        """Look at a node that somebody could not reach, and take over its slots if it is dead.

        ``rounds`` is how often in a row a peer or a task has tried in vain.
        """
        if self.lost is not None:
            raise self.lost
        if node not in self._run.roster.domains or self._run.closed:
            return
        with self._inquiry.about(node):
            if self._is_alive(node) and by is not None:
                if self._inquiry.is_cut_off(node, by, rounds):
                    self._part(node, by)

    def is_under_inquiry(self, node: NodeId) -> bool:
        """Whether somebody looks into a node already."""
        return self._inquiry.is_under_way(node)

    def _is_alive(self, node: NodeId) -> bool:
        """Ask a node until it answers; False if it was taken out instead."""
        with self._waits.wait(f"the decision about node {node[:8]}") as wait:
            while node in self._run.roster.domains and self.lost is None:
                verdict = self._inquiry.finding(node)
                if verdict is Verdict.ALIVE:
                    return True
                if verdict is Verdict.SILENT and not self._can_bear(node):
                    wait.because("it does not answer, but some of its slots have no other copy")
                    continue
                self._take_over([node, *self._inquiry.others_gone(node)])
        return False

    def _can_bear(self, node: NodeId) -> bool:
        """Whether all slots of a node that is silent are elsewhere, or in the store."""
        run, gone = self._run, [node, *self._inquiry.silent()]
        answering = [other for other in run.roster.nodes if other not in gone]
        if not answering:
            return False  # it may as well be us whom nobody reaches
        if run.commits.can_restore(run.ledger.committed) or run.roster.survives(gone):
            return True
        self._rereplication.ask_reach(answering)
        return run.roster.survives(gone)

    # -- broken links --------------------------------------------------------------------

    def _part(self, node: NodeId, by: Reporter) -> None:
        """Of two nodes that cannot reach each other, lose one, if that can be borne."""
        roster = self._run.roster
        victim = self._inquiry.to_blame(node, by)
        if not self._inquiry.can_do_without(victim):
            self._waits.late(victim, "it answers, but not everybody reaches it")
            return
        with self._changing:
            if not roster.is_short:
                self._since_whole = 0
            ends = [end for end in (node, by) if end in roster.lost]
            most = max(1, roster.replicas)
            if ends or self._since_whole >= most or not roster.survives([victim]):
                return  # one of them is gone, or copies are still missing since the last time
            self._since_whole += 1
            self.returned(victim)
            log.warning(
                "node %s answers, but node %s does not reach it: the link is broken",
                node[:8],
                by[:8],
            )
            self._take_over([victim])

    # -- taking over ---------------------------------------------------------------------

    def _take_over(self, found: list[NodeId]) -> None:
        run = self._run
        with self._changing:
            dead = [node for node in found if node in run.roster.domains]
            if not dead:
                return  # by somebody else, meanwhile
            if not run.roster.survives(dead):
                self._rereplication.ask_reach(n for n in run.roster.nodes if n not in dead)
            with self._lock:
                self._lose(dead)
        log.warning(
            "took over the slots of %s\n%s",
            ", ".join(node[:8] for node in dead),
            draw(run.roster.placement, run.roster.domains),
        )
        run.tell()
        # They may be alive, and only out of reach for others.
        run.dismiss(dead)

    def _lose(self, dead: list[NodeId]) -> None:
        run = self._run
        try:
            restorable = run.commits.can_restore(run.ledger.committed)
            run.roster.lose(dead, restorable=restorable)
            run.ledger.replace_placement()
        except StateLostError as lost:
            self.lost = lost
            self._net.spawn(self.on_lost, "lost")
            raise
        finally:
            for node in dead:
                self._inquiry.forget(node)
                self._waits.forget(node)

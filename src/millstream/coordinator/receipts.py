"""Before the commit: receipts from all owners, and copies with their backups.

A node that does not answer in time is asked again, with more patience, for as long as it lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from millstream.coordinator.failure_evidence import Patience
from millstream.coordinator.rpc import ASK_TIMEOUT
from millstream.coordinator.run_context import RunContext
from millstream.coordinator.wait_log import WaitLog
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.messages import NodeReport, Receipts

log = logging.getLogger("millstream")

_ROUNDS = 3
_ASK_AGAIN = 0.05
_ASK_RARELY = 1.0
_LONGEST_ASK = 60.0
_COPIES_PATIENCE = 3


class Collected(RunContext, Protocol):
    """What collecting needs of the coordinator."""

    @property
    def waits(self) -> WaitLog: ...

    def ask_all(self, action: str, body: object, timeout: float) -> dict[NodeId, Any]: ...

    def ask_living(
        self, nodes: Iterable[NodeId], action: str, body: object, timeout: float
    ) -> dict[NodeId, Any]: ...

    def unanswered(self, node: NodeId, problem: UnreachableError, what: str) -> None: ...


class ReceiptCollector:
    """Makes the epoch under way ready for its commit."""

    def __init__(
        self, run: Collected, lock: AbstractContextManager[Any], patience: Patience
    ) -> None:
        self._run = run
        self._net = run.net
        self._lock = lock
        self._patience = patience

    def make_whole(self, evaluate: Callable[[], None]) -> dict[NodeId, NodeReport]:
        """Collect receipts; what has none is evaluated again, what lacks a copy copied again.

        Missing are the slots of a partition that nobody read, or of an owner that died with what
        it had acknowledged.
        """
        for _ in range(_ROUNDS):
            reports = self._collect()
            if not self._run.ledger.missing():
                break
            if self._run.ledger.taken_over:
                # What sinks were shown may have come from the lost owner; to evaluate the rest
                # again would not prove that the state is of the same input.
                self._run.ledger.require_complete()
            evaluate()
        else:
            reports = self._collect()
            self._run.ledger.require_complete()
        if self._resend():
            reports = self._collect()
            reports = self._await_copies() or reports
        return reports

    def _collect(self) -> dict[NodeId, NodeReport]:
        """Ask every node for its receipts of the epoch under way; an answer is a sign of life."""
        record = self._run.ledger.record
        assert record is not None
        timeout = ASK_TIMEOUT
        with self._run.waits.wait(f"the commit of epoch {record.epoch}") as wait:
            while True:
                version = self._run.roster.placement.version
                # A node that has yet to hear of a takeover would not answer for its new slots.
                answers = self._run.ask_all("receipts", (*record.at, version), timeout)
                why = []
                for node, answer in answers.items():
                    if isinstance(answer, Receipts):
                        with self._lock:
                            self._run.ledger.receive(node, answer)
                        if answer.pending:
                            why.append(f"node {node[:8]} replays logs or writes to the store")
                    elif isinstance(answer, UnreachableError):
                        self._run.unanswered(node, answer, f"receipts of epoch {record.epoch}")
                        timeout = min(2 * timeout, _LONGEST_ASK)
                        why.append(f"node {node[:8]} did not answer")
                    elif node in self._run.roster.domains:
                        raise answer
                heard = all(isinstance(answers.get(n), Receipts) for n in self._run.roster.nodes)
                if heard and version == self._run.roster.placement.version and not why:
                    return {n: a.report for n, a in answers.items() if isinstance(a, Receipts)}
                wait.because("; ".join(why) or "the ring has changed")
                self._net.sleep(_ASK_AGAIN)

    def _resend(self) -> bool:
        """Have owners send again what backups lack; True if there was anything."""
        record = self._run.ledger.record
        assert record is not None
        lagging = self._run.ledger.lagging()
        orders = [(owner, (backup, *record.at)) for owner, backup in lagging]
        self._net.gather(
            [
                partial(self._run.ask_living, [owner], "resend", order, _LONGEST_ASK)
                for owner, order in orders
            ]
        )
        return bool(lagging)

    def _await_copies(self) -> dict[NodeId, NodeReport]:
        """Wait for backups that live and lack a copy, if a slot would have no other without them.

        Not for ever: by then a link that is broken was found to be so. What is still missing is
        copied after the commit.
        """
        reports: dict[NodeId, NodeReport] = {}
        deadline = self._net.now() + _COPIES_PATIENCE * self._patience.silence
        pause = _ASK_AGAIN
        with self._run.waits.wait("a commit") as wait:
            while not self._run.ledger.missing() and self._run.ledger.leaves_alone():
                late = ", ".join(sorted({backup[:8] for _, backup in self._run.ledger.lagging()}))
                if self._net.now() > deadline:
                    log.warning("nodes %s have no copies of what was just committed", late)
                    break
                wait.because(f"nodes {late} have not taken their copies")
                self._net.sleep(pause)
                pause = min(2 * pause, _ASK_RARELY)
                self._resend()
                reports = self._collect()
        return reports

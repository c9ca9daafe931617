"""Before the commit: receipts from all owners, and copies on their backups.

A node that does not answer in time is called again, with a longer timeout, for as long as it lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from millstream.coordinator.failure_evidence import Patience
from millstream.coordinator.run_context import RunContext
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.receipts import CollectReceipts, NodeReport, Receipts
from millstream.wire.replication import ResendUnits
from millstream.wire.timeouts import CALL_TIMEOUT, RETRY_PAUSE

log = logging.getLogger("millstream")

_ROUNDS = 3
_MAX_PAUSE = 1.0
_MAX_TIMEOUT = 60.0
_COPIES_PATIENCE = 3


class ReceiptCollector:
    """Makes the epoch under way ready for its commit."""

    def __init__(
        self, run: RunContext, lock: AbstractContextManager[Any], patience: Patience
    ) -> None:
        self._run = run
        self._net = run.net
        self._lock = lock
        self._patience = patience

    def collect(self, evaluate: Callable[[], None]) -> dict[NodeId, NodeReport]:
        """Collect receipts; ``evaluate`` again what has none, and resend missing copies.

        Missing are the slots of a partition that no sink read, or of an owner that died with what
        it had acknowledged.
        """
        for _ in range(_ROUNDS):
            reports = self._collect()
            if not self._missing():
                break
            if self._run.ledger.taken_over:
                # Sinks may have read outputs of the dead owner; to evaluate the rest again would
                # not prove that the state has the same input.
                self._require_complete()
            evaluate()
        else:
            reports = self._collect()
            self._require_complete()
        if self._resend():
            reports = self._collect()
            reports = self._await_copies() or reports
        return reports

    # Under the lock: copies that are completed in the background mint placements meanwhile.

    def _missing(self) -> bool:
        with self._lock:
            return bool(self._run.ledger.missing())

    def _lagging(self) -> list[tuple[NodeId, NodeId]]:
        with self._lock:
            return self._run.ledger.lagging()

    def _leaves_single_copies(self) -> bool:
        with self._lock:
            return self._run.ledger.leaves_single_copies()

    def _require_complete(self) -> None:
        with self._lock:
            self._run.ledger.require_complete()

    def _collect(self) -> dict[NodeId, NodeReport]:
        """Collect the receipts of the epoch under way from every node."""
        record = self._run.ledger.record
        assert record is not None
        timeout = CALL_TIMEOUT
        roster = self._run.roster
        with self._run.waits.wait(f"the commit of epoch {record.epoch}") as wait:
            while True:
                version = roster.placement.version
                # A node that does not know of a takeover yet would not answer for its new slots.
                request = CollectReceipts(*record.at, version)
                answers = self._run.rpc.call_all(roster.holding, request, timeout)
                received = {n: each for n, each in answers.items() if isinstance(each, Receipts)}
                with self._lock:
                    for node, each in received.items():
                        self._run.ledger.receive(node, each)
                reasons = [
                    f"node {node[:8]} replays logs or writes to the store"
                    for node, each in received.items()
                    if each.pending
                ]
                for node, answer in answers.items():
                    if isinstance(answer, Receipts):
                        continue
                    if isinstance(answer, UnreachableError):
                        what = f"receipts of epoch {record.epoch}"
                        self._run.report_unanswered(node, answer, what)
                        timeout = min(2 * timeout, _MAX_TIMEOUT)
                        reasons.append(f"node {node[:8]} did not answer")
                    elif node in roster.domains:
                        raise answer
                answered = received.keys() >= set(roster.holding)
                if answered and version == roster.placement.version and not reasons:
                    return {node: each.report for node, each in received.items()}
                wait.because("; ".join(reasons) or "the ring has changed")
                self._net.sleep(RETRY_PAUSE)

    def _resend(self) -> bool:
        """Have owners resend what backups lack; return whether there was anything."""
        record = self._run.ledger.record
        assert record is not None
        lagging = self._lagging()
        call, living = self._run.rpc.call_living, self._run.roster.domains
        self._net.gather(
            [
                partial(call, [owner], living, ResendUnits(backup, *record.at), _MAX_TIMEOUT)
                for owner, backup in lagging
            ]
        )
        return bool(lagging)

    def _await_copies(self) -> dict[NodeId, NodeReport]:
        """Wait for backups that live and lack a copy, if a slot would have no other without them.

        The wait is bounded: by then a broken link was detected. What is still missing is copied
        after the commit.
        """
        reports: dict[NodeId, NodeReport] = {}
        deadline = self._net.now() + _COPIES_PATIENCE * self._patience.silence
        pause = RETRY_PAUSE
        with self._run.waits.wait("a commit") as wait:
            while not self._missing() and self._leaves_single_copies():
                late = ", ".join(sorted({backup[:8] for _, backup in self._lagging()}))
                if self._net.now() > deadline:
                    log.warning("nodes %s have no copies of the epoch that is committed now", late)
                    break
                wait.because(f"nodes {late} have not acknowledged their copies")
                self._net.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
                self._resend()
                reports = self._collect()
        return reports

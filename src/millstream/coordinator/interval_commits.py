"""Checkpoints of several epochs at intervals (``durability="interval"``).

Outputs stay staged until a manifest covers their epoch, so that a restart, which resumes from the
newest manifest, withdraws nothing that was visible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.commit_modes import DurableCommits
from millstream.coordinator.journal import Journal
from millstream.coordinator.layout import Layout
from millstream.coordinator.ledger import PreparedEpoch
from millstream.coordinator.run_context import RunContext
from millstream.coordinator.watermarks import Watermarks
from millstream.node.durability.write_queue import EntryReplacedError, WhenFull
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.commit import Commit
from millstream.wire.epoch_record import EpochRecord, JobTypes
from millstream.wire.persistence import NotReadyError, Persist, Persisted, RebasedError
from millstream.wire.timeouts import RETRY_PAUSE

log = logging.getLogger("millstream")

Publish = Callable[[Staged], None]
_PERSIST_TIMEOUT = 600.0
_MAX_PAUSE = 1.0


@dataclass(frozen=True, kw_only=True)
class Triggers:
    """When to checkpoint: after so many seconds, changes or epochs, whichever comes first.

    Spark retains a hundred epochs in its logs; a rewind further than that is not possible.
    """

    seconds: float = 2.0
    changes: int | None = None
    epochs: int = 50
    when_full: WhenFull = "block"


@dataclass(frozen=True)
class _Volatile:
    """An epoch that is committed in memory alone, and the number of keys it has changed."""

    record: EpochRecord
    commit: Commit
    staged: Staged
    types: Mapping[int, JobTypes]
    changes: int
    clocks: Watermarks
    layout: Layout | None


class IntervalCommits(DurableCommits):
    """The epochs that are committed in memory, and on their way into the store."""

    def __init__(
        self, run: RunContext, journal: Journal, triggers: Triggers, publish: Publish
    ) -> None:
        net = run.net
        super().__init__(net, journal)
        self._run = run
        self._triggers = triggers
        self._publish = publish
        self._lock = net.lock()
        self._persisting = net.lock()
        self._volatile: list[_Volatile] = []
        self._last_began = net.now()
        self._is_running = False
        self.skipped = 0
        self.problem: Exception | None = None

    def commit(self, prepared: PreparedEpoch, staged: Staged) -> bool:
        """Commit an epoch in memory; its staged outputs wait for the store."""
        epoch = _Volatile(
            prepared.record,
            prepared.commit,
            staged,
            prepared.types,
            sum(counts.keys for counts in prepared.counts.values()),
            prepared.clocks,
            prepared.layout,
        )
        with self._lock:
            self._volatile.append(epoch)
        return False

    def after_commit(self) -> None:
        """Begin a checkpoint if one is due; with ``block``, wait for the previous one."""
        super().after_commit()
        if self.problem is not None:
            raise self.problem
        if self._is_due() and not self._begin():
            self.skipped += 1
            if self._triggers.when_full == "block" or self._is_full():
                with self._persisting:
                    pass

    def poll(self) -> None:
        """Begin a checkpoint if one is due and none is under way; there may be no next epoch."""
        if self.problem is None and self._is_due():
            self._begin()

    def _begin(self) -> bool:
        with self._lock:
            begin, self._is_running = not self._is_running, True
        if begin:
            self._net.spawn(self._checkpoint, "checkpoint")
        return begin

    def _is_due(self) -> bool:
        triggers = self._triggers
        with self._lock:
            return bool(self._volatile) and (
                self._net.now() - self._last_began >= triggers.seconds
                or (triggers.changes is not None and self._changes() >= triggers.changes)
                or len(self._volatile) >= triggers.epochs
            )

    def _changes(self) -> int:
        return sum(epoch.changes for epoch in self._volatile)

    def _is_full(self) -> bool:
        return len(self._volatile) >= self._triggers.epochs

    def finish(self) -> None:
        """Bring the store up to the last commit, or raise what prevents it."""
        if self.problem is None:
            self._checkpoint()
        if self.problem is not None:
            raise self.problem

    def _checkpoint(self) -> None:
        try:
            with self._persisting:
                # After a manifest with unknown outcome, or a publication that failed, none may
                # follow, not even one that has waited for the lock meanwhile.
                if self.problem is None:
                    self._persist()
        finally:
            self._is_running = False

    def _persist(self) -> None:
        """Bring the store up to the newest commit, and publish the epochs that it covers."""
        try:
            epochs = self._all_volatile()
            if not epochs:
                return
            began = self._net.now()
            epochs, answers = self._persist_on_nodes(epochs)
            newest = epochs[-1]
            self._journal.commit(
                newest.record,
                [delta for answer in answers for delta in answer.deltas],
                [base for answer in answers for base in answer.bases],
                newest.types,
                [epoch.staged for epoch in epochs],
                newest.clocks,
                newest.layout,
            )
            with self._lock:
                self._volatile = self._volatile[len(epochs) :]
                self._last_began = began
            for epoch in epochs:
                self._publish(epoch.staged)
                self.published(epoch.staged.epoch)
            self._journal.report_results()
        except Exception as problem:
            self.problem = problem

    def _all_volatile(self) -> list[_Volatile]:
        with self._lock:
            return list(self._volatile)

    def _persist_on_nodes(self, epochs: list[_Volatile]) -> tuple[list[_Volatile], list[Persisted]]:
        """Have all slots persisted by their owners; return the epochs covered, and the records.

        A node that is not ready, because it replays logs, is called again; one that has answered is
        not, unless more slots were assigned to it since. Slots that were reassigned are written as
        bases, which may be newer than the epoch asked for: then a newer one is asked for.
        """
        run, persisted = self._run, dict[NodeId, Persisted]()
        pause = RETRY_PAUSE
        with run.waits.wait("a checkpoint") as wait:
            while not run.is_over:
                placement = run.roster.placement
                persisted = {
                    node: answer
                    for node, answer in persisted.items()
                    if node in run.roster.domains
                    and not (placement.owned(node) & ~_mask([answer], placement)).any()
                }
                others = [node for node in run.roster.nodes if node not in persisted]
                answers = self._call(epochs[-1].commit, others)
                persisted.update((n, a) for n, a in answers.items() if isinstance(a, Persisted))
                if _mask(persisted.values(), placement).all():
                    return epochs, list(persisted.values())
                reasons = [str(a) for a in answers.values() if isinstance(a, Exception)]
                wait.because("; ".join(reasons) or "slots were reassigned")
                if any(isinstance(answer, RebasedError) for answer in answers.values()):
                    epochs, persisted = self._all_volatile(), {}
                self._net.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
        raise NotReadyError("the run ended before the newest epochs were in the store")

    def _call(self, commit: Commit, nodes: Iterable[NodeId]) -> Mapping[NodeId, Any]:
        """Call nodes to persist; raise an error that ends the run."""
        request = Persist(self._journal.incarnation, self._journal.committed.epoch, commit)
        living = self._run.roster.domains
        answers = self._run.rpc.call_living(nodes, living, request, _PERSIST_TIMEOUT)
        for answer in answers.values():
            if not isinstance(
                answer, Persisted | NotReadyError | EntryReplacedError | UnreachableError
            ):
                raise answer
        return answers


def _mask(answers: Iterable[Persisted], placement: Placement) -> SlotMask:
    """The slots that nodes have persisted."""
    covered = np.zeros(placement.ring.slots, dtype=bool)
    for answer in answers:
        for run in answer.slots:
            covered[run.start : run.stop] = True
    return covered

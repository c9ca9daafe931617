"""Checkpoints every now and then (``durability="interval"``): orders, manifests, publication.

Outputs stay staged until a manifest covers their epoch, so that after a restart, which goes back
to the newest manifest, nothing that was visible is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.commit_modes import DurableCommits
from millstream.coordinator.journal import Journal
from millstream.coordinator.ledger import Closing
from millstream.coordinator.roster import Roster
from millstream.coordinator.wait_log import WaitLog
from millstream.coordinator.watermarks import Watermarks
from millstream.node.durability.write_queue import EntryReplacedError, WhenFull
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.wire.calls import UnreachableError
from millstream.wire.epoch_record import EpochRecord, JobTypes
from millstream.wire.messages import Commit, NotReadyError, Persist, Persisted, RebasedError
from millstream.wire.net import Net

log = logging.getLogger("millstream")

Publish = Callable[[Staged], None]
_TIMEOUT = 600.0
_AGAIN = 0.05
_AGAIN_AT_MOST = 1.0


class Asked(Protocol):
    """What checkpoints need of the coordinator."""

    @property
    def net(self) -> Net: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def waits(self) -> WaitLog: ...

    @property
    def is_over(self) -> bool: ...

    def ask_living(
        self, nodes: Iterable[NodeId], action: str, body: object, timeout: float
    ) -> Mapping[NodeId, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Triggers:
    """When to checkpoint: after so many seconds, changes or epochs, whichever comes first.

    Spark remembers a hundred epochs; going back further than that is not possible.
    """

    seconds: float = 2.0
    changes: int | None = None
    epochs: int = 50
    when_full: WhenFull = "block"


@dataclass(frozen=True)
class _Held:
    """An epoch that is committed in memory alone, and how many keys it has changed."""

    record: EpochRecord
    commit: Commit
    staged: Staged
    types: Mapping[int, JobTypes]
    changes: int
    clocks: Watermarks


class IntervalCommits(DurableCommits):
    """The epochs that are committed in memory, and on their way into the store."""

    def __init__(
        self, asked: Asked, journal: Journal, triggers: Triggers, publish: Publish
    ) -> None:
        net = asked.net
        super().__init__(net, journal)
        self._asked = asked
        self._triggers = triggers
        self._publish = publish
        self._lock = net.lock()
        self._persisting = net.lock()
        self._held: list[_Held] = []
        self._last = net.now()
        self._busy = False
        self.skipped = 0
        self.problem: Exception | None = None

    def commit(self, closing: Closing, staged: Staged) -> bool:
        """An epoch is committed in memory; what it staged waits for the store."""
        changes = sum(receipt.keys for receipt in closing.receipts)
        with self._lock:
            self._held.append(
                _Held(
                    closing.record, closing.commit, staged, closing.types, changes, closing.clocks
                )
            )
        return False

    def after_commit(self) -> None:
        """Begin a checkpoint if one is due; with ``block``, wait for one that is late."""
        super().after_commit()
        if self.problem is not None:
            raise self.problem
        if self._is_due() and not self._begin():
            self.skipped += 1
            if self._triggers.when_full == "block" or self._is_far():
                with self._persisting:
                    pass

    def look(self) -> None:
        """Begin a checkpoint if one is due and none is under way; there may be no next epoch."""
        if self.problem is None and self._is_due():
            self._begin()

    def _begin(self) -> bool:
        with self._lock:
            begin, self._busy = not self._busy, True
        if begin:
            self._net.spawn(self._persist_quietly, "persist")
        return begin

    def _is_due(self) -> bool:
        triggers = self._triggers
        with self._lock:
            return bool(self._held) and (
                self._net.now() - self._last >= triggers.seconds
                or (triggers.changes is not None and self._changes() >= triggers.changes)
                or len(self._held) >= triggers.epochs
            )

    def _changes(self) -> int:
        return sum(held.changes for held in self._held)

    def _is_far(self) -> bool:
        return len(self._held) >= self._triggers.epochs

    def finish(self) -> None:
        """Bring the store up to the last commit; raise what is, or was, in the way."""
        if self.problem is None:
            self._persist_quietly()
        if self.problem is not None:
            raise self.problem

    def _persist_quietly(self) -> None:
        try:
            with self._persisting:
                # After a manifest whose fate is unknown, or a publication that failed, none may
                # follow, not even one that has waited for its turn meanwhile.
                if self.problem is None:
                    self._persist()
        finally:
            self._busy = False

    def _persist(self) -> None:
        """Bring the store up to the newest commit, and publish what is covered then."""
        try:
            held = self._all_held()
            if not held:
                return
            started = self._net.now()
            held, found = self._gathered(held)
            newest = held[-1]
            self._journal.commit(
                newest.record,
                [delta for answer in found for delta in answer.deltas],
                [base for answer in found for base in answer.bases],
                newest.types,
                [one.staged for one in held],
                newest.clocks,
            )
            with self._lock:
                self._held = self._held[len(held) :]
                self._last = started
            for one in held:
                self._publish(one.staged)
                self.published(one.staged.epoch)
            self._journal.tell()
        except Exception as problem:
            self.problem = problem

    def _all_held(self) -> list[_Held]:
        with self._lock:
            return list(self._held)

    def _gathered(self, held: list[_Held]) -> tuple[list[_Held], list[Persisted]]:
        """Have all slots put into the store by their owners; which epochs are covered, by what.

        A node that cannot follow yet, because it replays what it took over, is asked again; who
        has followed is not, unless it has come to own more since. Slots that changed hands come
        as bases, which may be newer than the epoch that was asked for: then a newer one is.
        """
        asked, found = self._asked, dict[NodeId, Persisted]()
        pause = _AGAIN
        with asked.waits.wait("a checkpoint") as wait:
            while not asked.is_over:
                placement = asked.roster.placement
                found = {
                    node: answer
                    for node, answer in found.items()
                    if node in asked.roster.domains
                    and not (placement.owned(node) & ~_mask([answer], placement)).any()
                }
                left = [node for node in asked.roster.nodes if node not in found]
                answers = self._ordered(held[-1].commit, left)
                found.update((n, a) for n, a in answers.items() if isinstance(a, Persisted))
                if _mask(found.values(), placement).all():
                    return held, list(found.values())
                why = [str(a) for a in answers.values() if isinstance(a, Exception)]
                wait.because("; ".join(why) or "slots have changed hands")
                if any(isinstance(answer, RebasedError) for answer in answers.values()):
                    held, found = self._all_held(), {}
                self._net.sleep(pause)
                pause = min(2 * pause, _AGAIN_AT_MOST)
        raise NotReadyError("the run ended before the newest epochs were in the store")

    def _ordered(self, commit: Commit, nodes: Iterable[NodeId]) -> Mapping[NodeId, Any]:
        """Order nodes to persist; what they answer, unless it is an error that ends the run."""
        order = Persist(self._journal.incarnation, self._journal.committed.epoch, commit)
        answers = self._asked.ask_living(nodes, "persist", order, _TIMEOUT)
        for answer in answers.values():
            if not isinstance(
                answer, Persisted | NotReadyError | EntryReplacedError | UnreachableError
            ):
                raise answer
        return answers


def _mask(answers: Iterable[Persisted], placement: Placement) -> SlotMask:
    """The slots that nodes have put into the store."""
    covered = np.zeros(placement.ring.slots, dtype=bool)
    for answer in answers:
        for run in answer.slots:
            covered[run.start : run.stop] = True
    return covered

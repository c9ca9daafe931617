"""Checkpoints every now and then (``durability="interval"``): orders, manifests, publication.

Outputs stay staged until a manifest covers their epoch, so that after a restart, which goes back
to the newest manifest, nothing that was visible is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.checkpoints.manifest import Base, Piece, Staged
from millstream.coordinator.clocks import Clocks
from millstream.coordinator.commits import Journaled
from millstream.coordinator.journal import Journal
from millstream.coordinator.ledger import Closing
from millstream.coordinator.record import EpochRecord, JobTypes
from millstream.node.messages import Commit, NotNow, Persist, Persisted
from millstream.node.safekeeper import Replaced, WhenFull
from millstream.ring.ring import NodeId
from millstream.wire.calls import Unreachable
from millstream.wire.net import Net

log = logging.getLogger("millstream")

Ask = Callable[[str, object, float], Mapping[NodeId, Any]]
Publish = Callable[[Staged], None]
_PERSIST_TIMEOUT = 600.0
_AGAIN = 0.05
_ROUNDS = 200


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
    clocks: Clocks


class Intervals(Journaled):
    """The epochs that are committed in memory, and on their way into the store."""

    def __init__(
        self, net: Net, journal: Journal, ask_all: Ask, triggers: Triggers, publish: Publish
    ) -> None:
        super().__init__(net, journal)
        self._ask_all = ask_all
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
            self.persist()
        except Exception as problem:  # after a publication that failed, none may follow
            self.problem = problem
        finally:
            self._busy = False

    def persist(self) -> None:
        """Bring the store up to the newest commit, and publish what is covered then."""
        with self._persisting:
            for _ in range(_ROUNDS):
                with self._lock:
                    held = list(self._held)
                if not held or self._tried(held):
                    return
                self._net.sleep(_AGAIN)
            raise NotNow("the nodes cannot agree on an epoch to be put into the store")

    def _tried(self, held: list[_Held]) -> bool:
        newest = held[-1]
        record = newest.record
        since = self._journal.committed.epoch
        started = self._net.now()
        order = Persist(self._journal.incarnation, since, newest.commit)
        answers = self._ask_all("persist", order, _PERSIST_TIMEOUT)
        pieces: list[Piece] = []
        bases: list[Base] = []
        covered = np.zeros(record.placement.ring.slots, dtype=bool)
        for answer in answers.values():
            if isinstance(answer, Persisted):
                pieces.extend(answer.pieces)
                bases.extend(answer.bases)
                for run in answer.slots:
                    covered[run.start : run.stop] = True
            elif not isinstance(answer, NotNow | Replaced | Unreachable):
                raise answer
        if not covered.all():
            return False
        self._journal.commit(
            record, pieces, bases, newest.types, [one.staged for one in held], newest.clocks
        )
        with self._lock:
            self._held = self._held[len(held) :]
            self._last = started
        for one in held:
            self._publish(one.staged)
            self.published(one.staged.epoch)
        self._journal.tell()
        return True

"""What makes a commit durable: nothing, a manifest for every epoch, or one for several.

The coordinator knows only this protocol. Without a store a commit is what it remembers; with one,
the journal's chain says what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.journal import Journal
from millstream.coordinator.ledger import Closing
from millstream.coordinator.watermarks import Watermarks
from millstream.errors import MillstreamError
from millstream.flow.time_origins import JobTiming
from millstream.wire.epoch_record import JobTypes
from millstream.wire.messages import NOTHING_COMMITTED, Commit, Restore
from millstream.wire.net import Net


class NoStoreError(MillstreamError):
    """Slots are to come back from a store, but the run has none."""


class CommitMode(Protocol):
    """How epochs become durable."""

    @property
    def incarnation(self) -> int:
        """The number of this start of the workflow."""

    @property
    def committed(self) -> Commit:
        """The newest commit that outlives the run."""

    @property
    def is_durable(self) -> bool:
        """Whether there is such a thing."""

    def types(self) -> Mapping[int, JobTypes]:
        """The types that jobs had shown when the run began."""

    def clocks(self, timings: Iterable[JobTiming]) -> Watermarks:
        """How far event time had come when the run began."""

    def commit(self, closing: Closing, staged: Staged) -> bool:
        """An epoch commits; whether its outputs may be shown now, or will be by and by."""

    def published(self, epoch: int) -> None:
        """The outputs of an epoch, and of all before, are in sight."""

    def after_commit(self) -> None:
        """Do what may follow a commit; nothing that would hold up owners or takeovers."""

    def look(self) -> None:
        """Do what is due; there may be no next epoch."""

    def finish(self) -> None:
        """Make durable what is committed; raise what is in the way."""

    def can_restore(self, committed: Commit) -> bool:
        """Whether slots could come back to a commit if no copy of them were left."""

    def restore(self) -> Restore:
        """What brings slots back to the newest durable commit."""


class InMemoryCommits:
    """Commits of a run without a store: they end with it."""

    incarnation = 1
    committed = NOTHING_COMMITTED
    is_durable = False

    def types(self) -> Mapping[int, JobTypes]:
        return {}

    def clocks(self, timings: Iterable[JobTiming]) -> Watermarks:
        return Watermarks(tuple(timings))

    def commit(self, closing: Closing, staged: Staged) -> bool:
        return True

    def published(self, epoch: int) -> None:
        return

    def after_commit(self) -> None:
        return

    def look(self) -> None:
        return

    def finish(self) -> None:
        return

    def can_restore(self, committed: Commit) -> bool:
        return False

    def restore(self) -> Restore:
        raise NoStoreError("this run has no store to bring slots back from; give it a checkpoint=")


class DurableCommits:
    """What commits through a journal have in common."""

    is_durable = True

    def __init__(self, net: Net, journal: Journal) -> None:
        self._net = net
        self._journal = journal

    @property
    def incarnation(self) -> int:
        return self._journal.incarnation

    @property
    def committed(self) -> Commit:
        return self._journal.committed

    def types(self) -> Mapping[int, JobTypes]:
        return self._journal.types()

    def clocks(self, timings: Iterable[JobTiming]) -> Watermarks:
        return self._journal.clocks(timings)

    def published(self, epoch: int) -> None:
        self._journal.published = epoch

    def can_restore(self, committed: Commit) -> bool:
        journal = self._journal
        return journal.has_all_jobs and journal.committed.epoch >= committed.epoch

    def restore(self) -> Restore:
        return self._journal.restore()

    def after_commit(self) -> None:
        self._journal.tell()
        if not self._journal.is_tidy:
            self._net.spawn(self._journal.tidy, "tidy")


class EpochCommits(DurableCommits):
    """A manifest for each epoch, before its outputs are shown (``durability="epoch"``)."""

    def commit(self, closing: Closing, staged: Staged) -> bool:
        journal = self._journal
        deltas = journal.deltas_of(closing.receipts)
        journal.commit(
            closing.record, deltas, closing.bases, closing.types, [staged], closing.clocks
        )
        return True

    def look(self) -> None:
        return

    def finish(self) -> None:
        return

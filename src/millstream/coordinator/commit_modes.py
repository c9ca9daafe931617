"""What makes a commit durable: nothing, a manifest for every epoch, or one for several.

The coordinator knows only this protocol. Without a store a commit is in its memory; with one, the
journal's chain decides what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.journal import Journal
from millstream.coordinator.ledger import PreparedEpoch
from millstream.coordinator.watermarks import Watermarks
from millstream.errors import MillstreamError
from millstream.flow.time_origins import JobTiming
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.epoch_record import JobTypes
from millstream.wire.net import Net
from millstream.wire.persistence import RestorePlan


class NoStoreError(MillstreamError):
    """Slots have to be restored from a store, but the run has none."""


class CommitMode(Protocol):
    """How epochs become durable."""

    @property
    def incarnation(self) -> int:
        """The number of this start of the workflow."""

    @property
    def committed(self) -> Commit:
        """The newest durable commit."""

    @property
    def is_durable(self) -> bool:
        """Whether commits outlive the run."""

    def types(self) -> Mapping[int, JobTypes]:
        """The types of jobs that were inferred before the run began."""

    def clocks(self, timings: Iterable[JobTiming]) -> Watermarks:
        """The watermarks when the run began."""

    def commit(self, prepared: PreparedEpoch, staged: Staged) -> bool:
        """Commit an epoch; return whether its outputs may be published now, or will be later."""

    def published(self, epoch: int) -> None:
        """Note that the outputs of an epoch, and of all before, are visible."""

    def after_commit(self) -> None:
        """Do what may follow a commit, outside of the locks of the commit."""

    def poll(self) -> None:
        """Do what is due; called regularly, because there may be no next epoch."""

    def finish(self) -> None:
        """Make durable what is committed, or raise what prevents it."""

    def can_restore(self, committed: Commit) -> bool:
        """Whether the store can restore slots to a commit if no copy of them is left."""

    def restore_plan(self) -> RestorePlan:
        """The records from which slots are restored to the newest durable commit."""


class InMemoryCommits:
    """Commits of a run without a store: they are lost with it."""

    incarnation = 1
    committed = NOTHING_COMMITTED
    is_durable = False

    def types(self) -> Mapping[int, JobTypes]:
        return {}

    def clocks(self, timings: Iterable[JobTiming]) -> Watermarks:
        return Watermarks(tuple(timings))

    def commit(self, prepared: PreparedEpoch, staged: Staged) -> bool:
        return True

    def published(self, epoch: int) -> None:
        return

    def after_commit(self) -> None:
        return

    def poll(self) -> None:
        return

    def finish(self) -> None:
        return

    def can_restore(self, committed: Commit) -> bool:
        return False

    def restore_plan(self) -> RestorePlan:
        raise NoStoreError("this run has no store to restore slots from; pass checkpoint=")


class DurableCommits:
    """The common part of commits through a journal."""

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

    def restore_plan(self) -> RestorePlan:
        return self._journal.restore_plan()

    def after_commit(self) -> None:
        self._journal.report_results()
        if self._journal.is_garbage_due:
            self._net.spawn(self._journal.collect_garbage, "collect garbage")


class EpochCommits(DurableCommits):
    """A manifest for each epoch, before its outputs are published (``durability="epoch"``)."""

    def commit(self, prepared: PreparedEpoch, staged: Staged) -> bool:
        journal = self._journal
        deltas = journal.deltas_of(prepared.receipts)
        journal.commit(
            prepared.record,
            deltas,
            prepared.bases,
            prepared.types,
            [staged],
            prepared.clocks,
            prepared.layout,
        )
        return True

    def poll(self) -> None:
        return

    def finish(self) -> None:
        return

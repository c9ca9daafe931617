"""One epoch, from admission to seal, in the order that makes it exactly-once.

The body of an epoch (Spark's, or the simulator's) runs and stages its outputs; every slot has a
receipt from its owner; callbacks run; the epoch commits, durably if there is a store; staged
outputs are published; the nodes seal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from millstream.checkpoints.chain import CommitUnknownError
from millstream.checkpoints.manifest import Staged
from millstream.coordinator.frozen_units import UnitCounts
from millstream.coordinator.ledger import MissingReceiptsError, PreparedEpoch
from millstream.coordinator.service import Coordinator
from millstream.coordinator.watermarks import Counted, Watermarks
from millstream.ring.ring import NodeId
from millstream.wire.epoch_record import EpochRecord
from millstream.wire.receipts import NodeReport, Receipt

_MAX_TRIES = 4


class Attempt(Protocol):
    """One try of an epoch's body, while its resources are open."""

    def stage(self) -> None:
        """Run the body and stage its outputs."""

    def evaluate(self) -> None:
        """Run every partition of the body, also those that no sink read."""

    def call_back(self) -> None:
        """Pass the outputs to sinks that cannot stage; they may get an epoch more than once."""


class Body(Protocol):
    """The work of an epoch."""

    def attempt(self, record: EpochRecord) -> AbstractContextManager[Attempt]:
        """Begin a try."""

    def discard(self, record: EpochRecord) -> None:
        """Remove the staged outputs of a try that failed."""

    def is_retryable(self, problem: Exception) -> bool:
        """Whether a failed try should be retried."""

    def staged(self, record: EpochRecord) -> Staged:
        """The staged outputs of all sinks."""

    def publish(self, staged: Staged) -> None:
        """Make the staged outputs of a committed epoch visible."""


@dataclass(frozen=True)
class EpochResult:
    """What a committed epoch counted, by job, the watermarks after it, and its phases' seconds."""

    record: EpochRecord
    receipts: Sequence[Receipt]
    reports: Mapping[NodeId, NodeReport]
    counted: Mapping[int, Counted] = field(default_factory=dict)
    clocks: Watermarks = field(default_factory=Watermarks)
    counts: Mapping[int, UnitCounts] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)


def run_epoch(
    coordinator: Coordinator,
    epoch: int,
    time: int,
    body: Body,
    on_phase: Callable[[str, float], None] = lambda phase, seconds: None,
) -> EpochResult:
    """Run an epoch until it is committed, published and sealed, or raise why it cannot be.

    ``on_phase`` is called with each phase that has ended, and its seconds.
    """
    watch = _Stopwatch(coordinator.net.now, on_phase)
    record = coordinator.admit(epoch, time)
    watch.ends("admit")
    undisturbed = 0
    while True:
        try:
            with body.attempt(record) as attempt:
                attempt.stage()
                watch.ends("run")
                collected = coordinator.collect_receipts(attempt.evaluate)
                coordinator.ledger.check_types()
                watch.ends("receipts")
                attempt.call_back()
                staged = body.staged(record)
                watch.ends("callbacks")
                reports, prepared, now = _commit(coordinator, attempt.evaluate, staged, collected)
                watch.ends("commit")
            break
        except CommitUnknownError:
            raise  # the epoch may be committed, and its staged outputs be needed
        except Exception as problem:
            watch.ends("failed tries")
            body.discard(record)
            retryable = (
                isinstance(problem, MissingReceiptsError)
                or coordinator.is_retryable(problem)
                or body.is_retryable(problem)
            )
            # There are at most as many takeovers as nodes; failures without one are bounded here.
            undisturbed += not coordinator.ledger.taken_over
            if not retryable or undisturbed >= _MAX_TRIES:
                raise
            record = coordinator.retry()
    if now:
        body.publish(staged)
        coordinator.published(epoch)
    watch.ends("publish")
    coordinator.seal()
    coordinator.observe(epoch, reports)
    watch.ends("seal")
    return EpochResult(
        record,
        prepared.receipts,
        reports,
        prepared.counted,
        prepared.clocks,
        prepared.counts,
        watch.seconds,
    )


class _Stopwatch:
    """Adds up the time of each phase of an epoch, which may have several tries."""

    def __init__(self, now: Callable[[], float], on_phase: Callable[[str, float], None]) -> None:
        self._now = now
        self._on_phase = on_phase
        self._last = now()
        self.seconds: dict[str, float] = {}

    def ends(self, phase: str) -> None:
        """Count the time since the last phase ended for this one."""
        now = self._now()
        seconds, self._last = now - self._last, now
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self._on_phase(phase, seconds)


def _commit(
    coordinator: Coordinator,
    evaluate: Callable[[], None],
    staged: Staged,
    reports: Mapping[NodeId, NodeReport],
) -> tuple[Mapping[NodeId, NodeReport], PreparedEpoch, bool]:
    for _ in range(_MAX_TRIES - 1):
        try:
            return reports, *coordinator.commit(staged)
        except MissingReceiptsError:  # an owner died since the receipts were collected
            reports = coordinator.collect_receipts(evaluate)
    return reports, *coordinator.commit(staged)

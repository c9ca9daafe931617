"""One epoch, from admission to seal, in the order that makes it count exactly once.

The body of an epoch (Spark's, or the simulator's) is run and staged; every slot has a receipt
from its owner; callbacks run; the commit, which is durable if there is a store; staged outputs are
published; the nodes seal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from millstream.checkpoints.chain import CommitUnknownError
from millstream.checkpoints.manifest import Staged
from millstream.coordinator.ledger import Closing, MissingReceiptsError
from millstream.coordinator.service import Coordinator
from millstream.coordinator.watermarks import Counted, Watermarks
from millstream.ring.ring import NodeId
from millstream.wire.epoch_record import EpochRecord
from millstream.wire.messages import NodeReport, Receipt

_MAX_TRIES = 4


class Attempt(Protocol):
    """One try of an epoch's body, while what it needs is at hand."""

    def stage(self) -> None:
        """Run the body; keep the outputs out of sight."""

    def evaluate(self) -> None:
        """Run every partition of the body, whatever the sinks looked at."""

    def call_back(self) -> None:
        """Show the outputs to sinks that cannot stage; they may see an epoch again."""


class Body(Protocol):
    """What an epoch does besides its bookkeeping."""

    def attempt(self, record: EpochRecord) -> AbstractContextManager[Attempt]:
        """Begin a try."""

    def discard(self, record: EpochRecord) -> None:
        """Remove what a try that failed has staged."""

    def is_retryable(self, problem: Exception) -> bool:
        """Whether a failed try may go better the next time."""

    def staged(self, record: EpochRecord) -> Staged:
        """What the sinks keep out of sight."""

    def publish(self, staged: Staged) -> None:
        """Make the staged outputs of a committed epoch visible."""


@dataclass(frozen=True)
class EpochResult:
    """What a committed epoch counted, and how far event time has come with it."""

    record: EpochRecord
    receipts: list[Receipt]
    reports: Mapping[NodeId, NodeReport]
    counted: Mapping[int, Counted] = field(default_factory=dict)
    clocks: Watermarks = field(default_factory=Watermarks)


def run_epoch(coordinator: Coordinator, epoch: int, time: int, body: Body) -> EpochResult:
    """Run an epoch until it is committed, published and sealed; raise if it cannot be."""
    record = coordinator.admit(epoch, time)
    undisturbed = 0
    while True:
        try:
            with body.attempt(record) as attempt:
                attempt.stage()
                collected = coordinator.make_whole(attempt.evaluate)
                coordinator.ledger.check_types()
                attempt.call_back()
                staged = body.staged(record)
                reports, closing, now = _commit(coordinator, attempt.evaluate, staged, collected)
            break
        except CommitUnknownError:
            raise  # what is staged may be needed
        except Exception as problem:
            body.discard(record)
            again = (
                isinstance(problem, MissingReceiptsError)
                or coordinator.is_retryable(problem)
                or body.is_retryable(problem)
            )
            # Of takeovers there are as many as nodes; what fails without one fails for good.
            undisturbed += not coordinator.ledger.taken_over
            if not again or undisturbed >= _MAX_TRIES:
                raise
            record = coordinator.retry()
    if now:
        body.publish(staged)
        coordinator.published(epoch)
    coordinator.seal()
    return EpochResult(record, closing.receipts, reports, closing.counted, closing.clocks)


def _commit(
    coordinator: Coordinator,
    evaluate: Callable[[], None],
    staged: Staged,
    reports: Mapping[NodeId, NodeReport],
) -> tuple[Mapping[NodeId, NodeReport], Closing, bool]:
    while True:
        try:
            return reports, *coordinator.commit(staged)
        except MissingReceiptsError:  # an owner went since the receipts were collected
            reports = coordinator.make_whole(evaluate)

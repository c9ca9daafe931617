"""The errors with which tasks of the try under way have failed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from millstream.coordinator.ledger import Ledger
from millstream.errors import MillstreamError
from millstream.wire.epoch_record import ReportFailure
from millstream.wire.feed import NotDeterministicError, RecutError


class TaskFailures:
    """Collects what tasks report: Spark itself sees only a short text of each."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._reported: list[MillstreamError] = []
        self.downstream: frozenset[str] = frozenset()
        """The jobs that read the results of other jobs."""

    def clear(self) -> None:
        with self._lock:
            self._reported.clear()

    def add(self, report: ReportFailure, ledger: Ledger) -> None:
        """Add a report, unless it is of another try."""
        with self._lock:
            record = ledger.record
            if record is not None and record.at == (report.epoch, report.try_):
                self._reported.append(report.problem)

    @property
    def newest(self) -> MillstreamError | None:
        """The error that best explains why the try failed."""
        with self._lock:
            return self._reported[-1] if self._reported else None

    def causes(self, problem: Exception) -> list[Exception]:
        """The reported errors, or else the one with which the try itself ended."""
        with self._lock:
            return [*self._reported] or [problem]

    def are_retryable(self, problem: Exception, ledger: Ledger) -> bool:
        """Whether a takeover that cut units in two explains why the try failed.

        The outputs of such units may be ordered differently, and so be different input for the
        jobs that read them.
        """
        causes = self.causes(problem)
        if any(isinstance(cause, RecutError) for cause in causes):
            return True  # other tasks may have failed because of it
        return ledger.recut and any(
            isinstance(cause, NotDeterministicError) and cause.job in self.downstream
            for cause in causes
        )

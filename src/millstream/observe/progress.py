"""Progress of a run: one frozen report per committed epoch, and sums over them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

Panes = Literal["shared", "values"]

log = logging.getLogger("millstream")


@dataclass(frozen=True)
class JobProgress:
    """One job in one epoch: values fed, keys touched, outputs emitted, time in reduce.

    A windowed job also reports the values that its windows rejected, its watermark, and the ``lag``
    of that behind the clock; both are None before the first event time, and after the end. A
    processor of Spark by event time reports the rows that it dropped as ``late``.
    ``panes`` tells whether windows share aggregated panes or have raw rows, as ``rate``, the values
    of a key per second, suggests. The jobs that are ``fused`` into it read the same values: their
    windows are reduced along with its own, and counted here.
    """

    rows: int
    keys: int
    outputs: int
    reduce_seconds: float
    state_keys: int
    late: int = 0
    ahead: int = 0
    untimed: int = 0
    watermark: datetime | None = None
    lag: timedelta | None = None
    panes: Panes | None = None
    rate: float | None = None
    fused: tuple[str, ...] = ()

    def rows_per_second(self, seconds: float) -> float:
        return self.rows / seconds if seconds else 0.0


@dataclass(frozen=True)
class StoreProgress:
    """What all nodes together have written to the store so far.

    ``replaced`` entries were superseded by newer ones while they were queued; ``waited`` counts how
    often a full queue blocked a node.
    """

    records: int = 0
    bytes: int = 0
    batches: int = 0
    replaced: int = 0
    waited: int = 0
    serialise_seconds: float = 0.0
    store_seconds: float = 0.0


@dataclass(frozen=True)
class EpochProgress:
    """One committed epoch; ``time`` is when it was, and ``phases`` are in seconds."""

    epoch: int
    tries: int
    seconds: float
    jobs: Mapping[str, JobProgress] = field(default_factory=dict)
    nodes: int = 0
    node_memory: int = 0
    cold_keys: int = 0
    store: StoreProgress | None = None
    time: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Values fed to the jobs."""
        return sum(job.rows for job in self.jobs.values())

    @property
    def rejected(self) -> int:
        """Values that windows could not take: late, too far ahead, or without a time."""
        return sum(job.late + job.ahead + job.untimed for job in self.jobs.values())


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie; 0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Totals:
    """Sums over a run."""

    epochs: int
    rows: int
    busy_seconds: float
    latency_p50: float
    latency_p99: float
    state_keys: int

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.busy_seconds if self.busy_seconds else 0.0


class Progress:
    """Collects epoch reports and notifies listeners; thread-safe."""

    def __init__(self, retain: int = 1000) -> None:
        self._recent: deque[EpochProgress] = deque(maxlen=retain)
        self._epochs = 0
        self._rows = 0
        self._busy = 0.0
        self._lock = threading.Lock()
        self._listeners: list[Callable[[EpochProgress], None]] = []

    def listen(self, listener: Callable[[EpochProgress], None]) -> None:
        """Call ``listener`` with every report from now on."""
        self._listeners.append(listener)

    def add(self, report: EpochProgress) -> None:
        """Take the report of a committed epoch."""
        with self._lock:
            self._recent.append(report)
            self._epochs += 1
            self._rows += report.rows
            self._busy += report.seconds
        for listener in list(self._listeners):
            try:
                listener(report)
            except Exception:  # the epoch is committed, whatever a listener makes of it
                log.exception("a progress listener failed")

    @property
    def recent(self) -> list[EpochProgress]:
        """The newest reports, oldest first."""
        with self._lock:
            return list(self._recent)

    @property
    def last(self) -> EpochProgress | None:
        """The newest report."""
        with self._lock:
            return self._recent[-1] if self._recent else None

    @property
    def totals(self) -> Totals:
        """Sums over the run; latencies over the newest epochs."""
        with self._lock:
            recent = list(self._recent)
            epochs, rows, busy = self._epochs, self._rows, self._busy
        seconds = [report.seconds for report in recent]
        last = recent[-1] if recent else None
        return Totals(
            epochs=epochs,
            rows=rows,
            busy_seconds=busy,
            latency_p50=quantile(seconds, 0.50),
            latency_p99=quantile(seconds, 0.99),
            state_keys=sum(j.state_keys for j in last.jobs.values()) if last else 0,
        )

"""The history of a run: time series of the newest hour or so, in bounded memory.

Epochs that commit within a second of each other share a point.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from millstream.coordinator.journal import CheckpointResult
from millstream.elastic.load import Load
from millstream.observe.progress import EpochProgress, quantile

_STEP = 1.0
_RETAINED = 3600
_LATENCIES = 100
_BACKLOG_FRESH = 5.0  # seconds
SERIES = (
    "rows_per_second",
    "epoch_seconds",
    "latency_p50",
    "latency_p95",
    "latency_p99",
    "pressure",
    "nodes",
    "cpu",
    "queue",
    "memory",
    "state_keys",
    "state_bytes",
    "checkpoint_bytes",
    "checkpoint_age",
    "backlog",
)


class RunHistory:
    """Collects points; safe for use by several threads."""

    def __init__(
        self, load: Callable[[], Load | None], clock: Callable[[], float] = time.time
    ) -> None:
        """``load`` is the newest load of the run."""
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        self._points: deque[tuple[float, tuple[float | None, ...]]] = deque(maxlen=_RETAINED)
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._rows = 0
        self._slowest = 0.0
        self._begun: float | None = None
        self._backlog: float | None = None
        self._asked = float("-inf")
        self.checkpoint: CheckpointResult | None = None
        self.checkpoint_time: float | None = None

    def add_checkpoint(self, result: CheckpointResult) -> None:
        """Take the result of a checkpoint."""
        self.checkpoint, self.checkpoint_time = result, self._clock()

    def add_backlog(self, amount: float | None) -> None:
        """Take what waits at the sources: it is asked for while somebody looks at the run."""
        self._backlog, self._asked = amount, self._clock()

    def add(self, report: EpochProgress) -> None:
        """Take the report of a committed epoch."""
        with self._lock:
            if self._begun is None:
                self._begun = report.time - report.seconds
            self._latencies.append(report.seconds)
            self._rows += report.rows
            self._slowest = max(self._slowest, report.seconds)
            if self._points and report.time - self._begun < _STEP:
                return
            self._points.append((report.time, self._values(report, report.time - self._begun)))
            self._begun, self._rows, self._slowest = report.time, 0, 0.0

    def since(self, time: float) -> tuple[list[float], dict[str, list[float | None]]]:
        """The points after a time: their times, and the values of each series."""
        with self._lock:
            points = [point for point in self._points if point[0] > time]
        series = {name: [values[at] for _, values in points] for at, name in enumerate(SERIES)}
        return [point[0] for point in points], series

    @property
    def latencies(self) -> Sequence[float]:
        """The seconds of the newest epochs."""
        with self._lock:
            return tuple(self._latencies)

    def _values(self, report: EpochProgress, seconds: float) -> tuple[float | None, ...]:
        load, latencies = self._load(), tuple(self._latencies)
        nodes = () if load is None else tuple(load.nodes.values())
        written = self.checkpoint_time
        return (
            self._rows / seconds,
            self._slowest,
            quantile(latencies, 0.5),
            quantile(latencies, 0.95),
            quantile(latencies, 0.99),
            None if load is None else load.pressure,
            report.nodes,
            sum(node.cpu for node in nodes) if nodes else None,
            sum(node.queue for node in nodes) if nodes else None,
            report.node_memory,
            sum(job.state_keys for job in report.jobs.values()),
            None if load is None else float(load.state_bytes.sum()),
            None if self.checkpoint is None else self.checkpoint.bytes,
            None if written is None else max(0.0, report.time - written),
            self._backlog if self._clock() - self._asked < _BACKLOG_FRESH else None,
        )

"""Epochs, time series and checkpoints of the simulated run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.api import contract as c
from millstream.observe.history import SERIES

_CHECKPOINT_EVERY = 5


class SimulatedHistory:
    """What was measured, epoch by epoch."""

    def __init__(self, started: float) -> None:
        self.epochs: list[c.EpochView] = []
        self._started = started
        self._times: list[float] = []
        self._series: dict[str, list[float | None]] = {name: [] for name in SERIES}

    def add(
        self, time: float, rate: float, seconds: float, took: float, nodes: Sequence[c.NodeView]
    ) -> None:
        """Add an epoch of so many seconds of input."""
        epoch = len(self.epochs)
        self.epochs.append(
            c.EpochView(
                epoch=epoch,
                time=time,
                tries=1,
                seconds=took,
                rows=round(rate * seconds),
                rejected=0,
                nodes=len(nodes),
                phases=[c.PhaseView(name="run", seconds=took * 0.8)],
            )
        )
        self._times.append(time)
        checkpoint = self.checkpoint()
        values = {
            "rows_per_second": rate,
            "epoch_seconds": took,
            "latency_p50": self.latency(0.5),
            "latency_p95": self.latency(0.95),
            "latency_p99": self.latency(0.99),
            "backlog": self.backlog(rate),
            "pressure": took / seconds,
            "nodes": len(nodes),
            "cpu": sum(node.cpu or 0 for node in nodes),
            "queue": sum(node.queue or 0 for node in nodes),
            "memory": sum(node.memory or 0 for node in nodes),
            "state_keys": 2e6 + 900 * epoch,
            "state_bytes": self.state_bytes,
            "checkpoint_bytes": checkpoint.last,
            "checkpoint_age": time - (checkpoint.time or time),
        }
        for name, series in self._series.items():
            series.append(values.get(name))

    def since(self, time: float) -> c.History:
        """The points after a time."""
        first = sum(each <= time for each in self._times)
        series = {name: values[first:] for name, values in self._series.items()}
        return c.History(times=self._times[first:], series=series)

    @property
    def state_bytes(self) -> float:
        """It grows."""
        return 64 * 2**20 * 200 + 3e5 * len(self.epochs)

    def backlog(self, rate: float) -> int:
        """What waits while an epoch is under way."""
        return round(rate * (0.4 + self.latency(0.99) / 2))

    def latency(self, share: float) -> float:
        """The time of an epoch below which this share of the newest ones was."""
        seconds = sorted(each.seconds for each in self.epochs[-100:])
        return seconds[int(share * (len(seconds) - 1))] if seconds else 0.0

    def checkpoint(self) -> c.CheckpointView:
        """The newest checkpoint."""
        now = self._times[-1] if self._times else self._started
        count = int((now - self._started) // _CHECKPOINT_EVERY)
        size = round(8e6 + 2e6 * math.sin(count))
        return c.CheckpointView(
            durable=len(self.epochs) - 1,
            time=self._started + _CHECKPOINT_EVERY * count,
            last=size,
            written=size * max(1, count),
            records=4096 * max(1, count),
        )

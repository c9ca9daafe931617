"""A workflow that shows all metrics, and whose store, sink, input and nodes a test can harm."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millstream as ms
from millstream.spark.handle import Run
from millstream.wire.run_registry import ApiAccess, RunRegistry
from tests.spark.endless import awaited
from tests.stores.redis_servers import RedisServer

WORKFLOW = "monitored"


def words(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def ticks(row: Any) -> Iterator[tuple[int, int, Any]]:
    yield row.value % 10, 1, row.timestamp


class MonitoredRun:
    """The run, and what can happen to it."""

    def __init__(self, folder: Path, store: RedisServer) -> None:
        self.store = store
        self.slowness = 0.0  # seconds that the sink takes
        self._ended = threading.Event()
        self._input = folder / "lines"
        self._input.mkdir()
        self._numbers = itertools.count()
        self._checkpoint = folder / "checkpoint"
        self.run: Run

    def add_files(self, count: int) -> None:
        """Add input: an epoch reads one file."""
        for number in itertools.islice(self._numbers, count):
            hidden = self._input / f".{number}"
            hidden.write_text("mill stream\n")
            hidden.rename(self._input / f"{number}.txt")

    def lose_node(self) -> None:
        """Kill a node, which is not replaced."""
        os.kill(self.run.status().nodes[0].pid, signal.SIGKILL)

    @contextmanager
    def suspended_store(self) -> Iterator[None]:
        os.kill(self.store.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.store.pid, signal.SIGCONT)

    @property
    def access(self) -> ApiAccess:
        [found] = [run for run in RunRegistry.of_user().runs() if run.workflow == WORKFLOW]
        assert found.api is not None
        return found.api

    @contextmanager
    def running(self, spark: SparkSession) -> Iterator[None]:
        """Run it, after a few epochs."""
        self.add_files(3)
        url = f"{self.store.url}?patience=120"
        with ms.start(
            self._flow(),
            spark=spark,
            nodes=2,
            slots=64,
            replace_after=None,
            checkpoint=str(self._checkpoint),
            store=url,
            progress=False,
        ) as self.run:
            awaited(self.run, self._is_under_way)
            try:
                yield
            finally:
                self._ended.set()

    def _is_under_way(self) -> bool:
        assert self.run.phase() == "running"
        return self.run.progress.totals.epochs >= 5

    def _flow(self) -> ms.Workflow:
        flow = ms.Workflow(WORKFLOW)
        files = ms.read.text(str(self._input), follow=True, max_files_per_epoch=1)
        lines = flow.source("lines", files)
        counts = lines.map_reduce("count", map=words, reduce=ms.count())
        counts.sink("slow", ms.write.callback(lambda rows, epoch: self._delay()))
        rate = flow.source("rate", ms.read.rate(rows_per_second=20))
        second = ms.tumbling(timedelta(seconds=1))
        windows = rate.map_reduce("windows", map=ticks, reduce=ms.count(), window=second)
        windows.sink("out", ms.write.callback(lambda rows, epoch: None))
        return flow

    def _delay(self) -> None:
        self._ended.wait(self.slowness)

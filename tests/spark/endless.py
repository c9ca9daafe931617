"""An endless workflow whose nodes come and go, and what tests wait for in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millstream as ms
from millstream.spark.handle import Run

PATIENCE = 180.0  # for what takes seconds


def count(key: int, values: list[int], state: Any) -> Iterator[tuple[int, int]]:
    state["n"] = state.get("n", 0) + len(values)
    yield key, state["n"]


@contextmanager
def running(spark: SparkSession, **options: Any) -> Iterator[Run]:
    """An endless workflow, after its first epoch with rows."""
    flow = ms.Workflow("endless")
    rows = flow.source("rows", ms.read.rate(rows_per_second=200))
    counts = rows.map_reduce("count", map=lambda row: [(row.value % 20, 1)], reduce=count)
    counts.sink("out", ms.write.callback(lambda rows, epoch: None))
    with ms.start(flow, spark=spark, progress=False, slots=64, **options) as run:
        awaited(run, lambda: any(epoch.jobs["count"].rows for epoch in run.progress.recent))
        yield run


def awaited(run: Run, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, [event.text for event in run.events()]
        time.sleep(0.05)


def await_owners(run: Run, nodes: int) -> None:
    """Wait until so many nodes own slots, and no slot is on its way."""
    awaited(
        run, lambda: owners(run) == len(run.status().nodes) == nodes and not run.status().pending
    )


def owners(run: Run) -> int:
    return sum(node.slots > 0 for node in run.status().nodes)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def exact(run: Run) -> None:
    """Every key has been counted exactly as often as rows of it were committed."""
    scan = run.state("count").items()
    counts = {key: entries["n"] for key, entries in scan}
    assert sorted(counts) == list(range(20)), (scan.epoch, counts)
    assert max(counts.values()) - min(counts.values()) <= 1, (scan.epoch, counts)

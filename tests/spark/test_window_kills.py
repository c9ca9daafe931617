"""SIGKILL to nodes whose windows are open: every window comes once, with what belongs to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.node.machine import Durability
from tests.chaos.reader import Reader
from tests.chaos.windowed import (
    START,
    collect,
    in_one,
    lines_that_differ,
    timed,
    windowed_answer,
    windowed_workflow,
)
from tests.chaos.workload import FILES, LINES, Shape, bounded_source, recorded
from tests.spark.words import once

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EPOCHS = 6


@pytest.mark.parametrize(
    ("durability", "builtin"), [("epoch", True), ("interval", True), ("interval", False)]
)
def test_nodes_killed_with_open_windows_cost_nothing_but_time(
    spark: SparkSession, tmp_path: Path, durability: Durability, builtin: bool
) -> None:
    victim, shape = tmp_path / "victim", Shape(builtin=builtin, two_sinks=True, windows=True)

    def deadly_map(line: str) -> Iterator[tuple[str, int, datetime]]:
        """Kill a node from outside, while lines of the third epoch are read."""
        if int(line.split()[0]) >= 2 * FILES * LINES + 10 and once(tmp_path / "outside"):
            with suppress(ProcessLookupError):
                os.kill(int(victim.read_text()), signal.SIGKILL)
        yield from timed(line)

    def deadly_collect(group: int, sums: list[Any], window: Any) -> Iterator[Any]:
        """Die while results of one epoch become values of the next job."""
        if window.start >= START + timedelta(seconds=240) and once(tmp_path / "inside"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from collect(group, sums, window)

    flow = windowed_workflow(
        bounded_source("", recorded(11, EPOCHS)),
        tmp_path,
        shape,
        timed=deadly_map,
        collect=deadly_collect,
    )
    expected = windowed_answer(11, EPOCHS, shape)
    reader = Reader([tmp_path / sink for sink in expected.rows])
    with (
        reader,
        ms.start(
            flow,
            spark=spark,
            nodes=4,
            replicas=2,
            partitions=4,
            slots=256,
            checkpoint=tmp_path / "checkpoint",
            durability=durability,
            checkpoint_every=timedelta(seconds=0.5),
            every=timedelta(seconds=0.2),
        ) as run,
    ):
        victim.write_text(str(run.status().nodes[1].pid))
        run.await_termination()
        lost = run.status().lost
        left = {job: list(run.state(job).items()) for job in expected.state}
    reader.look()

    assert len(lost) == 2, lost
    assert reader.problems == []
    assert list(lines_that_differ(in_one(reader.rows), expected.rows)) == []
    assert left == {job: [] for job in expected.state}

"""A large program is shipped to Spark's workers once, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.words import count

pytestmark = pytest.mark.spark


def files_of(spark: SparkSession) -> int:
    """The files of broadcasts: PySpark removes those of functions only with the session."""
    folder: str = spark.sparkContext._temp_dir
    return len(os.listdir(folder))


def test_epochs_leave_no_copies_of_a_large_program(spark: SparkSession, tmp_path: Path) -> None:
    table = os.urandom(2_000_000)  # above the size from which PySpark broadcasts a function
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("a\nb\n")

    def looked_up(line: str) -> Iterator[tuple[str, int]]:
        yield str(table[ord(line)]), 1

    before, during = files_of(spark), list[int]()
    flow = ms.Workflow("large")
    lines = flow.source("lines", ms.read.text(tmp_path, max_files_per_epoch=1))
    counts = lines.flat_map(looked_up).key_by().reduce("count", count)
    counts.sink("seen", ms.write.callback(lambda rows, epoch: during.append(files_of(spark))))
    with ms.start(flow, spark=spark, nodes=1, slots=64, progress=False) as run:
        run.await_termination()

        assert len(dict(run.state("count").items())) in (1, 2)
    assert [number - before for number in during] == [1, 1]
    assert files_of(spark) == before

"""Shuffle partitions on real Spark: cut from the placement, epoch by epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from millstream.spark.handle import Run
from tests.spark.words import count, expected_counts, split, write_books

pytestmark = pytest.mark.spark


class Counting:
    """A word count, and how many partitions its sink found in each epoch."""

    def __init__(self, folder: Path, meanwhile: Callable[[Run, int], None]) -> None:
        self.partitions: list[int] = []
        self.counts: dict[str, int] = {}
        self._books = write_books(folder)
        self._meanwhile = meanwhile
        self._begun = threading.Event()

    def run(self, spark: SparkSession, **options: Any) -> None:
        flow = ms.Workflow("words")
        lines = flow.source("lines", ms.read.text(self._books, max_files_per_epoch=2))
        counts = lines.map_reduce("count", map=split, reduce=count)
        # A second shuffle, with the same partitions.
        totals = counts.map(lambda pair: ("all", 1)).map_reduce("totals", reduce=ms.count())
        counts.sink("counts", ms.write.foreach_batch(self._read))
        totals.sink("out", ms.write.callback(lambda rows, epoch: None))
        with ms.start(flow, spark=spark, nodes=3, **options) as self._run:
            self._begun.set()
            self._run.await_termination()
            state = {word: state["n"] for word, state in self._run.state("count").items()}
            assert state == self.counts == expected_counts(self._books)

    def _read(self, frame: DataFrame, epoch: int) -> None:
        assert self._begun.wait(60)
        self._meanwhile(self._run, epoch)
        self.partitions.append(frame.rdd.getNumPartitions())
        self.counts |= {row.key: row.value for row in frame.collect()}


def nothing(run: Run, epoch: int) -> None:
    return


def test_a_shuffle_has_a_task_for_every_owner(spark: SparkSession, tmp_path: Path) -> None:
    counting = Counting(tmp_path, nothing)

    counting.run(spark)

    assert counting.partitions == [3, 3, 3]


def test_there_are_more_tasks_if_more_partitions_are_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting(tmp_path, nothing)

    counting.run(spark, partitions=5)

    assert counting.partitions == [5, 5, 5]


def test_slots_that_were_moved_are_reduced_by_the_task_of_their_new_owner(
    spark: SparkSession, tmp_path: Path
) -> None:
    def move(run: Run, epoch: int) -> None:
        if epoch == 0:
            [backup] = run._coordinator.roster.placement.copies(0)
            run._coordinator.scaling.move(range(100), backup)

    counting = Counting(tmp_path, move)

    counting.run(spark)

    assert counting.partitions == [3, 3, 3]

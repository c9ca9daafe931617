"""Whatever a function of ``foreach_batch`` makes of its frame, rows and state are right."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import millstream as ms
from tests.spark.words import FILES, count, expected_counts, run_to_end, split, write_books

pytestmark = pytest.mark.spark

START = datetime(2026, 3, 1, tzinfo=UTC)
KEYS = 160

Shape = Callable[[DataFrame], DataFrame]


def behind_others(frame: DataFrame) -> DataFrame:
    """A union in which our partitions are not the first, in the user's own session."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    none = spark.range(3, numPartitions=3).where("id < 0")
    empty = none.select(*(sf.lit(None).cast(f.dataType).alias(f.name) for f in frame.schema))
    return empty.union(frame)


SHAPES: dict[str, Shape] = {
    "coalesced": lambda frame: frame.coalesce(1),
    "behind others": behind_others,
    "united with itself": lambda frame: frame.coalesce(1).union(frame).distinct(),
    "cached, repartitioned and limited": lambda frame: (
        frame.cache().coalesce(3).repartition(2).orderBy("key").limit(1000)
    ),
    "as it is": lambda frame: frame,
}


class Shapes:
    """A sink's function that reads its frame in all shapes, and first in another every epoch."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, list[Any]]] = {}

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        names = sorted(SHAPES, key=list(SHAPES)[epoch % len(SHAPES)].__ne__)
        self.rows[epoch] = {name: sorted(SHAPES[name](frame).collect()) for name in names}
        assert frame.coalesce(1).count() == len(self.rows[epoch]["as it is"])

    def check(self) -> list[Any]:
        """All rows, by epoch, if every shape had the same."""
        for epoch, found in self.rows.items():
            wrong = {name for name, rows in found.items() if rows != found["as it is"]}
            assert not wrong, f"epoch {epoch}: {wrong}"
        return [row for epoch in sorted(self.rows) for row in self.rows[epoch]["as it is"]]


@pytest.mark.parametrize("sinks", [1, 2])
def test_a_frame_of_any_shape_has_each_row_once(
    spark: SparkSession, tmp_path: Path, sinks: int
) -> None:
    books = write_books(tmp_path)
    for number, book in enumerate(sorted(books.iterdir())):
        if number in (2, 3):  # all of an epoch, for which Spark then runs no task
            book.write_text("")
        os.utime(book, (1e9 + number, 1e9 + number))
    shapes = Shapes()
    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=2))
    counts = lines.map_reduce("count", map=split, reduce=count)
    counts.sink("out", ms.write.foreach_batch(shapes))
    if sinks == 2:  # then both read what Spark has cached
        counts.sink("other", ms.write.foreach_batch(lambda frame, epoch: None))

    outcome = run_to_end(spark, flow, "count")

    expected = expected_counts(books)
    assert {w: s["n"] for w, s in outcome.state["count"].items()} == expected
    assert dict(shapes.check()) == expected
    assert len(shapes.rows) == FILES / 2


def test_windows_that_close_without_new_data_are_emitted_once_in_any_shape(
    spark: SparkSession,
) -> None:
    rows = [{"key": f"k{n}", "at": START + n * timedelta(minutes=1), "n": n} for n in range(KEYS)]
    shapes = Shapes()
    flow = ms.Workflow("windows")
    source = flow.source("rows", ms.read.replay(rows, rows_per_epoch=KEYS // 2))
    hourly = ms.tumbling(timedelta(hours=1))
    sums = source.map_reduce("sums", key="key", time="at", reduce=ms.sum("n"), window=hourly)
    sums.sink("out", ms.write.foreach_batch(shapes))

    run_to_end(spark, flow)

    assert sorted((row.key, row.value) for row in shapes.check()) == sorted(
        (f"k{n}", n) for n in range(KEYS)
    )
    assert len(shapes.rows[max(shapes.rows)]["as it is"]) > 0

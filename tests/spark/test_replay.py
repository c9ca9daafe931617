from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millstream.errors import ConfigError
from millstream.flow import read, sources
from millstream.spark.replay import ReplayEnd, ReplayReader, open_replay, replay_end
from millstream.spark.spool import SPOOL_ROWS, spool_of

pytestmark = pytest.mark.spark

START = datetime(2024, 1, 1, tzinfo=UTC)
MANY = pa.table({"n": range(3 * SPOOL_ROWS + 5)})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def reader_of(source: sources.ReplaySource, clock: Clock | None = None) -> ReplayReader:
    spool = spool_of(source)
    options: Mapping[str, Any] = {
        "spool": spool.path,
        "rows": spool.rows,
        "tasks": 2,
        "limit": source.rows_per_epoch,
        "rate": source.rate,
        "speedup": source.speedup,
        "time": source.time_column,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    return ReplayReader(given, clock or Clock())


def rows_between(reader: ReplayReader, start: int, end: int) -> list[dict[str, Any]]:
    slices = reader.partitions({"row": start}, {"row": end})
    return [row for each in slices for batch in reader.read(each) for row in batch.to_pylist()]


def run_to_end(
    spark: SparkSession,
    source: sources.ReplaySource,
    checkpoint: Path,
    *,
    ship: bool = False,
    fail_at: int | None = None,
) -> dict[int, list[Row]]:
    """Replay under available-now and return the rows of each epoch."""
    epochs: dict[int, list[Row]] = {}

    def receive(batch: Any, epoch: int) -> None:
        epochs[epoch] = batch.collect()
        if epoch == fail_at:
            raise RuntimeError("stop here")

    query = (
        open_replay(spark, source, ship=ship)
        .writeStream.foreachBatch(receive)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    if fail_at is None:
        query.awaitTermination()
    else:
        with pytest.raises(Exception, match="stop here"):
            query.awaitTermination()
    return epochs


def test_the_run_ends_with_every_row_once_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    source = read.replay([{"n": n} for n in range(10)], rows_per_epoch=4)

    epochs = run_to_end(spark, source, tmp_path / "checkpoint")

    assert {e: [row.n for row in rows] for e, rows in epochs.items()} == {
        0: [0, 1, 2, 3],
        1: [4, 5, 6, 7],
        2: [8, 9],
    }


def test_without_a_limit_everything_is_one_epoch(spark: SparkSession, tmp_path: Path) -> None:
    epochs = run_to_end(spark, read.replay(MANY), tmp_path / "checkpoint")

    assert [row.n for row in epochs[0]] == MANY.column("n").to_pylist()
    assert list(epochs) == [0]


def test_a_restart_on_the_same_checkpoint_runs_the_failed_epoch_again_with_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = read.replay([{"n": n} for n in range(12)], rows_per_epoch=5)
    checkpoint = tmp_path / "checkpoint"

    before = run_to_end(spark, source, checkpoint, fail_at=1)
    # A description made anew, with another limit: what was admitted must not be cut again.
    again = read.replay([{"n": n} for n in range(12)], rows_per_epoch=1)
    after = run_to_end(spark, again, checkpoint)

    assert before[1] == after[1]
    assert [row.n for epoch in after for row in after[epoch]] == [5, 6, 7, 8, 9, 10, 11]
    assert list(after) == [1, 2, 3]


def test_the_spool_reaches_executors_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = read.replay([{"n": 1}, {"n": 2}])

    epochs = run_to_end(spark, source, tmp_path / "checkpoint", ship=True)

    assert epochs == {0: [Row(n=1), Row(n=2)]}


def test_a_paced_replay_can_be_stopped_at_its_end(spark: SparkSession, tmp_path: Path) -> None:
    source = read.replay([{"n": n} for n in range(50)], rate=5000)
    end, complete = replay_end(source), threading.Event()
    seen: list[int] = []

    def receive(batch: Any, epoch: int) -> None:
        seen.extend(row.n for row in batch.collect())
        if len(seen) >= end.rows:
            complete.set()

    query = (
        open_replay(spark, source)
        .writeStream.foreachBatch(receive)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        assert complete.wait(30)
        query.processAllAvailable()
        progress = [each for each in query.recentProgress if each.numInputRows][-1]
    finally:
        query.stop()

    assert seen == list(range(50))
    assert end.reached(progress.sources[0].endOffset)


def test_an_end_is_read_from_progress_in_any_form() -> None:
    end = ReplayEnd(10)

    assert end.reached('{"row": 10}')
    assert end.reached({"row": 10})
    assert not end.reached('{"row": 9}')
    assert not end.reached(None)
    assert not end.reached("null")
    assert ReplayEnd(0).reached(None)


def test_a_rate_admits_rows_by_the_clock() -> None:
    clock = Clock()
    reader = reader_of(read.replay(MANY, rate=10), clock)

    admitted = []
    offset = reader.initialOffset()
    for seconds in (0, 0.05, 0.1, 1, 0):
        clock.now += seconds
        offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
        admitted.append(offset["row"])

    assert admitted == [0, 0, 1, 11, 11]


def test_a_rate_resumes_from_its_offset_after_a_restart() -> None:
    clock = Clock()
    reader = reader_of(read.replay(MANY, rate=10), clock)

    at_once = reader.latestOffset({"row": 500}, ReadAllAvailable())
    clock.now += 2

    assert at_once == {"row": 500}
    assert reader.latestOffset({"row": 500}, ReadAllAvailable()) == {"row": 520}


def test_a_limit_holds_also_when_more_is_due() -> None:
    clock = Clock()
    reader = reader_of(read.replay(MANY, rate=10, rows_per_epoch=3), clock)
    reader.latestOffset({"row": 0}, reader.getDefaultReadLimit())
    clock.now += 60

    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    assert reader.latestOffset({"row": 0}, reader.getDefaultReadLimit()) == {"row": 3}
    assert reader.latestOffset({"row": 0}, ReadAllAvailable()) == {"row": 600}


def test_a_pace_never_goes_beyond_the_recording() -> None:
    clock = Clock()
    reader = reader_of(read.replay([{"n": 1}, {"n": 2}], rate=10), clock)
    reader.latestOffset({"row": 0}, ReadAllAvailable())
    clock.now += 3600

    assert reader.latestOffset({"row": 0}, ReadAllAvailable()) == {"row": 2}


@pytest.mark.parametrize(
    "times",
    [
        [START + timedelta(seconds=s) for s in (0, 10, 10, 30)],
        [datetime(2024, 1, 1) + timedelta(seconds=s) for s in (0, 10, 10, 30)],
        [100, 110, 110, 130],
        [100.0, 110.0, 110.0, 130.0],
    ],
    ids=["aware", "naive", "whole seconds", "fractions of seconds"],
)
def test_a_speedup_follows_the_recorded_time(times: list[Any]) -> None:
    clock = Clock()
    source = read.replay([{"at": at} for at in times], speedup=10, time_column="at")
    reader = reader_of(source, clock)

    admitted = []
    for seconds in (0, 0.5, 0.5, 1, 1):
        clock.now += seconds
        admitted.append(reader.latestOffset({"row": 0}, ReadAllAvailable())["row"])

    assert admitted == [1, 1, 3, 3, 4]


def test_a_speedup_at_the_end_of_the_recording_admits_nothing() -> None:
    source = read.replay([{"at": 1}, {"at": 2}], speedup=1, time_column="at")

    assert reader_of(source).latestOffset({"row": 2}, ReadAllAvailable()) == {"row": 2}


def test_available_now_ignores_the_pace() -> None:
    reader = reader_of(read.replay(MANY, rate=1))
    reader.prepareForTriggerAvailableNow()

    assert reader.latestOffset({"row": 0}, ReadAllAvailable()) == {"row": MANY.num_rows}


def test_a_recording_that_shrank_is_rejected() -> None:
    reader = reader_of(read.replay([{"n": 1}]))

    with pytest.raises(ConfigError, match="at row 5, but the recording has 1"):
        reader.latestOffset({"row": 5}, ReadAllAvailable())


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (5, 5), (SPOOL_ROWS - 1, SPOOL_ROWS + 1), (7, 2 * SPOOL_ROWS + 3), (0, len(MANY))],
)
def test_two_offsets_name_exactly_the_rows_between_them(start: int, end: int) -> None:
    source = read.replay(MANY)

    rows = rows_between(reader_of(source), start, end)

    assert [row["n"] for row in rows] == list(range(start, end))


def test_small_epochs_are_one_task_and_large_ones_several() -> None:
    reader = reader_of(read.replay(MANY))

    assert len(reader.partitions({"row": 0}, {"row": 100})) == 1
    assert len(reader.partitions({"row": 0}, {"row": 10_000})) == 2


def test_the_latest_offset_is_what_is_due() -> None:
    clock = Clock()
    paced = reader_of(read.replay(MANY, rate=10.0, rows_per_epoch=5), clock)
    assert paced.reportLatestOffset() is None  # the pace begins with the first epoch
    paced.latestOffset({"row": 0}, ReadMaxRows(5))
    clock.now += 2.0
    assert paced.reportLatestOffset() == {"row": 20}
    clock.now += 1e9
    assert paced.reportLatestOffset() == {"row": MANY.num_rows}

    assert reader_of(read.replay(MANY)).reportLatestOffset() == {"row": MANY.num_rows}

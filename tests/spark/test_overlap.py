"""Epochs that are handed over: Spark logs and plans while they run, and nothing is lost by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millstream as ms
from millstream.coordinator.service import Coordinator
from millstream.spark.engine import Engine
from tests.spark.test_restart import TEXTS, Place
from tests.spark.words import count, split

pytestmark = pytest.mark.spark


def logged(place: Place, log: str) -> set[int]:
    """The epochs in one of Spark's logs, of all incarnations."""
    files = place.checkpoint.rglob(f"{log}/*")
    return {int(file.name) for file in files if file.name.isdigit()}


class Sink:
    """Waits in epoch 0 until Spark has logged more, and fails in another epoch if told to."""

    def __init__(self, place: Place, *, fails_in: int | None = None, patience: float = 30) -> None:
        self._place = place
        self._fails_in = fails_in
        self._patience = patience
        self.saw_ahead = False

    def __call__(self, rows: list[Any], epoch: int) -> None:
        if epoch == self._fails_in:
            raise ValueError(f"no more of epoch {epoch}")
        until = time.monotonic() + self._patience
        while epoch == 0 and not self.saw_ahead and time.monotonic() < until:
            offsets, commits = logged(self._place, "offsets"), logged(self._place, "commits")
            self.saw_ahead = 0 in commits and 1 in offsets
            time.sleep(0.02)

    def flow(self) -> ms.Workflow:
        flow = ms.Workflow("words")
        source = ms.read.text(self._place.books, max_files_per_epoch=1)
        counts = flow.source("lines", source).flat_map(split).key_by().reduce("count", count)
        counts.sink("out", ms.write.json(self._place.out))
        counts.sink("seen", ms.write.callback(self))
        return flow


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Place:
    made = Place(tmp_path, spark)
    made.add(*TEXTS)
    return made


def test_spark_logs_an_epoch_and_plans_the_next_while_it_runs(place: Place) -> None:
    sink = Sink(place)

    state = place.run(sink.flow())

    assert sink.saw_ahead
    assert state["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_spark_reports_the_rows_of_every_epoch(place: Place, spark: SparkSession) -> None:
    run = ms.start(place.flow(), spark=spark, checkpoint=place.checkpoint, progress=False)
    with run:
        query = next(q for q in spark.streams.active if q.name.startswith("words-"))
        run.await_termination(timedelta(seconds=60))
        rows = [report.numInputRows for report in query.recentProgress]

    lines = sum(len(file.read_text().splitlines()) for file in place.books.iterdir())
    assert sum(rows) == lines
    assert len([number for number in rows if number]) == len(TEXTS)


def test_rows_that_are_read_again_are_not_reported_again(
    place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = Coordinator.collect_receipts

    def collect_twice(coordinator: Coordinator, evaluate: Callable[[], None]) -> Any:
        evaluate()  # as if an owner had been lost
        return collect(coordinator, evaluate)

    monkeypatch.setattr(Coordinator, "collect_receipts", collect_twice)

    test_spark_reports_the_rows_of_every_epoch(place, spark)


def test_without_overlap_spark_waits_for_the_epoch(place: Place) -> None:
    sink = Sink(place, patience=1)

    place.run(sink.flow(), overlap=0)

    assert not sink.saw_ahead
    assert place.rows() == place.running_counts()


@pytest.mark.parametrize("epoch", [0, len(TEXTS) - 1])
def test_an_epoch_that_failed_is_run_again_whatever_spark_has_logged(
    place: Place, epoch: int
) -> None:
    sink = Sink(place, fails_in=epoch)

    with pytest.raises(ms.UserFunctionError, match=f"no more of epoch {epoch}") as failed:
        place.run(sink.flow())

    assert failed.value.epoch == epoch
    assert set(place.rows()) == set(range(epoch))
    assert place.run(Sink(place).flow())["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_a_run_can_be_stopped_from_a_handed_over_epoch(place: Place, spark: SparkSession) -> None:
    stopped: list[ms.Run] = []

    def stop(rows: list[Any], epoch: int) -> None:
        if epoch == 1:
            run.stop()
            stopped.append(run)

    flow = ms.Workflow("words")
    source = ms.read.text(place.books, max_files_per_epoch=1, follow=True)
    counts = flow.source("lines", source).flat_map(split).key_by().reduce("count", count)
    counts.sink("out", ms.write.json(place.out))
    counts.sink("seen", ms.write.callback(stop))
    run = ms.start(flow, spark=spark, checkpoint=place.checkpoint, slots=64, progress=False)
    assert run.await_termination(timedelta(seconds=60))

    assert stopped == [run]
    assert set(place.rows()) <= {0, 1, 2}
    assert place.run(place.flow())["count"] == place.counts()
    assert place.rows() == place.running_counts()


def test_a_sink_sees_what_spark_keeps_by_thread(place: Place) -> None:
    seen: list[tuple[bool, str | None]] = []

    def look(frame: DataFrame, epoch: int) -> None:
        group = frame.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id")
        seen.append((SparkSession.getActiveSession() is not None, group))

    flow = ms.Workflow("words")
    source = ms.read.text(place.books, max_files_per_epoch=1)
    counts = flow.source("lines", source).flat_map(split).key_by().reduce("count", count)
    counts.sink("seen", ms.write.foreach_batch(look))
    place.run(flow)

    groups = {group for _, group in seen}
    assert [active for active, _ in seen] == [True] * len(TEXTS)
    assert len(groups) == 1  # that of the query, which Spark cancels when it stops
    assert None not in groups


def test_a_run_ends_whose_first_epoch_failed_before_it_had_the_query(
    place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave_up = threading.Event()
    start, give_up = DataStreamWriter.start, Engine.give_up

    def slow_start(writer: DataStreamWriter) -> Any:
        query = start(writer)
        assert gave_up.wait(60)
        return query

    def seen_give_up(engine: Engine) -> None:
        give_up(engine)
        gave_up.set()

    monkeypatch.setattr(DataStreamWriter, "start", slow_start)
    monkeypatch.setattr(Engine, "give_up", seen_give_up)
    flow = ms.Workflow("words")
    source = ms.read.text(place.books, follow=True)
    counts = flow.source("lines", source).flat_map(split).key_by().reduce("count", count)
    counts.sink("seen", ms.write.callback(Sink(place, fails_in=0)))
    run = ms.start(flow, spark=spark, checkpoint=place.checkpoint, slots=64, progress=False)

    with pytest.raises(ms.UserFunctionError):
        assert run.await_termination(timedelta(seconds=20))

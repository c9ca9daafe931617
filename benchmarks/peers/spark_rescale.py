"""Spark's own way to another parallelism: stop, offline repartition of the state, restart.

The query is ``groupBy().count()`` with one small batch due after the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.changes import AFTER, BEFORE, PACE, PATIENCE, Change
from benchmarks.ranges import Input, spark_range_counts

_PARTITIONS = "spark.sql.shuffle.partitions"


class Batches:
    """The callback of Spark's query: notes when small batches are done, and checks them.

    A repartition is a batch of its own, without rows.
    """

    def __init__(self, given: Input) -> None:
        self._given = given
        self._changed = threading.Condition()
        self._seen: list[int] = []
        self.times: list[float] = []
        self.wrong: int | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if len(self._seen) < self._given.loads:
            frame.write.format("noop").mode("overwrite").save()
            self._seen.append(batch)
            return
        counts = [row["count"] for row in frame.collect()]
        if not counts:
            return
        if batch not in self._seen:
            self._seen.append(batch)
        epoch = self._seen.index(batch)
        with self._changed:
            self.times.append(time.monotonic())
            if not self._given.is_right(epoch, counts):
                self.wrong = batch
            self._changed.notify_all()

    def drop_uncommitted(self, work: Path) -> None:
        """Forget a batch that was done but not committed: it is repeated, under another number."""
        if self._seen and not (work / "commits" / str(self._seen[-1])).exists():
            self._seen.pop()

    def wait_for_more(self, batches: int) -> None:
        wanted = len(self.times) + batches
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.times) >= wanted or self.wrong is not None,
                PATIENCE.total_seconds(),
            )
        if self.wrong is not None:
            raise SystemExit(f"Spark's batch {self.wrong} has wrong counts")
        if len(self.times) < wanted:
            raise SystemExit(f"Spark did not go on within {PATIENCE.total_seconds():.0f} s")


def repartition(
    spark: SparkSession, given: Input, work: Path, course: Sequence[int]
) -> Iterator[Change]:
    """Go from one number of state partitions to the next.

    The query is stopped, its state repartitioned offline, and the query started again.
    """
    batches = Batches(given)
    first, *others = course
    before = spark.conf.get(_PARTITIONS)
    spark.conf.set(_PARTITIONS, str(first))
    query = _start_spark(spark, given, batches, work)
    try:
        for partitions in others:
            batches.wait_for_more(BEFORE)
            _await_idle(query)
            called = time.monotonic()
            query.stop()
            batches.drop_uncommitted(work)
            spark._streamingCheckpointManager.repartition(str(work), partitions)
            spark.conf.set(_PARTITIONS, str(partitions))
            query = _start_spark(spark, given, batches, work)
            batches.wait_for_more(1)
            done = batches.times[-1]
            batches.wait_for_more(AFTER)
            yield Change(called=called, done=done, outputs=tuple(batches.times))
    finally:
        query.stop()
        spark.conf.set(_PARTITIONS, str(before))


def _start_spark(spark: SparkSession, given: Input, batches: Batches, work: Path) -> StreamingQuery:
    return (
        spark_range_counts(spark, given)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(work))
        .foreachBatch(batches)
        .trigger(processingTime=f"{PACE.total_seconds()} seconds")
        .start()
    )


def _await_idle(query: StreamingQuery) -> None:
    """Wait for the end of a batch: a stop then has nothing to wait for, and nothing to repeat."""
    deadline = time.monotonic() + PATIENCE.total_seconds()
    last = query.lastProgress
    while time.monotonic() < deadline:
        now = query.lastProgress
        if now is not None and last is not None and now.batchId > last.batchId:
            return
        time.sleep(0.01)
    raise SystemExit("Spark did not go on")

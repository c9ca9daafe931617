"""How long Spark's own stateful streaming is held up by the loss of an executor."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import PARTITIONS, ROCKSDB, Result, note
from benchmarks.ranges import PATIENCE, Input, spark_range_counts, write_input
from millstream.node.process import executor_pid
from millstream.spark.session import SETTINGS, await_executors, use_own_python

SETTLING = 8  # small epochs before the kill
CLUSTER = "local-cluster[2,1,2048]"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def spark_results(folder: Path, keys: int) -> list[Result]:
    """Spark's recovery with both of its state stores; the faster one stands for it."""
    given = write_input(folder / "spark-keys", keys=keys, epochs=200)
    spark = cluster_session()
    try:
        times, epochs = {}, {}
        for name, store in (("rocksdb", ROCKSDB), ("hdfs", HDFS)):
            await_executors(spark)
            times[name], epochs[name] = spark_reload(spark, given, folder / f"spark-{name}", store)
            note(
                f"{name}: a batch again after {times[name]:.2f} s; "
                f"a batch takes {epochs[name]:.2f} s"
            )
    finally:
        spark.stop()
    best = min(times, key=lambda name: times[name])
    return [
        *(Result(f"spark_reload_s_{name}", found, "s") for name, found in times.items()),
        Result("spark_epoch_s", epochs[best], "s"),
        Result("spark_reload_s", times[best], "s"),
    ]


def cluster_session() -> SparkSession:
    """A session with real executors, otherwise as ``harness.session``."""
    use_own_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        **SETTINGS,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "2g",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }
    builder = SparkSession.builder.appName("millstream-bench").master(CLUSTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def spark_reload(spark: SparkSession, given: Input, work: Path, store: str) -> tuple[float, float]:
    """From the kill of an executor to the end of the batch under way; and the time of a batch.

    The kill comes at the begin of a batch, when no work is lost and nothing is left to wait for.
    """
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    batches = _Batches()
    query = (
        spark_range_counts(spark, given)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(work))
        .foreachBatch(batches)
        .trigger(availableNow=True)
        .start()
    )
    try:
        batches.wait(lambda: len(batches.ends) >= given.loads + SETTLING)
        usual = median(b - a for a, b in pairwise(batches.ends[-SETTLING // 2 :]))
        batches.victim = executor_pids(spark)[0]
        batches.wait(lambda: batches.recovery is not None)
        assert batches.recovery is not None
        return batches.recovery, usual
    finally:
        query.stop()


class _Batches:
    """The callback of Spark's query: runs batches, and at the begin of one kills the victim."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.ends: list[float] = []
        self.victim: int | None = None
        self.recovery: float | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        killed = None
        if self.victim is not None and self.recovery is None:
            killed = time.monotonic()
            os.kill(self.victim, signal.SIGKILL)
        frame.write.format("noop").mode("overwrite").save()
        with self._changed:
            self.ends.append(time.monotonic())
            if killed is not None:
                self.recovery = self.ends[-1] - killed
            self._changed.notify_all()

    def wait(self, wanted: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(wanted, 2 * PATIENCE):
                raise SystemExit(f"Spark did not go on within {2 * PATIENCE:.0f} s")


def executor_pids(spark: SparkSession) -> list[int]:
    """The processes of the executors."""

    def look(_: Iterable[int]) -> Iterator[int]:
        time.sleep(0.1)  # so that no executor takes all tasks
        yield executor_pid()

    tasks = 4 * spark.sparkContext.defaultParallelism
    found = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(look).collect()
    return sorted(set(found))

"""The largest number of each key, of records that come one after the other: Spark's and ours.

A record is a key and a number, counting from 0; files come in the order of the numbers. An output
with a number shows that all records up to it are in the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from benchmarks.harness import PARTITIONS
from benchmarks.peers.protocol import Ran, Task

_NODES = 2


class _Outputs:
    """Takes the time of every output until the last record has come."""

    def __init__(self, records: int) -> None:
        self._last = records - 1
        self.ends: list[float] = []
        self.reached: list[int] = []
        self.complete = threading.Event()

    def add(self, numbers: Iterable[int]) -> None:
        largest = max(numbers, default=None)
        if largest is not None:
            self.ends.append(time.time())
            self.reached.append(largest)
            if largest == self._last:
                self.complete.set()

    def ran(self, seconds: float) -> Ran:
        return Ran(seconds=seconds, ends=self.ends, reached=self.reached)


def on_spark(spark: SparkSession, task: Task) -> Ran:
    """``groupBy().agg(max())``, with outputs in ``foreachBatch``."""
    outputs = _Outputs(task.records)

    def take(frame: DataFrame, _: int) -> None:
        outputs.add(row[1] for row in frame.collect())

    records = spark.readStream.text(task.folder).selectExpr(
        "split(value, ' ')[0] AS key", "CAST(split(value, ' ')[1] AS BIGINT) AS number"
    )
    began = time.perf_counter()
    query = (
        records.groupBy("key")
        .agg({"number": "max"})
        .writeStream.outputMode("update")
        .option("checkpointLocation", task.work)
        .foreachBatch(take)
        .start()
    )
    try:
        _await(outputs, task, lambda: query.isActive)
    finally:
        query.stop()
    return outputs.ran(time.perf_counter() - began)


def on_millstream(spark: SparkSession, task: Task) -> Ran:
    """``ms.max()`` behind an Arrow map, with outputs in a callback."""
    outputs = _Outputs(task.records)
    flow = ms.Workflow("paced")
    lines = flow.source("lines", ms.read.text(Path(task.folder), follow=True))
    largest = lines.map_reduce("largest", map=ms.arrow(_parse), reduce=ms.max())
    largest.sink("out", ms.write.callback(lambda rows, _: outputs.add(row.value for row in rows)))
    began = time.perf_counter()
    run = ms.start(
        flow,
        spark=spark,
        checkpoint=task.work,
        nodes=_NODES,
        partitions=PARTITIONS,
        progress=False,
        **task.options,
    )
    with run:
        _await(outputs, task, lambda: run.status().phase == "running")
        run.stop()
    return outputs.ran(time.perf_counter() - began)


def _parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    parts = pc.split_pattern(batch.column("value"), " ")
    keys, numbers = (pc.list_element(parts, at) for at in (0, 1))
    return pa.RecordBatch.from_arrays([keys, numbers.cast(pa.int64())], names=["key", "value"])


def _await(outputs: _Outputs, task: Task, is_running: Any) -> None:
    deadline = time.monotonic() + task.patience
    while not outputs.complete.wait(0.5):
        if not is_running():
            raise RuntimeError("the query ended before the last record came")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the last record did not come within {task.patience:.0f} s")

"""Workloads of rows on Spark and on Millstream: files in, Parquet files out, exactly once."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

import millstream as ms
from benchmarks.harness import PARTITIONS
from benchmarks.peers.contender import end_times
from benchmarks.peers.protocol import Ran, Task
from benchmarks.workloads.catalog import WORKLOADS
from benchmarks.workloads.workload import FILES_PER_EPOCH, LATENESS

NODES = 2


def on_spark(spark: SparkSession, task: Task) -> Ran:
    """A streaming query in append mode."""
    workload = WORKLOADS[str(task.options["workload"])]
    reader = spark.readStream.option("maxFilesPerTrigger", FILES_PER_EPOCH)
    delay = f"{LATENESS.total_seconds():.0f} seconds"
    frames = {}
    for name in workload.streams:
        folder = f"{task.folder}/{name}"
        schema = spark.read.parquet(folder).schema
        frames[name] = reader.schema(schema).parquet(folder).withWatermark("ts", delay)
    began = time.perf_counter()
    query = (
        workload.spark(frames)
        .writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", task.work)
        .option("path", task.answer)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ends = end_times(query)
    _require(len(ends), task)
    return Ran(seconds=time.perf_counter() - began, ends=ends)


def on_millstream(spark: SparkSession, task: Task) -> Ran:
    """A workflow with a checkpoint and a replica."""
    workload = WORKLOADS[str(task.options["workload"])]
    flow = ms.Workflow("bench")
    streams = {}
    for name in workload.streams:
        source = ms.read.parquet(f"{task.folder}/{name}", max_files_per_epoch=FILES_PER_EPOCH)
        streams[name] = flow.source(name, source, lateness=LATENESS)
    workload.millstream(streams).sink("out", ms.write.parquet(task.answer))
    ends: list[float] = []
    begun = time.perf_counter()
    with ms.start(
        flow,
        spark=spark,
        checkpoint=Path(task.work),
        nodes=NODES,
        partitions=PARTITIONS,
        progress=False,
    ) as run:
        run.progress.listen(lambda _: ends.append(time.monotonic()))
        run.await_termination()
    _require(len(ends), task)
    # Those after it only close windows.
    return Ran(seconds=time.perf_counter() - begun, ends=ends[: task.epochs])


def _require(epochs: int, task: Task) -> None:
    if epochs < task.epochs:
        raise RuntimeError(f"expected {task.epochs} epochs, {epochs} were reported")

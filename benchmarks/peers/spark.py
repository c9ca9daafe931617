"""Spark's own stateful queries: ``groupBy().count()``, and a stateful Python processor."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.data import FILES_PER_EPOCH, Text
from benchmarks.harness import ROCKSDB
from benchmarks.peers.contender import Measured, counts_of, phase_times, trigger_times

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


class GroupByCount:
    """A streaming aggregation in update mode, all in the JVM."""

    name = "spark, groupBy().count()"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        query = _run(_words(spark, text).groupBy("key").count(), work)
        state = spark.read.format("statestore").load(str(work))
        rows = state.selectExpr("key.key", "value.count").collect()
        return Measured(trigger_times(query, text), counts_of(rows), phase_times(query))


class ChangelogCount(GroupByCount):
    """The same, with the state store that writes least: RocksDB, and only changes every epoch."""

    name = "spark, groupBy().count(), RocksDB with changelog"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        settings = {_PROVIDER: ROCKSDB, _CHANGELOG: "true"}
        before = {name: spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            return super().run(spark, text, work)
        finally:
            for name, was in before.items():
                if was is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, was)


class TransformWithStatePandas:
    """A stateful processor in Python that keeps one count per word."""

    name = "spark, transformWithStateInPandas"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        counted = (
            _words(spark, text)
            .groupBy("key")
            .transformWithStateInPandas(
                statefulProcessor=_processor(),
                outputStructType="key string, n bigint",
                outputMode="Update",
                timeMode="None",
            )
        )
        query = _run(counted, work)
        state = spark.read.format("statestore").option("stateVarName", "n").load(str(work))
        rows = state.selectExpr("key.key", "value.n").collect()
        return Measured(trigger_times(query, text), counts_of(rows))


def require_protobuf() -> None:
    """Say at once what would otherwise fail inside Spark, minutes later."""
    try:
        import_module("google.protobuf")
    except ImportError:
        wanted = "pip install 'protobuf>=6.33.5,<7'"
        raise SystemExit(f"transformWithStateInPandas needs protobuf: {wanted}") from None


def _words(spark: SparkSession, text: Text) -> DataFrame:
    lines = spark.readStream.option("maxFilesPerTrigger", FILES_PER_EPOCH).text(str(text.folder))
    return lines.selectExpr("explode(split(value, ' ')) AS key")


def _run(frame: DataFrame, work: Path) -> StreamingQuery:
    query = (
        frame.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(work))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def _processor() -> Any:
    # Made inside a function so that it is pickled by value: workers need not import this module.
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._n = handle.getValueState("n", "n bigint")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[pd.DataFrame],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[pd.DataFrame]:
            known = self._n.get()
            total = (known[0] if known is not None else 0) + sum(map(len, rows))
            self._n.update((total,))
            yield pd.DataFrame({"key": [key[0]], "n": [total]})

        def close(self) -> None:
            pass

    return Counter()

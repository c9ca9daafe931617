"""Spark's own stateful queries: ``groupBy().count()``, and the stateful operators in Python.

State is in RocksDB; with the changelog an epoch writes only its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.data import FILES_PER_EPOCH, Text
from benchmarks.harness import ROCKSDB, session
from benchmarks.peers import paced_forms, workload_forms
from benchmarks.peers.contender import Measured, counts_of, end_times, phase_times, trigger_times
from benchmarks.peers.protocol import Ran, Task
from benchmarks.peers.session_form import form_of

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_TRANSFORM = ("key string, n bigint", "Update", "None")
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


class GroupByCount:
    """A streaming aggregation in update mode, all in the JVM."""

    name = "spark, groupBy().count()"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        query = _run(_words(spark, text).groupBy("key").count(), work)
        state = spark.read.format("statestore").load(str(work))
        return _measured(query, text, state.selectExpr("key.key", "value.count"))


class ChangelogCount(GroupByCount):
    """The same, with the state store that writes least: RocksDB, and only changes every epoch."""

    name = "spark, groupBy().count(), RocksDB with changelog"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        with _changelog(spark):
            return super().run(spark, text, work)


class PandasWithState:
    """``applyInPandasWithState``: a function of pandas frames with a tuple of state for a word."""

    name = "spark, applyInPandasWithState"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        counted = (
            _words(spark, text)
            .groupBy("key")
            .applyInPandasWithState(
                _frame_counter(), "key string, n bigint", "n bigint", "update", "NoTimeout"
            )
        )
        with _changelog(spark):
            query = _run(counted, work)
        state = spark.read.format("statestore").load(str(work))
        return _measured(query, text, state.selectExpr("key.key", "value.groupState.n"))


class TransformWithState:
    """``transformWithState``: a processor of rows that keeps one count per word."""

    name = "spark, transformWithState"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        grouped = _words(spark, text).groupBy("key")
        counted = self._transformed(grouped)
        with _changelog(spark):
            query = _run(counted, work)
        state = spark.read.format("statestore").option("stateVarName", "n").load(str(work))
        return _measured(query, text, state.selectExpr("key.key", "value.n"))

    def _transformed(self, grouped: GroupedData) -> DataFrame:
        return grouped.transformWithState(_row_processor(), *_TRANSFORM)


class TransformWithStatePandas(TransformWithState):
    """The same in pandas."""

    name = "spark, transformWithStateInPandas"

    def _transformed(self, grouped: GroupedData) -> DataFrame:
        return grouped.transformWithStateInPandas(_pandas_processor(), *_TRANSFORM)


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


def _measured(query: StreamingQuery, text: Text, counts: DataFrame) -> Measured:
    return Measured(
        trigger_times(query, text),
        counts_of(counts),
        end_times(query),
        phase_times(query),
    )


@contextmanager
def _changelog(spark: SparkSession) -> Iterator[None]:
    settings = {_PROVIDER: ROCKSDB, _CHANGELOG: "true"}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


# Functions and processors are made inside functions so that they are pickled by value: workers need
# not import this module.


def _frame_counter() -> Callable[..., Iterator[Any]]:
    import pandas as pd

    def count_frames(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        total = (state.get[0] if state.exists else 0) + sum(map(len, frames))
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "n": [total]})

    return count_frames


def _row_processor() -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._n = handle.getValueState("n", "n bigint")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Any]:
            known = self._n.get()
            total = (known[0] if known is not None else 0) + sum(1 for _ in rows)
            self._n.update((total,))
            yield Row(key=key[0], n=total)

        def close(self) -> None:
            pass

    return Counter()


def _pandas_processor() -> Any:
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


def _workload(task: Task) -> Ran:
    with _changelog(session()):
        return workload_forms.on_spark(session(), task)


FORMS = {
    "groupby": form_of(ChangelogCount),
    "pandas_with_state": form_of(PandasWithState),
    "tws_row": form_of(TransformWithState),
    "tws_pandas": form_of(TransformWithStatePandas),
    "paced": lambda task: paced_forms.on_spark(session(), task),
    "workload": _workload,
}
PACKAGES = ("pyspark", "pyarrow", "pandas", "protobuf")

"""Millstream: the stateful reduce function, and the built-in count behind two kinds of map.

Options are those of ``ms.start``, in the place of the benchmarks' own: a checkpoint in the folder
that a contender is given, and the smallest number of nodes with copies on one another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millstream as ms
from benchmarks.data import FILES_PER_EPOCH, Text
from benchmarks.harness import PARTITIONS, session
from benchmarks.peers import paced_forms, workload_forms
from benchmarks.peers.contender import Counts, Measured, phase_times, trigger_times
from benchmarks.peers.session_form import form_of

NODES = 2


class StatefulFunction:
    """A map function and a reduce function with state, both per record.

    With ``payload`` the state of a word has so many bytes more, which change with every epoch.
    """

    name = "millstream, stateful function"

    def __init__(self, *, payload: int = 0, **options: Any) -> None:
        self._payload = payload
        self._options = options

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        flow, lines = _source(text)
        reduce = _count_with(self._payload) if self._payload else _count
        lines.map_reduce("count", map=_split, reduce=reduce)
        return _run(spark, flow, text, work, self._counts, self._options)

    def _counts(self, run: ms.Run) -> Counts:
        return {word: state["n"] for word, state in run.state("count").items()}


class BuiltinArrow:
    """The built-in count behind an Arrow map."""

    name = "millstream, built-in count, Arrow map"

    def __init__(self, **options: Any) -> None:
        self._options = options

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        flow, lines = _source(text)
        lines.map_reduce("count", map=ms.arrow(_split_batch), reduce=ms.count())
        return _run(spark, flow, text, work, _builtin_counts, self._options)


class BuiltinSql:
    """The built-in count behind a map in Spark SQL."""

    name = "millstream, built-in count, SQL map"

    def __init__(self, **options: Any) -> None:
        self._options = options

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        flow, lines = _source(text)
        split = ms.sql("explode(split(value, ' ')) AS key")
        lines.map_reduce("count", map=split, reduce=ms.count())
        return _run(spark, flow, text, work, _builtin_counts, self._options)


def _split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def _count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, state["n"]


def _count_with(payload: int) -> Callable[..., Iterator[tuple[str, int]]]:
    def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
        n = state["n"] = state.get("n", 0) + sum(ones)
        state["payload"] = bytes([n % 256]) * payload
        yield word, n

    return count


def _split_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    words = pc.list_flatten(pc.split_pattern(batch.column("value"), " "))
    return pa.RecordBatch.from_arrays([words], names=["key"])


def _source(text: Text) -> tuple[ms.Workflow, ms.Stream]:
    flow = ms.Workflow("bench")
    source = ms.read.text(text.folder, max_files_per_epoch=FILES_PER_EPOCH)
    return flow, flow.source("lines", source)


def _builtin_counts(run: ms.Run) -> Counts:
    return dict(run.state("count").items())


def _run(
    spark: SparkSession,
    flow: ms.Workflow,
    text: Text,
    work: Path,
    counts: Callable[[ms.Run], Counts],
    options: dict[str, Any],
) -> Measured:
    chosen: dict[str, Any] = {
        "checkpoint": work,
        "nodes": NODES,
        "partitions": PARTITIONS,
        "progress": False,
        **options,
    }
    ends: list[float] = []
    with ms.start(flow, spark=spark, **chosen) as run:
        run.progress.listen(lambda _: ends.append(time.monotonic()))
        query = _query(spark, flow.name)
        run.await_termination()
        reports = run.progress.recent
        if len(reports) != text.epochs or len(ends) < text.epochs - 1:
            raise RuntimeError(f"expected {text.epochs} epochs, {len(reports)} were reported")
        # While epochs overlap, Spark reports no input.
        overlaps = bool(chosen.get("overlap"))
        triggers = [1000 * r.seconds for r in reports] if overlaps else trigger_times(query, text)
        return Measured(triggers, counts(run), ends, phase_times(query), reports)


def _query(spark: SparkSession, name: str) -> StreamingQuery:
    return next(query for query in spark.streams.active if query.name.startswith(f"{name}-"))


FORMS = {
    "stateful": form_of(StatefulFunction),
    "builtin_arrow": form_of(BuiltinArrow),
    "builtin_sql": form_of(BuiltinSql),
    "paced": lambda task: paced_forms.on_millstream(session(), task),
    "workload": lambda task: workload_forms.on_millstream(session(), task),
}
PACKAGES = ("millstream", "pyspark", "pyarrow", "numpy")

"""Flink: SQL in the JVM with mini-batches, and the DataStream API with Python in the JVM's threads.

Both in streaming mode with parallelism 2 and exactly-once checkpoints at an interval. State is on
the heap, the faster of Flink's backends where it fits; objects are reused. One JVM serves all runs.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.common.serialization import Encoder
from pyflink.datastream import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors import Sink
from pyflink.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

from benchmarks.peers.protocol import Ran, Task, write_counts

# The interpreter in the JVM would see only the packages of the Python behind this environment.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [sysconfig.get_path("purelib"), os.environ.get("PYTHONPATH", "")]
)

PARALLELISM = 2
MINI_BATCH = 100_000  # rows; it also ends with every interval
_COUNT = re.compile(r"\+[IU]\[(.*), (\d+)\]|\((.*),(\d+)\)")
_LINES = """
    CREATE TABLE lines (line STRING)
    WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'raw')
"""
_NOWHERE = "CREATE TABLE nowhere (word STRING, n BIGINT) WITH ('connector' = 'blackhole')"
_WATERMARK = "WATERMARK FOR ts AS ts - INTERVAL '{lateness}' SECOND"
_COUNTS = """
    SELECT word, COUNT(*) AS n
    FROM lines CROSS JOIN UNNEST(SPLIT(line, ' ')) AS words(word)
    GROUP BY word
"""


def sql(task: Task) -> Ran:
    """``GROUP BY`` over an unbounded table, counted locally before it is shuffled."""
    environment = _environment(task, _mini_batches(task))
    tables = StreamTableEnvironment.create(environment)
    tables.execute_sql(_LINES.format(folder=task.folder))
    if task.answer:
        changes = tables.to_changelog_stream(tables.sql_query(_COUNTS))
        return _answered(task, environment, changes)
    tables.execute_sql(_NOWHERE)
    began = time.perf_counter()
    tables.execute_sql(f"INSERT INTO nowhere {_COUNTS}").wait()
    return Ran(seconds=time.perf_counter() - began)


def query(task: Task) -> Ran:
    """A workload of rows, with its results in files."""
    tables = StreamTableEnvironment.create(_environment(task, _mini_batches(task)))
    for name, columns in task.options["tables"].items():
        declared = ", ".join(f"`{column}` {type}" for column, type in columns.items())
        path = f"file://{task.folder}/csv/{name}"
        tables.execute_sql(
            f"CREATE TABLE {name} ({declared}, {_WATERMARK.format(**task.options)}) {_csv(path)}"
        )
    declared = ", ".join(f"`{name}` {type}" for name, type in task.options["answer"].items())
    path = f"file://{task.answer or task.work + '-results'}"
    tables.execute_sql(f"CREATE TABLE results ({declared}) {_csv(path)}")
    began = time.perf_counter()
    tables.execute_sql(f"INSERT INTO results {task.options['flink']}").wait()
    return Ran(seconds=time.perf_counter() - began)


def _csv(path: str) -> str:
    return f"WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')"


def datastream(task: Task) -> Ran:
    """A keyed process function with value state."""
    environment = _environment(
        task, {"python.execution-mode": "thread", "python.executable": sys.executable}
    )
    source = FileSource.for_record_stream_format(
        StreamFormat.text_line_format(), f"file://{task.folder}"
    ).build()
    lines = environment.from_source(source, WatermarkStrategy.no_watermarks(), "lines")
    # Lambdas and the class of a function are pickled by value: the JVM cannot import this module.
    words = lines.flat_map(lambda line: line.split(), Types.STRING())
    counts = words.key_by(lambda word: word, Types.STRING()).process(
        _count(), Types.TUPLE([Types.STRING(), Types.LONG()])
    )
    if task.answer:
        return _answered(task, environment, counts)
    discarding = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    counts.sink_to(Sink(discarding))
    began = time.perf_counter()
    environment.execute()
    return Ran(seconds=time.perf_counter() - began)


def _count() -> Any:
    class Count(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self._n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

        def process_element(self, value: str, ctx: Any) -> Iterator[tuple[str, int]]:
            n = (self._n.value() or 0) + 1
            self._n.update(n)
            yield value, n

    return Count()


def _mini_batches(task: Task) -> dict[str, str]:
    return {
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": f"{int(1000 * task.interval)} ms",
        "table.exec.mini-batch.size": str(MINI_BATCH),
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    }


def _environment(task: Task, more: dict[str, str]) -> StreamExecutionEnvironment:
    settings = Configuration()
    for name, value in {
        "parallelism.default": str(PARALLELISM),
        "execution.runtime-mode": "STREAMING",
        "execution.checkpointing.interval": f"{int(1000 * task.interval)} ms",
        "execution.checkpointing.dir": f"file://{task.work}",
        "state.backend.type": "hashmap",
        "pipeline.object-reuse": "true",
        "restart-strategy.type": "none",
        "rest.port": "0",
        **more,
    }.items():
        settings.set_string(name, value)
    return StreamExecutionEnvironment.get_execution_environment(settings)


def _answered(task: Task, environment: StreamExecutionEnvironment, counts: DataStream) -> Ran:
    """Run with every change written to files; counts only grow, so that the largest is the last."""
    folder = Path(f"{task.work}-changes")
    encoder = Encoder.simple_string_encoder()
    counts.sink_to(FileSink.for_row_format(str(folder), encoder).build())
    began = time.perf_counter()
    environment.execute()
    seconds = time.perf_counter() - began
    write_counts(task.answer, _largest(folder).items())
    return Ran(seconds=seconds)


def _largest(folder: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open(encoding="utf-8") as lines:
                for found in map(_COUNT.match, lines):
                    if found is not None:
                        word, n = found[1] or found[3], int(found[2] or found[4])
                        counts[word] = max(n, counts.get(word, 0))
    return counts


FORMS = {"sql": sql, "query": query, "datastream": datastream}
PACKAGES = ("apache-flink", "pemja")

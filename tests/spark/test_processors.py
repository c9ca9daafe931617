# ruff: noqa: N802, N803
"""Stateful processors, each run by Spark and by Millstream from one class: the same rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle as spark_pickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millstream as ms
from tests.spark import stateful_processors as processors
from tests.spark.stateful_processors import TEXT
from tests.spark.words import once

pytestmark = pytest.mark.spark

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "id string, v bigint, t timestamp"
COUNT = "id string, n bigint"

Epochs = Sequence[Sequence[dict[str, Any]]]


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}Z"


def row(id: str | None, v: int | None = 1, second: int = 0) -> dict[str, Any]:
    return {"id": id, "v": v, "t": at(second)}


PLAIN: Epochs = [
    [row("a", 1), row("b", 2), row("a", 3), row("c", 4)],
    [row("a", 5), row("b", 2), row(None, 3), row("c", 4)],
    [row("a", 6), row("b", 8), row("a", 1), row("c", 7), row(None, 1)],
]
TIMED: Epochs = [
    [row("a", 1, 1), row("b", 2, 2), row("a", 3, 3)],
    [row("a", 5, 5), row("c", 2, 12), row("b", 1, 9)],
    [row("a", 6, 13), row("d", 8, 20), row("b", 1, 2), row("c", 3, 11)],
    [row("a", 6, 30), row("e", 9, 11), row("d", 9, 21)],
    [row("f", 6, 50)],
]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with what Spark's own processors need."""
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider, None)
    spark.conf.set(provider, ROCKSDB)
    spark_pickle.register_pickle_by_value(processors)  # type: ignore[no-untyped-call]
    yield spark
    spark_pickle.unregister_pickle_by_value(processors)  # type: ignore[no-untyped-call]
    if before is None:
        spark.conf.unset(provider)
    else:
        spark.conf.set(provider, before)


@dataclass(kw_only=True)
class Case:
    """What both engines run: a processor over files, one in an epoch."""

    folder: Path
    processor: Any
    output: str = TEXT
    mode: str = "None"
    pandas: bool = False
    schema: str = SCHEMA
    key: tuple[str, ...] = ("id",)
    initial: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, epochs: Epochs, first: int = 0) -> None:
        source = self.folder / "in"
        source.mkdir(parents=True, exist_ok=True)
        for number, rows in enumerate(epochs, first):
            file = source / f"{number}.json"
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            os.utime(file, (1e9 + number, 1e9 + number))

    def source(self) -> Any:
        return ms.read.json(self.folder / "in", schema=self.schema, max_files_per_epoch=1)

    def frame(self, session: SparkSession) -> DataFrame:
        reader = session.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        frame = reader.json(str(self.folder / "in"))
        return frame.withWatermark("t", "1 second") if self.mode == "EventTime" else frame


Rows = list[list[tuple[Any, ...]]]


def on_spark(session: SparkSession, case: Case, expected: int | None = None) -> Rows:
    """The rows of each batch that has any, sorted."""
    grouped = case.frame(session).groupBy(*case.key)
    transform = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
    initial = None if case.initial is None else case.initial.groupBy(*case.key)
    out = transform(
        statefulProcessor=case.processor,
        outputStructType=case.output,
        outputMode="Update",
        timeMode=case.mode,
        initialState=initial,
    )
    return run_query(out, case.folder / "spark", expected)


def run_query(out: DataFrame, checkpoint: Path, expected: int | None, mode: str = "update") -> Rows:
    found: dict[int, list[tuple[Any, ...]]] = {}

    def collect(rows: DataFrame, epoch: int) -> None:
        found[epoch] = in_order(map(tuple, rows.collect()))

    writer = out.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    writer = writer.foreachBatch(collect)
    if expected is None:
        writer.trigger(availableNow=True).start().awaitTermination()
    else:  # by processing time Spark runs batches without an end
        query = writer.start()
        deadline = time.monotonic() + 60
        while sum(map(len, found.values())) < expected and time.monotonic() < deadline:
            assert query.exception() is None
            time.sleep(0.05)
        query.stop()
    return [found[epoch] for epoch in sorted(found) if found[epoch]]


def in_order(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows), key=repr)


def on_millstream(session: SparkSession, case: Case, **options: Any) -> Rows:
    reducer = ms.transform_with_state(
        case.processor,
        output=case.output,
        time_mode=case.mode,
        in_pandas=case.pandas,
        initial_state=case.initial,
    )
    flow, out = job(case, reducer)
    return run_flow(session, flow, out, **{**case.options, **options})


def job(case: Case, reducer: Any) -> tuple[ms.Workflow, ms.Stream]:
    flow = ms.Workflow("processors")
    keyed = flow.source("in", case.source()).key_by(case.key)
    if case.mode == "EventTime":
        return flow, keyed.reduce("job", reducer, time="t", lateness=timedelta(seconds=1))
    return flow, keyed.reduce("job", reducer)


def run_flow(session: SparkSession, flow: ms.Workflow, out: ms.Stream, **options: Any) -> Rows:
    found: dict[int, list[tuple[Any, ...]]] = {}

    def collect(frame: DataFrame, epoch: int) -> None:
        found[epoch] = in_order(map(tuple, frame.collect()))

    out.sink("out", ms.write.foreach_batch(collect))
    chosen = {"nodes": 2, "partitions": 2, "progress": False, **options}
    with ms.start(flow, spark=session, **chosen) as run:
        run.await_termination()
    return [found[epoch] for epoch in sorted(found) if found[epoch]]


@pytest.mark.parametrize(
    ("processor", "output", "pandas", "epochs"),
    [
        (processors.RunningCount(), COUNT, False, PLAIN),
        (processors.RunningCountInPandas(), COUNT, True, PLAIN),
        (processors.Statistics(), TEXT, False, PLAIN),
        (processors.Deduplicate(), COUNT, False, PLAIN),
        (processors.MapOfLists(), TEXT, False, PLAIN),
        (processors.Lists(), TEXT, False, PLAIN),
        (processors.MadeAgain(), TEXT, False, PLAIN),
    ],
    ids=lambda value: type(value).__name__,
)
def test_processors_give_the_rows_of_spark_batch_by_batch(
    session: SparkSession, tmp_path: Path, processor: Any, output: str, pandas: bool, epochs: Epochs
) -> None:
    case = Case(folder=tmp_path, processor=processor, output=output, pandas=pandas)
    case.write(epochs)

    theirs = on_spark(session, case)

    assert len(theirs) == len(epochs)
    assert on_millstream(session, case) == theirs


def test_sessions_that_timers_close_are_those_of_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    output = "id string, start bigint, end bigint, n int"
    processor = processors.EventTimeSessions()
    case = Case(folder=tmp_path, processor=processor, output=output, mode="EventTime")
    case.write(TIMED)

    theirs, ours = on_spark(session, case), on_millstream(session, case)

    # By design: at the end of a bounded stream, timers that still wait fire here.
    *before_end, last = ours
    assert [row for rows in before_end for row in rows] == [row for rows in theirs for row in rows]
    assert [row[0] for row in last] == ["f"]


def test_event_time_timers_fire_as_on_spark(session: SparkSession, tmp_path: Path) -> None:
    case = Case(folder=tmp_path, processor=processors.EventTimers(), mode="EventTime")
    case.write(TIMED)

    theirs, ours = on_spark(session, case), on_millstream(session, case)

    assert ours[: len(TIMED)] == theirs[: len(TIMED)]


def test_processing_time_timers_fire_as_on_spark(session: SparkSession, tmp_path: Path) -> None:
    case = Case(folder=tmp_path, processor=processors.ProcessingTimers(), mode="ProcessingTime")
    case.write([[row("a", 1), row("b", 2), row("a", 1)], [row("b", -1)], [row("c", -1)]])

    theirs = on_spark(session, case, expected=6)
    ours = on_millstream(session, case)

    assert together(ours) == together(theirs)
    assert sum(text.startswith("fired") for _, text in together(ours)) == 2


def together(rows: Rows) -> list[tuple[Any, ...]]:
    return in_order(row for batch in rows for row in batch)


@pytest.mark.parametrize("ttl", [1, 3_600_000])
def test_state_of_each_kind_expires_as_on_spark(
    session: SparkSession, tmp_path: Path, ttl: int
) -> None:
    case = Case(folder=tmp_path, processor=processors.Expiring(ttl), mode="ProcessingTime")
    case.write(PLAIN)

    theirs = on_spark(session, case, expected=11)

    assert on_millstream(session, case) == theirs


@pytest.mark.parametrize("pandas", [False, True])
def test_initial_state_is_applied_once_and_restored_with_all_state(
    session: SparkSession, tmp_path: Path, pandas: bool
) -> None:
    initial = session.createDataFrame([("a", 100), ("a", 10), ("x", 5)], "id string, initial long")
    processor = processors.InitialInPandas() if pandas else processors.Initial()
    case = Case(folder=tmp_path, processor=processor, output=COUNT, pandas=pandas, initial=initial)
    case.write(PLAIN[:2])
    options = {"checkpoint": tmp_path / "ours"}

    assert on_millstream(session, case, **options) == on_spark(session, case)
    case.write([[row("a"), row("x")]], first=2)
    assert on_millstream(session, case, **options) == [[("a", 114), ("x", 6)]]
    assert on_spark(session, case) == [[("a", 114), ("x", 6)]]


def test_a_processor_behind_a_processor_gives_the_rows_of_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    case = Case(folder=tmp_path, processor=processors.RunningCount(), output=COUNT)
    case.write(PLAIN)
    counted = case.frame(session).groupBy("id")
    first = counted.transformWithState(processors.RunningCount(), COUNT, "Append", "None")
    second = first.withColumn("odd", F.expr("n % 2 = 1")).groupBy("odd")
    out = second.transformWithState(processors.Parity(), TEXT, "Append", "None")

    theirs = run_query(out, tmp_path / "spark", None, "append")

    flow, counts = job(case, ms.transform_with_state(processors.RunningCount(), output=COUNT))
    odd = counts.map(ms.sql("id", "n", "n % 2 = 1 AS odd")).key_by("odd")
    ours = odd.reduce("parity", ms.transform_with_state(processors.Parity(), output=TEXT))
    assert run_flow(session, flow, ours) == theirs


def test_keys_of_several_columns_may_be_null(session: SparkSession, tmp_path: Path) -> None:
    case = Case(folder=tmp_path, processor=processors.TwoKeys(), key=("id", "v"))
    case.write([[*PLAIN[1], row("a", None), row(None, None)], [row("a", None), row("a", 5)]])

    assert on_millstream(session, case) == on_spark(session, case)


NESTED = "id string, s struct<x:int,y:string>, l array<string>, m map<string,int>"


def test_nested_types_are_those_of_spark(session: SparkSession, tmp_path: Path) -> None:
    case = Case(folder=tmp_path, processor=processors.Nested(), schema=NESTED)
    record = {"id": "a", "s": {"x": 1, "y": "q"}, "l": ["p", None], "m": {"k": 1}}
    case.write([[record], [record | {"s": {"x": 2, "y": None}}], [record]])

    assert on_millstream(session, case) == on_spark(session, case)


WIDE = (
    "id string, t timestamp, i int, f float, d date, b boolean, a array<int>, "
    "s struct<x:int,y:string>, dec decimal(10,2), m map<string,int>"
)


def test_frames_have_the_columns_and_types_of_spark(session: SparkSession, tmp_path: Path) -> None:
    case = Case(
        folder=tmp_path,
        processor=processors.PandasColumns(),
        schema=WIDE,
        pandas=True,
        output="id string, text string, t timestamp",
    )
    full = {
        "id": "a", "t": at(1), "i": 2, "f": 1.5, "d": "2026-01-01", "b": True, "a": [1, 2],
        "s": {"x": 1, "y": "q"}, "dec": 1.25, "m": {"k": 1},
    }  # fmt: skip
    case.write([[full, full | {"i": 3}], [full, {"id": "a"}]])

    assert on_millstream(session, case) == on_spark(session, case)


def test_a_variable_that_is_deleted_and_made_again_later_is_empty(
    session: SparkSession, tmp_path: Path
) -> None:
    versions = [processors.FirstVersion(), processors.SecondVersion(), processors.FirstVersion()]
    for number, processor in enumerate(versions):
        case = Case(folder=tmp_path, processor=processor)
        case.write([[row("a", number), row("b", 1)]], first=number)

        ours = on_millstream(session, case, checkpoint=tmp_path / "ours")

        assert ours == on_spark(session, case)


def test_functions_of_groups_with_state_give_the_rows_of_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    case = Case(folder=tmp_path, processor=None)
    case.write(PLAIN)
    function = processors.count_of_group
    grouped = case.frame(session).groupBy("id")
    out = grouped.applyInPandasWithState(function, TEXT, "n bigint", "update", "NoTimeout")

    theirs = run_query(out, tmp_path / "spark", None)

    reducer = ms.apply_in_pandas_with_state(function, output=TEXT, state="n bigint")
    assert run_flow(session, *job(case, reducer)) == theirs


def test_groups_time_out_as_on_spark(session: SparkSession, tmp_path: Path) -> None:
    case = Case(folder=tmp_path, processor=None, mode="EventTime")
    case.write(TIMED)
    function, timeout = processors.session_of_group, "EventTimeTimeout"
    grouped = case.frame(session).groupBy("id")
    out = grouped.applyInPandasWithState(function, TEXT, "n bigint", "update", timeout)

    theirs = run_query(out, tmp_path / "spark", None)

    reducer = ms.apply_in_pandas_with_state(
        function, output=TEXT, state="n bigint", timeout=timeout
    )
    ours = run_flow(session, *job(case, reducer))
    assert ours[: len(TIMED)] == theirs[: len(TIMED)]


def test_a_node_that_is_killed_changes_no_row(session: SparkSession, tmp_path: Path) -> None:
    epochs = [
        [row(f"k{number}-{n % 23}", n, 10 * number + n % 10) for n in range(200)]
        for number in range(6)
    ]
    killed = tmp_path / "killed"

    class Deadly(processors.EventTimeSessions):
        GAP = 15_000

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            if timerValues.getCurrentWatermarkInMs() > 1767225620000 and once(killed):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().handleInputRows(key, rows, timerValues)

    output = "id string, start bigint, end bigint, n int"
    results = []
    for name, processor in (("safe", processors.EventTimeSessions()), ("deadly", Deadly())):
        processor.GAP = 15_000
        folder = tmp_path / name
        case = Case(folder=folder, processor=processor, output=output, mode="EventTime")
        case.write(epochs)
        if name == "safe":
            results.append(on_spark(session, case))
        results.append(on_millstream(session, case, nodes=3, checkpoint=folder / "ours"))

    theirs, safe, deadly = results
    assert killed.with_suffix(".0").exists()
    assert together(theirs) != []
    # The end of the input closes the sessions that Spark leaves open.
    assert safe[: len(theirs)] == theirs
    assert deadly == safe
    shutil.rmtree(tmp_path / "safe")

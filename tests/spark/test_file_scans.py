"""Files that Python tasks scan: the same rows as Spark's readers, in the same tasks."""

from __future__ import annotations

import datetime as dt
import gzip
import logging
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.sources import FolderSource
from millstream.spark import file_scans
from millstream.spark.compile import admission
from millstream.spark.file_scans import FileScan, FileScans
from tests.spark.test_restart import Place
from tests.spark.words import count, split

pytestmark = pytest.mark.spark


@dataclass
class Epoch:
    """The rows of an epoch as Spark reads them, and as Python tasks do, or None."""

    by_spark: pa.Table
    by_python: pa.Table | None
    tasks: int = 0


def in_utc(schema: pa.Schema) -> pa.Schema:
    """A schema with instants in UTC, as ``toArrow`` has them; tasks get those of the session."""
    return pa.schema(
        [
            field.with_type(pa.timestamp(field.type.unit, "UTC"))
            if pa.types.is_timestamp(field.type) and field.type.tz
            else field
            for field in schema
        ]
    )


class Reading:
    """Reads folders in both ways."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def epochs(self, source: FolderSource) -> list[Epoch]:
        flow = ms.Workflow("both")
        flow.source("rows", source).map(str).sink("out", ms.write.callback(print))
        planned = plan(flow)
        admitted = admission(self._spark, planned, heartbeat=False)
        scans = FileScans(self._spark, planned, admitted.schemas, admitted.branches)
        found: list[Epoch] = []

        def compare(frame: DataFrame, epoch: int) -> None:
            scan = scans.of_epoch(frame.sparkSession, scans.spark_plan())
            rows = frame.toArrow()
            if scan is None:
                found.append(Epoch(rows, None))
                return
            batches = [batch for task, _ in scan.tasks for batch in task.read()]
            schema = scan.tasks[0][0].schema
            found.append(Epoch(rows, pa.Table.from_batches(batches, schema), len(scan.tasks)))

        checkpoint = self._folder / f"checkpoint{random.random()}"
        query = admitted.frame.writeStream.foreachBatch(compare)
        query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()
        return found

    def same(self, source: FolderSource) -> Epoch:
        """Read what makes one epoch; both ways must give the same."""
        (epoch,) = self.epochs(source)
        assert epoch.by_python is not None
        assert in_utc(epoch.by_python.schema) == in_utc(epoch.by_spark.schema)
        assert raw(epoch.by_python.cast(epoch.by_spark.schema)) == raw(epoch.by_spark)
        return epoch

    def is_left(self, source: FolderSource) -> bool:
        """Whether the one epoch is left to Spark."""
        (epoch,) = self.epochs(source)
        return epoch.by_python is None


def raw(table: pa.Table) -> pa.Table:
    """A table with texts as bytes: they may not be UTF-8."""
    columns = {
        name: table.column(name).cast(pa.binary())
        if pa.types.is_string(table.schema.field(name).type)
        else table.column(name)
        for name in table.column_names
    }
    return pa.table(columns)


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Reading:
    caplog.set_level(logging.INFO, "millstream")  # has the reason why files are left to Spark
    return Reading(spark, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "rows"
    made.mkdir()
    return made


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name) or ""
    spark.conf.set(name, value)
    yield
    spark.conf.set(name, before)


@pytest.mark.parametrize("bytes_per_task", [3, 8])
def test_texts_have_the_same_lines_in_the_same_tasks(
    spark: SparkSession, reading: Reading, folder: Path, bytes_per_task: int
) -> None:
    """Any line ends and bytes, with splits that begin and end anywhere."""
    dice = random.Random(bytes_per_task)
    pieces = [b"a", b"\xc3\xa9", b"\n", b"\r", b"\r\n", b"\xff\x00", b"\xef\xbb\xbf"]
    for number in range(16):
        text = b"".join(dice.choices(pieces, k=dice.randrange(9)))
        (folder / f"{number} é,#%.txt").write_bytes(text)
    (folder / "only-a-mark").write_bytes(b"\xef\xbb\xbf")
    (folder / "_hidden").write_bytes(b"hidden")

    with (
        setting(spark, "spark.sql.files.maxPartitionBytes", str(bytes_per_task)),
        setting(spark, "spark.sql.files.openCostInBytes", "0"),
    ):
        epoch = reading.same(ms.read.text(folder))

    assert epoch.tasks > 10


def test_folders_give_columns(reading: Reading, tmp_path: Path) -> None:
    for place in ("n=1/day=2024-01-31/t=x y", "n=2/day=2024-02-01/t=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / "rows" / place).mkdir(parents=True)
        (tmp_path / "rows" / place / "a.txt").write_text("a\nb\n")

    epoch = reading.same(ms.read.text(tmp_path / "rows"))

    assert epoch.by_spark.num_rows == 4
    assert epoch.by_spark.column_names == ["value", "n", "day", "t"]


def values() -> dict[str, pa.Array]:
    """Columns of all types that Arrow reads exactly as Spark does, with nulls."""
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    return {
        "b": pa.array([True, None, False]),
        "i8": pa.array([-128, None, 127], pa.int8()),
        "i16": pa.array([-(2**15), None, 7], pa.int16()),
        "i32": pa.array([-(2**31), None, 7], pa.int32()),
        "i64": pa.array([-(2**63), None, 7], pa.int64()),
        "f32": pa.array([-0.0, None, float("inf")], pa.float32()),
        "f64": pa.array([1e-300, None, 0.1], pa.float64()),
        "text": pa.array(["", None, "é"]),
        "bytes": pa.array([b"", None, b"\xff"]),
        "day": pa.array([dt.date(1500, 1, 1), None, dt.date(9999, 12, 31)]),
        "at": pa.array([moment, None, dt.datetime(1500, 1, 1)], pa.timestamp("us", "UTC")),
        "local": pa.array([moment, None, dt.datetime(1500, 1, 1)], pa.timestamp("us")),
        "d9": pa.array([Decimal("-1.50"), None, Decimal("0.01")], pa.decimal128(9, 2)),
        "d38": pa.array([Decimal(10**37), None, Decimal(-1)], pa.decimal128(38, 0)),
    }


def test_parquet_files_have_the_same_rows_in_the_same_tasks(
    spark: SparkSession, reading: Reading, folder: Path
) -> None:
    table = pa.concat_tables([pa.table(values())] * 100)
    by_arrow = folder / "n=1"
    by_arrow.mkdir()
    pq.write_table(table, by_arrow / "a.parquet", row_group_size=70)
    pq.write_table(table.slice(0, 0), by_arrow / "empty.parquet")
    spark.read.parquet(str(by_arrow)).coalesce(1).write.parquet(str(folder / "n=2"))

    with (
        setting(spark, "spark.sql.files.maxPartitionBytes", "3000"),
        setting(spark, "spark.sql.session.timeZone", "Europe/Zurich"),
    ):
        epoch = reading.same(ms.read.parquet(folder))

    assert epoch.tasks > 2
    assert epoch.by_spark.num_rows == 600


def test_a_schema_chooses_among_the_columns(reading: Reading, folder: Path) -> None:
    pq.write_table(pa.table(values()), folder / "a.parquet")

    epoch = reading.same(ms.read.parquet(folder, schema="text string, i32 int"))

    assert epoch.by_spark.column_names == ["text", "i32"]


@pytest.mark.parametrize(
    "schema", ["i32 bigint", "I32 int", "i32 int, other int", "text binary", "day timestamp_ntz"]
)
def test_columns_that_spark_converts_are_left_to_it(
    reading: Reading, folder: Path, schema: str
) -> None:
    pq.write_table(pa.table(values()), folder / "a.parquet")

    assert reading.is_left(ms.read.parquet(folder, schema=schema))


def test_compressed_texts_are_left_to_spark(reading: Reading, folder: Path) -> None:
    (folder / "a.txt").write_text("a\n")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"b\n"))

    (epoch,) = reading.epochs(ms.read.text(folder))

    assert epoch.by_python is None
    assert sorted(epoch.by_spark.column("value").to_pylist()) == ["a", "b"]


def test_names_of_files_are_not_retained(
    spark: SparkSession, reading: Reading, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_scans, "_MOST_SUFFIXES", 3)
    retained: list[int] = []
    check = FileScans._check_texts

    def checked(scans: FileScans, paths: Any) -> None:
        check(scans, paths)
        retained.append(len(scans._compressed))

    monkeypatch.setattr(FileScans, "_check_texts", checked)
    for number in range(8):
        (folder / f"a.{number}.txt").write_text("a\n")

    epochs = reading.epochs(ms.read.text(folder, max_files_per_epoch=2))

    assert all(epoch.by_python == epoch.by_spark for epoch in epochs)
    assert max(retained) == 4


def test_files_that_spark_may_skip_are_left_to_it(
    spark: SparkSession, reading: Reading, folder: Path
) -> None:
    (folder / "a.txt").write_text("a\n")

    with setting(spark, "spark.sql.files.ignoreMissingFiles", "true"):
        assert reading.is_left(ms.read.text(folder))


class Spied:
    """Which epochs of a run Python tasks scan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scanned: list[bool] = []
        original = FileScans.of_epoch

        def of_epoch(scans: FileScans, session: SparkSession, plan: Any) -> Any:
            scan = original(scans, session, plan)
            self.scanned.append(scan is not None)
            return scan

        monkeypatch.setattr(FileScans, "of_epoch", of_epoch)


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> Spied:
    return Spied(monkeypatch)


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Place:
    return Place(tmp_path, spark)


def counting(place: Place, **options: Any) -> ms.Workflow:
    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(place.books, max_files_per_epoch=1, **options))
    counts = lines.flat_map(split).key_by().reduce("count", count)
    counts.sink("out", ms.write.json(place.out))
    return flow


unpickled: list[str] = []


def noted(name: str) -> str:
    unpickled.append(name)
    return name


@dataclass
class Noted:
    """Stands in for a task; notes when a worker unpickles it."""

    name: str

    def __reduce__(self) -> Any:
        return noted, (self.name,)


def test_a_worker_unpickles_only_the_task_that_it_runs(spark: SparkSession) -> None:
    counter = spark.sparkContext.accumulator(0)
    tasks: Any = ((Noted("a"), counter), (Noted("b"), counter))

    shipped = pickle.loads(pickle.dumps(FileScan(tasks, ()).begin()))
    pickle.loads(shipped[1])

    assert unpickled == ["b"]


def test_a_run_resumes_whoever_reads_its_files(place: Place, spied: Spied) -> None:
    place.add("a b a\nc\n", "b c d\n")
    place.run(counting(place))
    place.add("a e\r\ne e", "")
    place.run(counting(place, scan="spark"))
    place.add("d d b\n")

    state = place.run(counting(place))

    assert spied.scanned == [True, True, False, False, True]
    assert state["count"] == place.counts()
    assert place.rows() == {e: rows for e, rows in place.running_counts().items() if rows}


def test_an_epoch_that_is_left_to_spark_is_one_of_the_others(
    place: Place, spied: Spied, tmp_path: Path
) -> None:
    place.add("a b\n", "b\n")
    packed = place.books / "0.gz"
    packed.write_bytes(gzip.compress(b"c c\n"))

    state = place.run(counting(place))

    assert sorted(spied.scanned) == [False, True, True]
    assert state["count"] == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 2}}


def test_several_sources_and_windows_are_scanned(
    spark: SparkSession, spied: Spied, tmp_path: Path
) -> None:
    at = pa.array([60_000_000, 90_000_000, 150_000_000], pa.timestamp("us", "UTC"))
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"who": ["a", "b", name], "at": at}), tmp_path / name / "a.parquet")
    flow = ms.Workflow("windows")
    sides = [flow.source(n, ms.read.parquet(tmp_path / n)) for n in ("left", "right")]
    seen: list[Any] = []
    counts = (
        sides[0]
        .union(sides[1])
        .map_reduce(
            "count",
            key="who",
            time="at",
            window=ms.tumbling(dt.timedelta(minutes=1)),
            reduce=ms.count(),
        )
    )
    counts.sink("out", ms.write.callback(lambda rows, epoch: seen.extend(rows)))

    with ms.start(flow, spark=spark, nodes=2, partitions=2, slots=64, progress=False) as run:
        run.await_termination()

    assert any(spied.scanned)
    assert sorted(row["value"] for row in seen) == [1, 1, 2, 2]


def test_sparks_progress_shows_the_rows_that_python_tasks_read(
    spark: SparkSession, place: Place, spied: Spied
) -> None:
    place.add("a b a\nc\n", "b c d\n")

    with ms.start(counting(place), spark=spark, nodes=2, slots=64, progress=False) as run:
        (query,) = [q for q in spark.streams.active if q.name and q.name.startswith("words-")]
        run.await_termination()

    assert spied.scanned == [True, True]
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [2, 1]

"""Compaction of file sinks; without Spark, but for what it looks like to Spark's own reader."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from millstream.cli import main
from millstream.coordinator.sink_layout import SinkBusyError, epoch_folder, locked
from millstream.errors import ConfigError
from millstream.flow import write
from millstream.spark import compaction
from millstream.spark.compaction import (
    MANY,
    SMALL,
    Compacted,
    CompactionUnsupportedError,
    compact,
    merge_staged,
)
from millstream.spark.sink_writers import FileWriter, open_sink

FILES = 4
ROWS = 50


def sink_of(path: Path, kind: str = "parquet") -> Path:
    """The folder of a sink, as a writer leaves it."""
    (path / "_millstream" / f"format={kind}").mkdir(parents=True)
    return path


def publish(sink: Path, epoch: int, tables: list[pa.Table] | None = None) -> None:
    folder = sink / epoch_folder(epoch)
    folder.mkdir()
    for at, table in enumerate(tables or [numbers(epoch, part) for part in range(FILES)]):
        pq.write_table(table, folder / f"part-{at:05d}-{epoch}.parquet")


def numbers(epoch: int, part: int) -> pa.Table:
    return pa.table({"n": [epoch * 1000 + part * ROWS + n for n in range(ROWS)]})


def rows_in(sink: Path) -> Counter[tuple[int, int]]:
    table = pa.dataset.dataset(sink, format="parquet", partitioning="hive").to_table()
    return Counter(zip(table["epoch"].to_pylist(), table["n"].to_pylist(), strict=True))


def files_in(sink: Path) -> dict[str, int]:
    return {folder.name: len(os.listdir(folder)) for folder in sorted(sink.glob("epoch=*"))}


def test_every_epoch_has_its_rows_in_one_file(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    for epoch in (0, 7):
        publish(sink, epoch)
    before = rows_in(sink)

    first, second = compact(str(sink)), compact(str(sink))

    assert first == Compacted(epochs=2, files=2 * FILES)
    assert second == Compacted(epochs=0, files=0)
    assert rows_in(sink) == before
    assert files_in(sink) == {"epoch=000000000000": 1, "epoch=000000000007": 1}
    assert not (sink / "_millstream" / "compacting").exists()


def test_a_reader_sees_every_row_once_while_a_sink_is_compacted(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    for epoch in range(30):
        publish(sink, epoch)
    before, seen, over = rows_in(sink), [], threading.Event()

    def poll() -> None:
        while not over.is_set():
            try:
                seen.append((len(list(sink.glob("epoch=*/*"))), rows_in(sink)))
            except FileNotFoundError:  # listed before the exchange, opened after it
                continue

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        compact(str(sink))
    finally:
        over.set()
        reader.join()
    seen.append((30, rows_in(sink)))

    assert all(rows == before for _, rows in seen)
    assert len({files for files, _ in seen}) > 1


def test_a_reader_that_is_listing_an_epoch_sees_all_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0)
    listing = os.open(sink / epoch_folder(0), os.O_RDONLY)
    exchange, found = compaction._exchange, threading.Event()

    def list_on() -> None:
        names.extend(os.listdir(listing))
        found.set()

    def watched(one: Path, other: Path) -> None:
        exchange(one, other)
        threading.Timer(0.3, list_on).start()

    names: list[str] = []
    monkeypatch.setattr(compaction, "_exchange", watched)

    compact(str(sink))

    assert found.wait(10.0) and len(names) == FILES
    os.close(listing)


def test_recent_epochs_can_be_excluded(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    for epoch in (0, 1):
        publish(sink, epoch)
    old = dt.datetime.now().timestamp() - 7200
    for file in (sink / epoch_folder(0)).iterdir():
        os.utime(file, (old, old))

    compact(str(sink), older_than=dt.timedelta(hours=1))

    assert files_in(sink) == {"epoch=000000000000": 1, "epoch=000000000001": FILES}
    (file,) = (sink / epoch_folder(0)).iterdir()
    assert file.stat().st_mtime == pytest.approx(old)  # streams that read files go by their age


@pytest.mark.parametrize(
    ("files", "small", "left"), [(MANY, SMALL, MANY), (MANY + 1, SMALL, 1), (MANY + 1, 9, MANY + 1)]
)
def test_many_small_files_are_merged_before_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, small: int, left: int
) -> None:
    monkeypatch.setattr(compaction, "SMALL", small)
    sink = sink_of(tmp_path / "out")
    publish(sink, 0, [numbers(0, part) for part in range(files)])

    merge_staged(sink, sink / epoch_folder(0))

    assert files_in(sink) == {"epoch=000000000000": left}
    assert rows_in(sink) == Counter((0, n) for n in range(files * ROWS))


def test_files_that_cannot_be_merged_are_published_as_they_are(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0, [*(numbers(0, part) for part in range(MANY)), pa.table({"n": ["one"]})])

    merge_staged(sink, sink / epoch_folder(0))

    assert files_in(sink) == {"epoch=000000000000": MANY + 1}


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0)
    left = sink / "_millstream" / "compacting" / epoch_folder(0)
    left.mkdir(parents=True)
    (left / "part-compacted-half.parquet").write_bytes(b"half a file")

    compact(str(sink))

    assert rows_in(sink).total() == FILES * ROWS
    assert not left.exists()


def test_an_epoch_that_was_withdrawn_meanwhile_stays_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0)
    publish(sink, 1)
    again = [pa.table({"n": [-1]}), pa.table({"n": [-2]})]
    merge = compaction.merge_parquet

    def overtaken(files: Any, merged: Path) -> None:
        merge(files, merged)
        for file in files:
            file.unlink()
        files[0].parent.rmdir()
        if files[0].parent.name == epoch_folder(1):
            publish(sink, 1)
            for file in files:  # a new run writes files of other names
                file.unlink()
            pq.write_table(again[0], files[0].parent / "part-00000-new.parquet")
            pq.write_table(again[1], files[0].parent / "part-00001-new.parquet")

    monkeypatch.setattr(compaction, "merge_parquet", overtaken)

    assert compact(str(sink)) == Compacted(epochs=0, files=0)
    assert rows_in(sink) == Counter({(1, -1): 1, (1, -2): 1})


def test_types_do_not_change(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    at = dt.datetime(2024, 5, 1, 12, 30, 15, 123456)
    far = dt.datetime(9000, 1, 1)
    table = pa.table(
        {
            "at": pa.array([at, None, far], pa.timestamp("us")),
            "price": pa.array([Decimal("1.25"), None, Decimal("-3.00")], pa.decimal128(9, 2)),
            "tags": pa.array([["a"], [], None], pa.list_(pa.string())),
            "sizes": pa.array([{"x": 1}, None, {}], pa.map_(pa.string(), pa.int32())),
            "inner": pa.array([{"n": 1}, None, {"n": None}], pa.struct([("n", pa.int16())])),
        }
    )
    folder = sink / epoch_folder(0)
    folder.mkdir()
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    for name in ("part-0.parquet", "part-1.parquet"):
        with pq.ParquetWriter(folder / name, table.schema, **options) as writer:
            writer.add_key_value_metadata({"org.apache.spark.version": "4.3.0"})
            writer.write_table(table)
    before = pq.ParquetFile(folder / "part-0.parquet")

    compact(str(sink))

    (file,) = (sink / epoch_folder(0)).iterdir()
    after = pq.ParquetFile(file)
    assert after.schema.equals(before.schema)
    assert after.schema.column(0).physical_type == "INT96"
    assert after.metadata.metadata == before.metadata.metadata != {}
    read = pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read()
    assert read.to_pylist() == table.to_pylist() * 2


def test_files_whose_types_would_change_are_rejected_and_unchanged(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0, [pa.table({"n": [1]}), pa.table({"n": ["one"]})])

    with pytest.raises(CompactionUnsupportedError, match="types"):
        compact(str(sink))

    assert files_in(sink) == {"epoch=000000000000": 2}


def test_a_header_of_csv_files_stays_the_first_line(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out", "csv")
    (sink / "_millstream" / "header=true").mkdir()
    folder = sink / epoch_folder(0)
    folder.mkdir()
    for at in range(3):
        (folder / f"part-{at}.csv").write_text(f"id,tag\n{at},x\n")

    compact(str(sink))

    (file,) = folder.iterdir()
    assert file.read_text() == "id,tag\n0,x\n1,x\n2,x\n"


def test_json_and_csv_without_header_lose_no_lines(tmp_path: Path) -> None:
    for kind in ("json", "csv"):
        sink = sink_of(tmp_path / kind, kind)
        if kind == "csv":
            (sink / "_millstream" / "header=false").mkdir()
        folder = sink / epoch_folder(0)
        folder.mkdir()
        for at in range(2):
            (folder / f"part-{at}.{kind}").write_text("same\n")

        compact(str(sink))

        (file,) = folder.iterdir()
        assert file.read_text() == "same\nsame\n"


def test_two_compactions_at_once_are_rejected(tmp_path: Path) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0)

    with locked(sink, "compaction"), pytest.raises(SinkBusyError, match="retry when"):
        compact(str(sink))

    assert files_in(sink) == {"epoch=000000000000": FILES}


def test_a_file_system_without_an_exchange_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0)
    monkeypatch.setattr(compaction, "_RENAME_EXCHANGE", 1 << 20)

    with pytest.raises(CompactionUnsupportedError, match="in one step"):
        compact(str(sink))

    assert files_in(sink) == {"epoch=000000000000": FILES}


def test_a_folder_that_is_no_sink_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the folder of a file sink"):
        compact(str(tmp_path))


def test_the_command_compacts_and_prints_the_number_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = sink_of(tmp_path / "out")
    publish(sink, 0)

    assert main(["sink", "compact", str(sink), "--older-than", "1"]) == 0
    assert main(["sink", "compact", str(sink), "--json"]) == 0
    assert main(["sink", "compact", str(tmp_path)]) == 1

    reported = capsys.readouterr()
    assert reported.out.splitlines() == [
        "compacted 0 epochs: 0 files became 0",
        f'{{"epochs": 1, "files": {FILES}}}',
    ]
    assert "not the folder of a file sink" in reported.err


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_spark_reads_the_same_after_a_compaction(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    sink = {"parquet": write.parquet, "json": write.json, "csv": write.csv}[kind](tmp_path / "out")
    writer = open_sink(spark, sink)
    assert isinstance(writer, FileWriter)
    frame = spark.range(40, numPartitions=4).select(
        "id",
        sf.timestamp_micros("id").alias("at"),
        (sf.col("id") / 7).cast("decimal(12,3)").alias("price"),
        sf.to_date(sf.lit("2024-05-01")).alias("day"),
    )
    nested = [
        sf.array("id").alias("list"),
        sf.create_map(sf.lit("k"), "id").alias("map"),
        sf.struct("id", sf.lit(None).cast("smallint").alias("none")).alias("inner"),
        sf.encode(sf.lit("x"), "utf-8").alias("bytes"),
    ]
    for epoch in (0, 1):
        writer.stage(frame.select("*", *nested) if kind == "parquet" else frame, epoch, "1-0")
        writer.publish(epoch, "1-0")

    def read() -> tuple[list[tuple[str, str]], list[str]]:
        reader = spark.read.format(kind).options(header="true", inferSchema="true")
        found = reader.load(str(tmp_path / "out"))
        return found.dtypes, sorted(map(str, found.collect()))

    before = read()
    done = compact(str(tmp_path / "out"))

    assert done == Compacted(epochs=2, files=8)
    assert read() == before
    writer.withdraw([1])
    assert writer.visible(after=-1) == [0]

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.coordinator.sink_folders import OutputLostError
from millstream.errors import ConfigError, WorkflowError
from millstream.flow import sinks, write
from millstream.spark.sink_writers import FileWriter, open_sink

pytestmark = pytest.mark.spark

ROWS = 200


def batch(spark: SparkSession, tag: str, rows: int = ROWS) -> DataFrame:
    """Several files per epoch, so that half an epoch could be seen."""
    return spark.range(rows, numPartitions=4).select("id", F.lit(tag).alias("tag"))


def visible(path: Path) -> dict[int, dict[str, int]]:
    """Count what a reader of the folder sees: rows by epoch and tag."""
    table = pa.dataset.dataset(path, format="parquet", partitioning="hive").to_table()
    seen: dict[int, dict[str, int]] = {}
    for row in table.to_pylist():
        tags = seen.setdefault(row["epoch"], {})
        tags[row["tag"]] = tags.get(row["tag"], 0) + 1
    return seen


def file_writer(
    spark: SparkSession, path: Path, committed: Collection[tuple[int, str]] | None = None
) -> FileWriter:
    writer = open_sink(spark, write.parquet(path), committed=committed)
    assert isinstance(writer, FileWriter)
    return writer


def staged(path: Path) -> list[str]:
    return sorted(os.listdir(path / "_millstream" / "staged"))


def fails_after_a_while(spark: SparkSession) -> DataFrame:
    """Tasks 0 to 2 write their files; task 3 fails."""
    bad = F.when(F.col("id") < 150, F.lit("ok")).otherwise(F.raise_error(F.lit("broken")))
    return spark.range(ROWS, numPartitions=4).select("id", bad.alias("tag"))


def test_nothing_is_visible_before_it_is_published(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))

    writer.stage(batch(spark, "a"), 0, "1-0")
    before = visible(tmp_path / "out")
    writer.publish(0, "1-0")

    assert before == {}
    assert visible(tmp_path / "out") == {0: {"a": ROWS}}
    assert staged(tmp_path / "out") == []
    assert writer.when == "staged"


def test_spark_reads_the_epoch_as_a_number(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))
    for epoch in (2, 10):
        writer.stage(batch(spark, "a", rows=1), epoch, "1-0")
        writer.publish(epoch, "1-0")

    frame = spark.read.parquet(str(tmp_path / "out"))

    assert dict(frame.dtypes)["epoch"] == "int"
    assert sorted(row.epoch for row in frame.collect()) == [2, 10]
    assert sorted(os.listdir(tmp_path / "out"))[-2:] == ["epoch=000000000002", "epoch=000000000010"]


@pytest.mark.parametrize(
    ("sink", "read"),
    [
        (write.json, lambda spark, path: spark.read.json(path)),
        (write.csv, lambda spark, path: spark.read.csv(path, header=True, inferSchema=True)),
    ],
)
def test_json_and_csv_are_read_back(
    spark: SparkSession,
    tmp_path: Path,
    sink: Callable[[Path], sinks.FileSink],
    read: Callable[[SparkSession, str], DataFrame],
) -> None:
    writer = open_sink(spark, sink(tmp_path / "out"))

    writer.stage(batch(spark, "a", rows=2), 7, "1-0")
    writer.publish(7, "1-0")

    rows = read(spark, str(tmp_path / "out")).select("id", "tag", "epoch").collect()
    assert sorted(map(tuple, rows)) == [(0, "a", 7), (1, "a", 7)]


def test_csv_without_a_header_has_none(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.csv(tmp_path / "out", header=False))

    writer.stage(spark.createDataFrame([("x", 1)], "s string, n int").coalesce(1), 0, "1-0")
    writer.publish(0, "1-0")

    (file,) = (tmp_path / "out" / "epoch=000000000000").glob("*.csv")
    assert file.read_text() == "x,1\n"


def test_no_file_is_written_but_the_data(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))

    writer.stage(batch(spark, "a"), 0, "1-0")
    writer.publish(0, "1-0")

    names = os.listdir(tmp_path / "out" / "epoch=000000000000")
    assert len(names) == 4
    assert all(name.startswith("part-") and name.endswith(".parquet") for name in names)


def test_an_epoch_of_many_small_files_is_published_as_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))
    frame = spark.range(ROWS, numPartitions=20).select("id", F.lit("a").alias("tag"))

    writer.stage(frame.withColumn("at", F.timestamp_micros("id")), 0, "1-0")
    writer.publish(0, "1-0")

    assert len(os.listdir(tmp_path / "out" / "epoch=000000000000")) == 1
    assert visible(tmp_path / "out") == {0: {"a": ROWS}}
    assert dict(spark.read.parquet(str(tmp_path / "out")).dtypes)["at"] == "timestamp"


def test_a_reader_never_sees_a_part_of_an_epoch(spark: SparkSession, tmp_path: Path) -> None:
    writer = file_writer(spark, tmp_path / "out")
    seen: list[dict[int, dict[str, int]]] = []
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            try:
                seen.append(visible(tmp_path / "out"))
            except FileNotFoundError:  # listed before it was withdrawn, opened after
                continue

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for attempt in ("1-0", "2-0"):  # the second goes back before all of the first
            for epoch, tag in enumerate("abc"):
                writer.stage(batch(spark, f"{tag}{attempt}"), epoch, attempt)
                writer.publish(epoch, attempt)
            if attempt == "1-0":
                writer.withdraw(writer.visible(after=-1))
    finally:
        over.set()
        reader.join()

    whole = [{f"{tag}{attempt}": ROWS} for attempt in ("1-0", "2-0") for tag in "abc"]
    assert all(tags in whole for view in seen for tags in view.values())
    assert len({str(view) for view in seen}) > 3
    assert visible(tmp_path / "out") == dict(enumerate(whole[3:]))


def test_publishing_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))
    writer.stage(batch(spark, "a"), 0, "1-0")

    writer.publish(0, "1-0")
    writer.publish(0, "1-0")
    open_sink(spark, write.parquet(tmp_path / "out")).publish(0, "1-0")

    assert visible(tmp_path / "out") == {0: {"a": ROWS}}


def test_a_late_task_does_not_change_published_output(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    writer = file_writer(spark, out)
    writer.stage(batch(spark, "good"), 0, "1-0")
    writer.publish(0, "1-0")
    late = out / "_millstream/staged/epoch=000000000000-1-0/_temporary/0/_temporary/attempt_7"
    late.mkdir(parents=True)
    (late / "part-00003-late.parquet").write_bytes(b"half a file")

    after = file_writer(spark, out, committed=[(0, "1-0")])  # a restart that does not know
    after.publish(0, "1-0")

    assert visible(out) == {0: {"good": ROWS}}
    assert staged(out) == []


def test_what_was_withdrawn_can_be_published_by_another_attempt(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = file_writer(spark, tmp_path / "out")
    for attempt in ("1-0", "2-0"):
        writer.withdraw(writer.visible(after=-1))
        writer.stage(batch(spark, attempt), 0, attempt)
        writer.publish(0, attempt)

    assert visible(tmp_path / "out") == {0: {"2-0": ROWS}}
    assert os.listdir(tmp_path / "out" / "_millstream" / "withdrawn") == []


@pytest.mark.parametrize(
    "sink", [write.parquet, write.json, write.csv, lambda path: write.csv(path, header=False)]
)
def test_an_epoch_without_rows_leaves_nothing(
    spark: SparkSession, tmp_path: Path, sink: Callable[[Path], sinks.FileSink]
) -> None:
    writer = open_sink(spark, sink(tmp_path / "out"))
    frame = spark.range(0, 2, numPartitions=4).select("id", F.lit(None).cast("string").alias("s"))

    empty = writer.stage(frame.where("id > 1"), 0, "1-0")
    one_row = [
        writer.stage(spark.range(1).select(F.lit(None).cast("string").alias("s")), 1, "1-0"),
        writer.stage(frame.where("id = 1"), 2, "1-0"),  # not in the first partition
    ]

    assert not empty and all(one_row)
    assert staged(tmp_path / "out") == [f"epoch={epoch:012d}-1-0" for epoch in (1, 2)]


def test_staging_again_under_the_same_attempt_does_not_double(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))

    for _ in range(2):
        writer.stage(batch(spark, "a"), 0, "1-0")
    writer.publish(0, "1-0")

    assert visible(tmp_path / "out") == {0: {"a": ROWS}}


def test_a_failed_attempt_leaves_nothing_visible(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))

    with pytest.raises(Exception, match="broken"):
        writer.stage(fails_after_a_while(spark), 0, "1-0")
    after_failure = visible(tmp_path / "out")
    writer.discard(0, "1-0")

    assert after_failure == {}
    assert staged(tmp_path / "out") == []


def test_what_was_discarded_cannot_be_published(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))
    writer.stage(batch(spark, "a"), 3, "1-0")
    writer.discard(3, "1-0")
    writer.discard(3, "1-0")

    with pytest.raises(OutputLostError, match="epoch 3, attempt 1-0"):
        writer.publish(3, "1-0")


def test_what_is_committed_can_be_published_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = open_sink(spark, write.parquet(tmp_path / "out"))
    before.stage(batch(spark, "committed"), 0, "1-0")
    before.stage(batch(spark, "dead"), 1, "1-0")

    after = open_sink(spark, write.parquet(tmp_path / "out"), committed=[(0, "1-0")])
    after.publish(0, "1-0")

    assert visible(tmp_path / "out") == {0: {"committed": ROWS}}
    assert staged(tmp_path / "out") == []


def test_opening_removes_nothing_without_a_list_of_committed_epochs(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = write.parquet(tmp_path / "out")
    open_sink(spark, sink).stage(batch(spark, "a", rows=1), 0, "1-0")

    open_sink(spark, sink)
    kept = staged(tmp_path / "out")
    open_sink(spark, sink, committed=[])

    assert kept == ["epoch=000000000000-1-0"]
    assert staged(tmp_path / "out") == []


def test_what_a_crash_left_half_withdrawn_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    writer = file_writer(spark, out)
    writer.stage(batch(spark, "old"), 0, "1-0")
    writer.publish(0, "1-0")
    (out / "epoch=000000000000").rename(out / "_millstream/withdrawn/epoch=000000000000")

    file_writer(spark, out)

    assert os.listdir(out / "_millstream/withdrawn") == []


def test_a_folder_with_other_files_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(ConfigError, match="did not write"):
        open_sink(spark, write.parquet(tmp_path))
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_file_in_place_of_a_folder_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")

    with pytest.raises(ConfigError, match="is a file"):
        open_sink(spark, write.parquet(tmp_path / "out"))


def test_a_folder_of_another_format_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    open_sink(spark, write.parquet(tmp_path / "out"))

    with pytest.raises(ConfigError, match="format=parquet, and this sink has format=csv"):
        open_sink(spark, write.csv(tmp_path / "out"))


def test_a_folder_of_csv_files_is_read_with_a_header_or_without_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    open_sink(spark, write.csv(tmp_path / "out"))

    with pytest.raises(ConfigError, match="header=true, and this sink has header=false"):
        open_sink(spark, write.csv(tmp_path / "out", header=False))


def test_a_column_called_epoch_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    writer = open_sink(spark, write.parquet(tmp_path / "out"))

    with pytest.raises(WorkflowError, match="rename the column"):
        writer.stage(spark.range(1).toDF("Epoch"), 0, "1-0")

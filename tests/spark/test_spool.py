from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession

from millstream.errors import ConfigError
from millstream.flow import read, sources
from millstream.spark.replay import open_replay
from millstream.spark.spool import spool_of


def all_rows(source: sources.ReplaySource) -> list[dict[str, Any]]:
    with pa.memory_map(spool_of(source).path) as file:
        rows: list[dict[str, Any]] = pa.ipc.open_file(file).read_all().to_pylist()
    return rows


def test_rows_are_sorted_by_the_time_column_stably() -> None:
    records = [{"at": at, "n": n} for n, at in enumerate([3, 1, 2, 1])]

    rows = all_rows(read.replay(records, time_column="at"))

    assert [row["n"] for row in rows] == [1, 3, 2, 0]


def test_an_empty_time_is_rejected() -> None:
    with pytest.raises(ConfigError, match="1 empty values"):
        spool_of(read.replay([{"at": 1}, {"at": None}], time_column="at"))


def test_a_time_column_of_text_is_rejected() -> None:
    with pytest.raises(ConfigError, match="not string"):
        spool_of(read.replay([{"at": "noon"}], time_column="at"))


def test_a_folder_of_parquet_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        pq.write_table(
            pa.table({"s": [f"{name}{n}" for n in (1, 2)]}), tmp_path / f"{name}.parquet"
        )
    (tmp_path / "_SUCCESS").touch()

    rows = all_rows(read.replay(tmp_path))

    assert [row["s"] for row in rows] == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_partition_folders_become_columns(tmp_path: Path) -> None:
    for epoch in (2, 1):
        (tmp_path / f"epoch={epoch:03}").mkdir()
        table = pa.table({"n": [epoch * 10]})
        pq.write_table(table, tmp_path / f"epoch={epoch:03}" / "part.parquet")

    assert all_rows(read.replay(tmp_path)) == [{"n": 10, "epoch": 1}, {"n": 20, "epoch": 2}]


def test_csv_and_json_lines_are_recordings_too(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("n,s\n1,x\n2,\n")
    (tmp_path / "one.jsonl").write_text('{"n": 1, "s": "x"}\n{"n": 2, "s": null}\n')

    assert all_rows(read.replay(tmp_path / "one.csv"))[0] == {"n": 1, "s": "x"}
    assert all_rows(read.replay(tmp_path / "one.jsonl"))[1] == {"n": 2, "s": None}


def test_a_recording_that_changes_after_opening_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"n": [1, 2]}), path)
    source = read.replay(path)
    opened = spool_of(source)

    pq.write_table(pa.table({"n": [7, 8, 9]}), path)

    assert spool_of(source) == opened
    assert opened.rows == 2
    assert all_rows(source) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("name", ["missing.parquet", "notes.txt", "mixed", "empty"])
def test_a_path_without_a_readable_recording_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("a\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.csv").write_text("n\n1\n")
    (tmp_path / "mixed" / "a.json").write_text("{}\n")

    with pytest.raises(ConfigError, match=name):
        spool_of(read.replay(tmp_path / name))


def test_a_damaged_recording_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "one.parquet").write_text("not parquet")

    with pytest.raises(ConfigError, match="cannot read the recording"):
        spool_of(read.replay(tmp_path / "one.parquet"))


@pytest.mark.spark
def test_types_that_spark_lacks_become_the_nearest_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.table(
        {
            "words": pa.array(["a", "b"]).dictionary_encode(),
            "long": pa.array(["a", "b"], pa.large_string()),
            "small": pa.array([1, 255], pa.uint8()),
            "wide": pa.array([1, 2**32 - 1], pa.uint32()),
            "nothing": pa.nulls(2),
            "nanos": pa.array([1, 1999], pa.timestamp("ns")),
            "aware": pa.array([0, 1_000_000], pa.timestamp("us", "Europe/Berlin")),
            "nested": pa.array([[{"a": 1}], None], pa.list_(pa.struct({"a": pa.int32()}))),
        }
    )

    frame = open_replay(spark, read.replay(table))
    rows: list[Row] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, epoch: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert dict(frame.dtypes) == {
        "words": "string",
        "long": "string",
        "small": "smallint",
        "wide": "bigint",
        "nothing": "string",
        "nanos": "timestamp_ntz",
        "aware": "timestamp",
        "nested": "array<struct<a:int>>",
    }
    first, second = rows
    assert (first.words, first.long, first.nothing) == ("a", "a", None)
    assert first.nested == [Row(a=1)]
    assert second.small == 255
    assert second.wide == 2**32 - 1
    assert second.nanos == datetime(1970, 1, 1, microsecond=1)
    assert second.aware.timestamp() == 1
    assert second.nested is None


def test_a_type_without_a_counterpart_is_rejected() -> None:
    table = pa.table({"n": pa.array([None], pa.month_day_nano_interval())})

    with pytest.raises(ConfigError, match="cast the column"):
        spool_of(read.replay(table))

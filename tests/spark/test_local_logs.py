from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.spark.local_logs import FILE_MANAGER, quick_local_logs

pytestmark = pytest.mark.spark


@pytest.fixture
def managed(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(FILE_MANAGER) or ""
    yield spark
    spark.conf.set(FILE_MANAGER, before)


def manager(spark: SparkSession, folder: Path) -> Any:
    """What a query that starts now writes its logs by."""
    jvm: Any = spark._jvm
    managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    return managers.create(jvm.org.apache.hadoop.fs.Path(str(folder)), settings)


def write(spark: SparkSession, folder: Path) -> dict[str, tuple[bytes, int]]:
    """Write a file as Spark does; the contents and permissions of all that is there then."""
    jvm: Any = spark._jvm
    written = manager(spark, folder)
    folder.mkdir()
    stream = written.createAtomic(jvm.org.apache.hadoop.fs.Path(f"{folder}/0"), False)
    stream.writeBytes("an offset")
    stream.close()
    return {
        file.name: (file.read_bytes(), file.stat().st_mode & 0o7777) for file in folder.iterdir()
    }


def test_no_process_sets_the_permissions_of_a_log_file(spark: SparkSession, tmp_path: Path) -> None:
    with quick_local_logs(spark):
        files = manager(spark, tmp_path).fs().getRaw()
    assert files.getClass().getName() == "millstream.LocalFiles"


def test_log_files_are_those_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    by_spark = write(spark, tmp_path / "by_spark")
    with quick_local_logs(spark):
        by_us = write(spark, tmp_path / "by_us")
    assert by_us == by_spark
    assert set(by_us) == {"0", ".0.crc"}


def test_only_queries_that_start_meanwhile_write_by_our_classes(spark: SparkSession) -> None:
    before = spark.conf.get(FILE_MANAGER)
    with quick_local_logs(spark):
        assert spark.conf.get(FILE_MANAGER) != before
    assert spark.conf.get(FILE_MANAGER) == before


def test_another_way_to_write_logs_is_left_as_it_is(managed: SparkSession) -> None:
    chosen = "org.example.FileManager"
    managed.conf.set(FILE_MANAGER, chosen)
    with quick_local_logs(managed):
        assert managed.conf.get(FILE_MANAGER) == chosen


def test_spark_writes_its_logs_itself_where_its_classes_are_others(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.spark.local_logs._OURS", "millstream.OtherLogs")
    monkeypatch.setattr("millstream.spark.local_logs._SOURCE", "package x; class %s")
    before = spark.conf.get(FILE_MANAGER)
    with quick_local_logs(spark):
        assert spark.conf.get(FILE_MANAGER) == before


def test_a_run_has_its_logs_written_so(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a b a\n")
    flow = ms.Workflow("logged")
    lines = flow.source("lines", ms.read.text(tmp_path / "in"))
    lines.map_reduce("count", map=lambda line: ((w, 1) for w in line.split()), reduce=ms.sum())
    with ms.start(flow, spark=spark, checkpoint=tmp_path / "checkpoint", progress=False) as run:
        (query,) = (query for query in spark.streams.active if query.name.startswith("logged-"))
        session = query._jsq.streamingQuery().sparkSessionForStream()
        assert session.conf().get(FILE_MANAGER) == "millstream.LocalLogs"
        run.await_termination()
        assert dict(run.state("count").items()) == {"a": 2, "b": 1}

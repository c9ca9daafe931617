from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from millstream.errors import ConfigError, WorkflowError
from millstream.flow import read, sources
from millstream.spark.source_frames import open_source

pytestmark = pytest.mark.spark


def run_to_end(frame: DataFrame, checkpoint: Path) -> list[list[Row]]:
    """Run a bounded stream and return the rows of each epoch."""
    epochs: list[list[Row]] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, epoch: epochs.append(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return epochs


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    folder = tmp_path / "lines"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.txt").write_text(f"{name}1\n{name}2\n")
    return folder


def test_text_is_read_line_by_line(spark: SparkSession, lines: Path, tmp_path: Path) -> None:
    frame = open_source(spark, read.text(lines))

    epochs = run_to_end(frame, tmp_path / "checkpoint")

    assert frame.isStreaming
    assert frame.columns == ["value"]
    assert sorted(row.value for epoch in epochs for row in epoch) == [
        "a1", "a2", "b1", "b2", "c1", "c2",
    ]  # fmt: skip


def test_a_limit_cuts_a_folder_into_epochs(
    spark: SparkSession, lines: Path, tmp_path: Path
) -> None:
    frame = open_source(spark, read.text(lines, max_files_per_epoch=2))

    epochs = run_to_end(frame, tmp_path / "checkpoint")

    assert [len(epoch) for epoch in epochs] == [4, 2]


def test_a_single_file_is_read_alone(spark: SparkSession, lines: Path, tmp_path: Path) -> None:
    frame = open_source(spark, read.text(lines / "b.txt"))

    epochs = run_to_end(frame, tmp_path / "checkpoint")

    assert [row.value for epoch in epochs for row in epoch] == ["b1", "b2"]


def test_a_glob_stays_a_glob(spark: SparkSession, lines: Path, tmp_path: Path) -> None:
    frame = open_source(spark, read.text(f"{lines}/[ac].txt"))

    epochs = run_to_end(frame, tmp_path / "checkpoint")

    assert len([row for epoch in epochs for row in epoch]) == 4


def test_parquet_needs_no_schema(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2], "s": ["x", "y"]}), tmp_path / "in" / "one.parquet")

    frame = open_source(spark, read.parquet(tmp_path / "in"))

    assert run_to_end(frame, tmp_path / "checkpoint") == [[Row(n=1, s="x"), Row(n=2, s="y")]]


def test_parquet_without_files_asks_for_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass schema="):
        open_source(spark, read.parquet(tmp_path))


def test_json_takes_a_pyarrow_schema(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text(json.dumps({"n": 1, "tags": ["a"]}) + "\n")
    schema = pa.schema({"n": pa.int64(), "tags": pa.list_(pa.string())})

    frame = open_source(spark, read.json(tmp_path / "in", schema=schema))

    assert run_to_end(frame, tmp_path / "checkpoint") == [[Row(n=1, tags=["a"])]]


def test_csv_takes_a_ddl_schema_and_options(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.csv").write_text("n;s\n1;x\n")
    source = read.csv(tmp_path / "in", schema="n bigint, s string", options={"sep": ";"})

    assert run_to_end(open_source(spark, source), tmp_path / "checkpoint") == [[Row(n=1, s="x")]]


def test_csv_without_a_header_includes_the_first_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("1,x\n")
    source = read.csv(tmp_path / "one.csv", schema="n bigint, s string", header=False)

    assert run_to_end(open_source(spark, source), tmp_path / "checkpoint") == [[Row(n=1, s="x")]]


def test_a_first_line_that_is_no_header_is_not_lost_in_silence(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "one.csv").write_text("1,x\n2,y\n")
    source = read.csv(tmp_path / "one.csv", schema="n bigint, s string")

    with pytest.raises(StreamingQueryException, match="header"):
        run_to_end(open_source(spark, source), tmp_path / "checkpoint")


def test_kafka_without_the_connector_names_the_package_to_add(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"org\.apache\.spark:spark-sql-kafka-0-10_2\.13:\d"):
        open_source(spark, read.kafka("localhost:9092", "orders"))


def test_a_rate_makes_numbered_rows(spark: SparkSession) -> None:
    frame = open_source(spark, read.rate(7))

    assert frame.isStreaming
    assert frame.columns == ["timestamp", "value"]


@pytest.fixture
def server() -> Iterator[socketserver.TCPServer]:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


def test_a_socket_emits_lines(spark: SparkSession, server: socketserver.TCPServer) -> None:
    frame = open_source(spark, read.socket("127.0.0.1", server.server_address[1]))

    assert frame.isStreaming
    assert frame.columns == ["value"]


def test_a_frame_of_the_user_is_unchanged(spark: SparkSession) -> None:
    mine = spark.readStream.format("rate").load()

    assert open_source(spark, read.dataframe(mine)) is mine


def test_a_batch_frame_is_rejected(spark: SparkSession) -> None:
    with pytest.raises(WorkflowError, match="not streaming"):
        read.dataframe(spark.range(3))


def test_an_unknown_description_is_rejected(spark: SparkSession) -> None:
    with pytest.raises(WorkflowError, match="cannot be opened"):
        open_source(spark, sources.Source())

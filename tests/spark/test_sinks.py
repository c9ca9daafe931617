from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from millstream.errors import WorkflowError
from millstream.flow import sinks, write
from millstream.spark.sink_writers import describe_epoch, open_sink

pytestmark = pytest.mark.spark


def test_a_callback_gets_the_same_rows_as_collect(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [
            Row(n=1, at=datetime(2024, 5, 1, 12), nested=Row(a="x"), tags={"k": 1}),
            Row(n=2, at=None, nested=None, tags=None),
        ],
        "n bigint, at timestamp, nested struct<a: string>, tags map<string, int>",
    ).coalesce(1)
    calls: list[tuple[list[Row], int]] = []
    writer = open_sink(spark, write.callback(lambda rows, epoch: calls.append((rows, epoch))))

    writer.stage(frame, 4, "1-0")
    before = list(calls)
    writer.publish(4, "1-0")

    assert before == []
    assert calls == [(frame.collect(), 4)]
    assert isinstance(calls[0][0][0].nested, Row)
    assert writer.when == "late"


def test_a_callback_is_called_once_for_what_was_staged_and_not_for_what_was_dropped(
    spark: SparkSession,
) -> None:
    calls: list[int] = []
    writer = open_sink(spark, write.callback(lambda rows, epoch: calls.append(len(rows))))
    writer.stage(spark.range(1), 0, "1-0")
    writer.stage(spark.range(2), 0, "1-1")

    writer.discard(0, "1-0")
    for attempt in ("1-0", "1-1", "1-1"):
        writer.publish(0, attempt)

    assert calls == [2]


def test_a_callback_is_called_for_an_empty_epoch(spark: SparkSession) -> None:
    calls: list[list[Row]] = []
    writer = open_sink(spark, write.callback(lambda rows, epoch: calls.append(rows)))

    writer.stage(spark.range(0), 0, "1-0")
    writer.publish(0, "1-0")

    assert calls == [[]]


def test_what_a_user_function_raises_goes_up_unchanged(spark: SparkSession) -> None:
    def broken(rows: Any, epoch: int) -> None:
        raise LookupError("mine")

    callback = open_sink(spark, write.callback(broken))
    callback.stage(spark.range(1), 0, "1-0")

    with pytest.raises(LookupError, match="mine"):
        callback.publish(0, "1-0")
    with pytest.raises(LookupError, match="mine"):
        open_sink(spark, write.foreach_batch(broken)).stage(spark.range(1), 0, "1-0")


def test_foreach_batch_gets_the_frame_when_it_is_staged(spark: SparkSession) -> None:
    calls: list[tuple[DataFrame, int]] = []
    writer = open_sink(
        spark, write.foreach_batch(lambda frame, epoch: calls.append((frame, epoch)))
    )
    frame = spark.range(3)

    writer.stage(frame, 9, "1-0")
    writer.publish(9, "1-0")

    assert calls == [(frame, 9)]
    assert writer.when == "late"


def test_a_console_prints_the_first_rows_when_it_is_published(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = open_sink(spark, write.console(rows=2))
    writer.stage(spark.range(3).select("id", F.lit("word").alias("w")), 5, "1-0")
    before = capsys.readouterr().out

    writer.publish(5, "1-0")

    assert before == ""
    assert capsys.readouterr().out.splitlines() == [
        "epoch 5: 3 rows, first 2",
        "id | w",
        "---+-----",
        "0  | word",
        "1  | word",
    ]


def test_long_cells_are_truncated_and_line_ends_escaped() -> None:
    text = describe_epoch(0, pa.table({"s": ["x" * 100, None, "a\nb"]}), 20)

    assert text.splitlines() == ["epoch 0: 3 rows", "s", "-" * 40, "x" * 39 + "…", "", "a\\nb"]


def test_an_unknown_description_is_rejected(spark: SparkSession) -> None:
    with pytest.raises(WorkflowError, match="not a sink"):
        open_sink(spark, sinks.Sink())

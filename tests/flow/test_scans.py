from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.scans import spark_readers


def reasons(*sources: Any, map: Any = len) -> list[str]:
    """Why Spark reads some of the sources, each with the same step behind it."""
    flow = ms.Workflow("w")
    for number, source in enumerate(sources):
        stream = flow.source(f"s{number}", source)
        stream.map(map).sink(f"out{number}", ms.write.callback(print))
    return list(spark_readers(plan(flow)).values())


@pytest.mark.parametrize(
    "source",
    [
        ms.read.text("books"),
        ms.read.text("file:///books/*.txt", follow=True),
        ms.read.parquet("orders", schema="n int", options={"pathGlobFilter": "*.parquet"}),
    ],
)
def test_text_and_parquet_files_are_read_by_python_tasks(source: object) -> None:
    assert reasons(source) == []
    assert reasons(source, map=ms.arrow(len)) == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ms.read.text("books", scan="spark"), 'scan="spark"'),
        (ms.read.json("events", schema="n int"), "it parses json"),
        (ms.read.csv("events", schema="n int"), "it parses csv"),
        (
            ms.read.parquet("orders", schema="n int", options={"mergeSchema": "true"}),
            "option mergeSchema",
        ),
        (ms.read.text("s3a://bucket/books"), "the file system is not local"),
        (ms.read.rate(), "it has no files"),
    ],
)
def test_other_sources_are_read_by_spark(source: object, reason: str) -> None:
    assert reasons(source) == [reason]


def test_spark_reads_what_a_step_in_the_jvm_follows() -> None:
    assert reasons(ms.read.text("books"), map=ms.sql("upper(value)")) == [
        "a step in the JVM follows"
    ]


def test_all_sources_are_read_alike() -> None:
    assert reasons(ms.read.text("books"), ms.read.rate()) == ["so is s1", "it has no files"]


@pytest.mark.parametrize("read", [ms.read.text, ms.read.parquet])
def test_the_choice_of_a_scan_is_validated(read: Callable[..., object]) -> None:
    with pytest.raises(ms.ConfigError, match="scan must be one of auto, spark, got 'arrow'"):
        read("books", scan="arrow")

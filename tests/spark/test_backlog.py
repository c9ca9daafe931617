"""What waits at sources, by what Spark reports; without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.sources import Source
from millstream.observe.source_backlog import SourceBacklog
from millstream.spark.backlog import Backlog, BacklogWatch, rows_waiting
from millstream.spark.compile import HEARTBEAT
from millstream.spark.file_backlog import FileBacklog


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Folder:
    """Files that a stream reads, and the log in which Spark has those that it read."""

    def __init__(self, root: Path) -> None:
        self.input, self.log = root / "in put", root / "log"
        self.input.mkdir()
        self.log.mkdir()
        self.clock = Clock()
        self.backlog = FileBacklog(str(self.log), self.clock)

    def add(self, *names: str) -> None:
        for name in names:
            self.input.joinpath(name).parent.mkdir(exist_ok=True)
            self.input.joinpath(name).touch()

    def write_log(self, name: str, *files: str) -> None:
        entries = [{"path": self.input.joinpath(file).as_uri(), "batchId": 0} for file in files]
        self.log.joinpath(name).write_text("\n".join(["v1", *map(json.dumps, entries)]))

    def count(self, through: int, path: str = "") -> int | None:
        self.clock.now += 1000.0
        return self.backlog.count(f"FileStreamSource[file:{path or self.input}]", through)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_files_that_are_not_in_the_log_wait(folder: Folder) -> None:
    folder.add("a", "b", "day=1/c", "_hidden", ".tmp", "d._COPYING_", "_folder/e")
    assert folder.count(-1) == 3
    folder.write_log("0", "a")
    folder.write_log("1", "day=1/c")
    assert folder.count(0) == 2
    assert folder.count(1) == 1

    folder.add("f", "g")
    assert folder.count(1) == 3
    folder.write_log("2.compact", "a", "day=1/c", "f", "g")
    folder.write_log("3", "b")
    assert folder.count(3) == 0


def test_a_resumed_stream_begins_with_the_compact_log(folder: Folder) -> None:
    folder.add("a", "b", "c")
    folder.write_log("9.compact", "a", "b")

    assert folder.count(9) == 1


def test_a_glob_matches_what_spark_reads(folder: Folder) -> None:
    folder.add("a.txt", "b.csv")

    assert folder.count(-1, f"{folder.input}/*.txt") == 1


def test_files_elsewhere_and_a_log_that_is_not_there_are_not_known(folder: Folder) -> None:
    folder.add("a")

    assert folder.backlog.count("FileStreamSource[s3a://bucket/in]", -1) is None
    assert folder.count(-1, f"{folder.input}/{{a,b}}") is None
    assert folder.count(5) is None


def test_listings_are_rare(folder: Folder) -> None:
    folder.add("a")
    assert folder.count(-1) == 1
    folder.add("b")
    description = f"FileStreamSource[file:{folder.input}]"

    assert folder.backlog.count(description, -1) == 1
    folder.clock.now += 2.0
    assert folder.backlog.count(description, -1) == 2


@pytest.mark.parametrize(
    ("source", "end", "latest", "rows"),
    [
        (
            ms.read.kafka("host:1", "t"),
            {"t": {"0": 5, "1": 7}},
            {"t": {"0": 9, "1": 7, "2": 3}},
            4,
        ),
        (ms.read.replay([{"n": 1}]), {"row": 3}, {"row": 10}, 7),
        (ms.read.rate(rows_per_second=20), 4, 6, 40),
        (ms.read.rate(rows_per_second=20), 4, None, None),
        (ms.read.socket("host", 1), 4, 6, None),
    ],
)
def test_rows_between_two_offsets(source: Source, end: Any, latest: Any, rows: int | None) -> None:
    assert rows_waiting(source, end, latest) == rows


def report(end: Any, latest: Any = None, description: str = "") -> Any:
    return SimpleNamespace(endOffset=end, latestOffset=latest, description=description)


def backlog(
    folder: Folder, reports: Iterable[Any], options: dict[str, str] | None = None
) -> list[SourceBacklog]:
    flow = ms.Workflow("w")
    words = flow.source("words", ms.read.replay([{"n": 1}], rows_per_epoch=4))
    path = str(folder.input)
    files = ms.read.csv(path, schema="n int", follow=True, max_files_per_epoch=2, options=options)
    lines = flow.source("lines", files)
    for name, stream in (("first", words), ("second", lines)):
        stream.map_reduce(name, reduce=ms.count(), key="n")
    planned = plan(flow)
    query = SimpleNamespace(lastProgress=SimpleNamespace(sources=list(reports)))
    branches = [at for at, inputs in enumerate(planned.inputs) if not inputs]
    found = Backlog(
        cast(StreamingQuery, query),
        planned,
        [*branches, HEARTBEAT],
        ["", str(folder.log), ""],
        folder.clock,
    )
    return list(found())


def test_each_source_is_named_with_what_waits_and_for_how_many_epochs(folder: Folder) -> None:
    folder.add("a", "b", "c", "d")
    folder.write_log("0", "a")
    lines = report('{"logOffset": 0}', description=f"FileStreamSource[file:{folder.input}]")
    reports = [report('{"row": 4}', '{"row": 13}'), lines, report("1", "1")]

    words, files = backlog(folder, reports)

    assert (words.source, words.amount, words.unit, words.epochs) == ("words", 9, "rows", 3)
    assert (files.source, files.amount, files.unit, files.epochs) == ("lines", 3, "files", 2)


def test_what_spark_does_not_report_is_not_known_rather_than_nothing(folder: Folder) -> None:
    lines = report('{"logOffset": -1}', description=f"FileStreamSource[file:{folder.input}]")
    reports = [report(None), lines, report("1", "1")]

    assert [each.amount for each in backlog(folder, reports)] == [None, 0]
    assert [each.amount for each in backlog(folder, reports[:2])] == [None, None]
    chosen = backlog(folder, reports, {"pathGlobFilter": "*.csv"})
    assert [each.amount for each in chosen] == [None, None]


def test_a_watch_reports_what_the_next_epoch_leaves() -> None:
    found: list[list[SourceBacklog]] = [
        [],
        [SourceBacklog(source="unknown"), SourceBacklog(source="unbounded", amount=5)],
        [
            SourceBacklog(source="calm", amount=3, per_epoch=4),
            SourceBacklog(source="busy", amount=10, per_epoch=4),
        ],
    ]
    reported: list[float] = []
    for sources in found:
        BacklogWatch(partial(list, sources), reported.append).tick()

    assert reported == [0.0, 0.0, 1.5]


def test_an_old_backlog_is_not_retained_if_sources_cannot_be_asked() -> None:
    def broken() -> list[SourceBacklog]:
        raise KeyError("endOffset")

    reported: list[float] = []
    BacklogWatch(broken, reported.append).tick()

    assert reported == [0.0]

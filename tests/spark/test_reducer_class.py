"""Reducers as classes on Spark: opened once per node and job, also after a takeover."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.words import expected_counts, once, split, write_books

pytestmark = pytest.mark.spark


class Counting(ms.Reducer):
    """Counts words; writes a line for each call of its lifecycle."""

    def __init__(self, log: Path, deadly: bool = False) -> None:
        self.log = log
        self.deadly = deadly
        self.word: str | None = None

    def _write(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{text}\n")

    def open(self, context: ms.ReducerContext) -> None:
        self._write(f"open {os.getpid()} {context.job} {context.node}")
        self.word = "open"

    def reduce(self, word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
        assert self.word == "open"
        state["n"] = state.get("n", 0) + sum(ones)
        if self.deadly and state["n"] > 200 and once(self.log.with_name("killed")):
            os.kill(os.getpid(), signal.SIGKILL)
        yield word, state["n"]

    def close(self) -> None:
        self._write(f"close {os.getpid()}")


def run(spark: SparkSession, folder: Path, *, deadly: bool) -> tuple[Any, list[list[str]]]:
    log = folder / "log"
    flow = ms.Workflow("words")
    books = write_books(folder)
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=2))
    words = lines.flat_map(split)
    for job in ("count", "again"):
        reducer = Counting(log, deadly and job == "count")
        words.key_by().reduce(job, reducer).sink(f"{job}_out", ms.write.callback(_ignore))
    with ms.start(flow, spark=spark, nodes=3, partitions=4) as started:
        started.await_termination()
        counts = {word: kept["n"] for word, kept in started.state("count").items()}
    assert counts == expected_counts(books)
    return counts, [line.split() for line in log.read_text().splitlines()]


def _ignore(rows: Any, epoch: int) -> None: ...


def test_open_runs_once_per_node_and_job_and_close_at_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(spark, tmp_path, deadly=False)

    opened = _opened(tmp_path)
    assert len(opened) == 6 and set(opened.values()) == {1}
    assert os.getpid() not in {pid for pid, _ in opened}
    _await(lambda: sum(line[0] == "close" for line in _log(tmp_path)) == 6)


def test_open_runs_once_per_node_and_job_also_after_a_takeover(
    spark: SparkSession, tmp_path: Path
) -> None:
    run(spark, tmp_path, deadly=True)

    opened = _opened(tmp_path)
    assert set(opened.values()) == {1}
    assert len({pid for pid, _ in opened}) >= 3


def _log(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def _opened(folder: Path) -> Counter[tuple[int, str]]:
    """How often each job was opened in each process."""
    return Counter((int(line[1]), line[2]) for line in _log(folder) if line[0] == "open")


def _await(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class BrokenOpen(ms.Reducer):
    def open(self, context: ms.ReducerContext) -> None:
        raise OSError("the model is missing")

    def reduce(self, word: str, ones: list[int], state: Any) -> None: ...


def test_an_error_in_open_names_the_users_line(spark: SparkSession, tmp_path: Path) -> None:
    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(write_books(tmp_path)))
    lines.flat_map(split).key_by().reduce("count", BrokenOpen()).sink(
        "out", ms.write.callback(_ignore)
    )

    with pytest.raises(ms.UserFunctionError, match="OSError: the model is missing") as caught:
        with ms.start(flow, spark=spark, nodes=2) as started:
            started.await_termination()

    assert caught.value.place is not None and caught.value.place.file == __file__
    lines_of_file = Path(__file__).read_text().splitlines()
    assert "the model is missing" in lines_of_file[caught.value.place.line - 1]

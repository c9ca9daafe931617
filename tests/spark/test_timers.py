"""Timers on real Spark: in silence, in event time, after a stop, and when a node is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.node.machine import Durability
from tests.spark.endless import awaited
from tests.spark.words import once

pytestmark = pytest.mark.spark

START = datetime(2026, 5, 1, tzinfo=UTC)
SCHEMA = "user string, n bigint, at timestamp"


def write_file(folder: Path, number: int, rows: list[tuple[str, int, datetime]]) -> None:
    """Write a file, which appears at once."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}.json"
    hidden.write_text(
        "".join(json.dumps({"user": u, "n": n, "at": at.isoformat()}) + "\n" for u, n, at in rows)
    )
    moment = 1_000_000_000 + 60 * number  # Spark reads in the order of these
    os.utime(hidden, (moment, moment))
    hidden.rename(folder / f"{number}.json")


class Rows:
    """What a sink of files shows, in the order of epochs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[tuple[Any, ...]]:
        files = sorted(self._folder.glob("epoch=*/*.json"))
        lines = (line for file in files for line in file.read_text().splitlines())
        return [tuple(json.loads(line).values()) for line in lines]


def soon(user: str, rows: list[Any], state: Any) -> None:
    state["n"] = state.get("n", 0) + sum(row.n for row in rows)
    state.timers.set("soon", after=timedelta(seconds=1))


def report(user: str, timer: ms.Timer, state: Any) -> Iterator[tuple[str, int, str]]:
    yield user, state["n"], timer.name
    state.clear()


def silent(user: str, rows: list[Any], state: Any) -> None:
    """Wait in event time until five minutes pass without a row."""
    state["n"] = state.get("n", 0) + sum(row.n for row in rows)
    state.timers.set("idle", after=timedelta(minutes=5), time="event")


def flow_of(folder: Path, reduce: Any, *, follow: bool, **options: Any) -> ms.Workflow:
    flow = ms.Workflow("timers")
    source = ms.read.json(folder / "in", schema=SCHEMA, follow=follow, max_files_per_epoch=1)
    rows = flow.source("rows", source)
    reported = rows.key_by("user").reduce(
        "reports", reduce, output={"user": str, "n": int, "timer": str}, **options
    )
    reported.sink("out", ms.write.json(folder / "out"))
    return flow


def test_a_timer_fires_while_the_stream_is_silent(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path / "in", 0, [("ann", 1, START), ("bob", 2, START), ("ann", 3, START)])
    rows = Rows(tmp_path / "out")
    with ms.start(
        flow_of(tmp_path, soon, follow=True, on_timer=report), spark=spark, nodes=2
    ) as run:
        awaited(run, lambda: len(rows.read()) >= 2)
        awaited(run, lambda: list(run.state("reports").items()) == [])

    assert sorted(rows.read()) == [("ann", 4, "soon"), ("bob", 2, "soon")]


def test_event_timers_fire_in_order_and_the_rest_at_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    def minute(number: float) -> datetime:
        return START + timedelta(minutes=number)

    write_file(tmp_path / "in", 0, [("ann", 1, minute(0)), ("bob", 1, minute(3))])
    write_file(tmp_path / "in", 1, [("ann", 1, minute(4)), ("eve", 1, minute(7))])
    write_file(tmp_path / "in", 2, [("ann", 5, minute(8.5))])
    write_file(tmp_path / "in", 3, [("fay", 1, minute(60))])

    ms.run(
        flow_of(tmp_path, silent, follow=False, on_timer=report, time="at"), spark=spark, nodes=2
    )

    # ann's timer was moved twice before it was due.
    assert sorted(Rows(tmp_path / "out").read()) == [
        ("ann", 7, "idle"),
        ("bob", 1, "idle"),
        ("eve", 1, "idle"),
        ("fay", 1, "idle"),
    ]


def test_timers_that_were_due_during_a_stop_fire_after_it_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    def later(user: str, rows: list[Any], state: Any) -> None:
        state["n"] = state.get("n", 0) + sum(row.n for row in rows)
        state.timers.set("b", after=timedelta(seconds=4))
        state.timers.set("a", after=timedelta(seconds=4))

    def each(user: str, timer: ms.Timer, state: Any) -> Iterator[tuple[str, int, str]]:
        state["fired"] = state.get("fired", 0) + 1
        yield user, state["fired"], timer.name

    write_file(tmp_path / "in", 0, [("ann", 1, START)])
    flow = flow_of(tmp_path, later, follow=True, on_timer=each)
    options: dict[str, Any] = {"spark": spark, "nodes": 1, "checkpoint": tmp_path / "checkpoint"}
    rows = Rows(tmp_path / "out")
    with ms.start(flow, **options) as run:
        awaited(run, lambda: run.state("reports").get("ann") is not None)
        waiting = run.state("reports").get("ann").timers
    if not rows.read():  # the usual case; a slow machine may have fired them already
        assert [timer.name for timer in waiting] == ["a", "b"]
    with ms.start(flow, **options) as run:
        awaited(run, lambda: len(rows.read()) >= 2)
        state = run.state("reports").get("ann")

    assert rows.read() == [("ann", 1, "a"), ("ann", 2, "b")]
    assert state == {"n": 1, "fired": 2} and state.timers == []


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["epoch", "interval"])
def test_a_killed_node_costs_no_timer(
    spark: SparkSession, tmp_path: Path, durability: Durability
) -> None:
    victim = tmp_path / "victim"
    epochs, users = 6, [f"u{number}" for number in range(40)]
    expected = []
    for epoch in range(epochs):
        moment = START + timedelta(minutes=6 * epoch)
        some = users[epoch % 3 :: 3]
        write_file(tmp_path / "in", epoch, [(user, epoch + 1, moment) for user in some])
        expected += [(user, epoch + 1, "idle") for user in some]

    def deadly(user: str, rows: list[Any], state: Any) -> None:
        if max(row.n for row in rows) == 4 and once(tmp_path / "killed"):
            os.kill(int(victim.read_text()), signal.SIGKILL)
        silent(user, rows, state)

    flow = flow_of(tmp_path, deadly, follow=False, on_timer=report, time="at")
    with ms.start(
        flow,
        spark=spark,
        nodes=3,
        replicas=1,
        slots=64,
        checkpoint=tmp_path / "checkpoint",
        durability=durability,
        checkpoint_every=timedelta(seconds=0.5),
        every=timedelta(seconds=0.2),
    ) as run:
        victim.write_text(str(run.status().nodes[1].pid))
        run.await_termination()
        lost = run.status().lost

    assert len(lost) == 1
    assert sorted(Rows(tmp_path / "out").read()) == sorted(expected)

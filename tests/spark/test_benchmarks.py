"""The benchmarks' own contenders run, and count right."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import durability, observe, overhead, recovery
from benchmarks.course import Course
from benchmarks.durability import Counted, Durable
from benchmarks.goals import Goal
from benchmarks.overhead import Copied
from benchmarks.paced import Pace, Writer, latencies
from benchmarks.peers import workload_forms
from benchmarks.peers.contender import Contender
from benchmarks.peers.ours import BuiltinArrow, BuiltinSql, StatefulFunction
from benchmarks.peers.paced_forms import on_millstream, on_spark
from benchmarks.peers.protocol import Ran, Task
from benchmarks.peers.spark import (
    ChangelogCount,
    GroupByCount,
    PandasWithState,
    TransformWithState,
    TransformWithStatePandas,
)
from benchmarks.ranges import write_input
from benchmarks.workloads.catalog import Rows

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Undo what a process does that becomes a node: see ``tune_node_process``."""
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize(
    "contender",
    [
        StatefulFunction(),
        BuiltinArrow(),
        BuiltinSql(),
        GroupByCount(),
        ChangelogCount(),
        PandasWithState(),
        TransformWithState(),
        TransformWithStatePandas(),
        StatefulFunction(payload=100, replicas=0),
        Durable("builtin", "off"),
        Copied(2, "epoch"),
        Copied(2, "interval"),
    ],
    ids=lambda contender: contender.name,
)
def test_the_contender_counts_right_and_is_timed(
    spark: SparkSession, tmp_path: Path, contender: Contender
) -> None:
    course = Course(spark, tmp_path)
    text = course.text(epochs=2, words_per_epoch=2_000)

    measured = course.run(contender, text)

    assert len(measured.triggers) == 2


@pytest.mark.parametrize("form", [on_spark, on_millstream])
def test_records_at_a_rate_reach_an_output(
    spark: SparkSession, tmp_path: Path, form: Callable[[SparkSession, Task], Ran]
) -> None:
    pace = Pace(seconds=0.5)
    task = Task(
        form="",
        folder=str(tmp_path / "in"),
        files=pace.files,
        epochs=1,
        work=str(tmp_path / "work"),
        records=pace.records,
        patience=60.0,
    )

    with Writer(pace, tmp_path / "in") as writer:
        ran = form(spark, task)

    assert ran.reached[-1] == pace.records - 1
    found = latencies(pace, writer.start, ran.ends, ran.reached, settling=0.0)
    assert len(found) == pace.records and min(found) > 0


@pytest.mark.parametrize("name", ["sessions", "nexmark_q8", "trending"])
def test_a_workload_has_one_answer_on_both_engines(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    recording = Rows(epochs=2, rows_per_epoch=200).record(name, tmp_path / "in")
    answers = []
    for number, form in enumerate((workload_forms.on_spark, workload_forms.on_millstream)):
        task = Task(
            form="workload",
            folder=str(recording.folder),
            files=4,
            epochs=2,
            work=str(tmp_path / f"work{number}"),
            answer=str(tmp_path / f"answer{number}"),
            options=recording.options,
        )
        ran = form(spark, task)
        assert len(ran.ends) == 2
        answers.append(recording.read_answer(Path(task.answer)))

    assert answers[0].num_rows > 0
    assert answers[0].equals(answers[1])


def test_what_a_contender_writes_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    course = Course(spark, tmp_path)
    text = course.text(epochs=3, words_per_epoch=2_000)
    written = {}
    for contender in (Durable("stateful", "epoch"), Durable("stateful", "off"), ChangelogCount()):
        counted = Counted(contender)
        course.run(counted, text)
        written[contender.name] = counted.written

    # Spark logs offsets, commits and sources of every epoch, each with a checksum; beside that
    # we have a manifest for it, and Spark two changelogs.
    assert written["stateful_epoch"].files >= 3 * (6 + 1)
    assert written[ChangelogCount.name].files >= 3 * (6 + 2)
    assert written["stateful_off"] == (0, 0)
    for name in ("stateful_epoch", ChangelogCount.name):
        assert written[name].bytes > 10_000


def test_the_cost_of_durability_is_measured(spark: SparkSession, tmp_path: Path) -> None:
    course = Course(spark, tmp_path)
    text = course.text(epochs=3, words_per_epoch=2_000)
    size = replace(durability.QUICK, rounds=1, tiny_rounds=1)
    those: list[Contender]
    those = [Durable("stateful", "off"), Durable("stateful", "epoch"), durability.Changelog()]

    taken = durability.in_turns(course, those, text, text, size)
    written = {
        ("builtin_epoch", "large"): durability.PerEpoch(2.0, 30.0),
        ("spark", "large"): durability.PerEpoch(4.0, 20.0),
    }
    reported = [*durability.times(taken), *durability.costs(taken), *durability.volumes(written)]
    results = {result.name: result.value for result in reported}

    off, epoch = (results[f"stateful_{mode}_words_per_second"] for mode in ("off", "epoch"))
    assert results["epoch_durability_cost"] == 1 - epoch / off
    assert results["stateful_epoch_manifest_ms"] > 0
    assert results["stateful_epoch_store_ms"] > 0
    assert results["spark_tiny_epoch_ms"] > 0
    assert (results["files_vs_spark"], results["bytes_vs_spark"]) == (0.5, 1.5)


def test_a_recovery_is_timed_and_exact(spark: SparkSession, tmp_path: Path) -> None:
    given = write_input(tmp_path / "input", keys=2_000, epochs=150)
    cell = recovery.Cell(failures=3, keys=2_000)

    recovery.measure(spark, cell, given, tmp_path / "run", 0.5)
    results = {result.name: result for result in recovery.our_results([cell])}

    assert results["recovery_s_3f_2k"].value > 0
    assert results["flat_failures"].value == results["flat_keys"].value == 1
    assert isinstance(results["recovery_s_3f_2k"], Goal)


def test_the_cost_of_the_http_api_is_measured(spark: SparkSession, tmp_path: Path) -> None:
    size = replace(observe.QUICK, words_per_epoch=2_000, text_epochs=3, warm=2, pairs=2, turn=4)
    results = {result.name: result.value for result in observe.api(spark, tmp_path, size)}

    assert results["epoch_ms_with_api"] > 0 and results["epoch_ms_without_api"] > 0
    assert results["observe_cost_uncertainty"] >= 0
    assert "observe_cost" in results


SMALL = replace(overhead.QUICK, checkpoint_keys=2_000, pause_keys=2_000, pause_seconds=0.5)


def test_the_size_of_checkpoints_is_measured() -> None:
    results = {result.name: result for result in overhead.checkpoint_sizes(SMALL)}

    assert results["delta_share_2s"].value > results["delta_share_1s_15k"].value > 0


def test_the_longest_pause_is_measured(tmp_path: Path) -> None:
    results = {result.name: result for result in overhead.pauses(tmp_path, SMALL)}

    assert results["max_pause_ms"].value > 0

"""Exactly once on real Spark: whatever fails, state and outputs equal the batch answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import millstream as ms
from millstream.coordinator.receipt_collector import ReceiptCollector
from millstream.errors import MillstreamError
from millstream.wire.flight_net import FlightNet
from millstream.work.failures import UserFunctionError
from tests.spark.words import Outcome, count, expected_counts, once, run_to_end, split, write_books

pytestmark = pytest.mark.spark

Map = Callable[[str], Iterator[tuple[str, int]]]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    return write_books(tmp_path)


def counting(
    books: Path, outcome: Outcome, map: Map = split, reduce: object = count
) -> ms.Workflow:
    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=2))
    counts = lines.map_reduce("count", map=map, reduce=reduce)
    counts.sink("out", ms.write.callback(lambda rows, epoch: outcome.rows.update({epoch: rows})))
    return flow


def check(spark: SparkSession, books: Path, map: Map = split, reduce: object = count) -> Outcome:
    """Run, and compare state and outputs with the batch answer."""
    seen = Outcome()
    outcome = run_to_end(spark, counting(books, seen, map, reduce), "count")
    expected = expected_counts(books)
    assert {word: state["n"] for word, state in outcome.state["count"].items()} == expected
    assert seen.newest == expected
    assert sorted(seen.rows) == [0, 1, 2]
    for rows in seen.rows.values():
        assert len({row[0] for row in rows}) == len(rows)
    return seen


def test_a_run_without_faults_equals_the_batch_result(spark: SparkSession, books: Path) -> None:
    check(spark, books)


def test_a_map_task_that_fails_twice_counts_nothing_twice(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    def fragile(line: str) -> Iterator[tuple[str, int]]:
        for at, word in enumerate(line.split()):
            if at == 3 and once(tmp_path / "map", times=2):
                raise OSError("a disk hiccup")
            yield word, 1

    check(spark, books, map=fragile)
    assert len(list(tmp_path.glob("map.*"))) == 2


def sabotaged(marker: Path, fault: Callable[[Any, tuple[Any, ...]], Any]) -> Map:
    """A map that also breaks the feed of its own worker process, once."""

    def map(line: str) -> Iterator[tuple[str, int]]:
        original = getattr(FlightNet.feed, "original", FlightNet.feed)

        def broken(*arguments: Any) -> Any:
            return fault(original, arguments) if once(marker) else original(*arguments)

        broken.original = original  # type: ignore[attr-defined]
        FlightNet.feed = broken  # type: ignore[method-assign, assignment]
        yield from split(line)

    return map


def test_a_reduce_task_killed_after_half_of_its_blocks_counts_nothing(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    def die_halfway(original: Any, arguments: tuple[Any, ...]) -> None:
        net, primary, _, rows, _, _ = arguments
        import pickle

        import pyarrow.flight as flight

        from millstream.wire.auth import new_nonce
        from millstream.wire.calls import client_of

        header = new_nonce() + pickle.dumps(primary.header)
        command = flight.FlightDescriptor.for_command(header)
        writer, _ = client_of(net.endpoint(primary.address)).do_exchange(command)
        writer.begin(rows.schema)
        for batch in rows.slice(0, max(1, rows.num_rows // 2)).to_batches():
            writer.write_batch(batch)
        os.kill(os.getpid(), signal.SIGKILL)

    check(spark, books, map=sabotaged(tmp_path / "half", die_halfway))
    assert list(tmp_path.glob("half.*"))


def test_a_reduce_task_that_fails_after_half_of_its_blocks_counts_nothing(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    def fail_halfway(original: Any, arguments: tuple[Any, ...]) -> None:
        net, primary, copies, rows, end, abandoned = arguments
        original(net, primary, copies, rows.slice(0, rows.num_rows // 2), end, abandoned)

    check(spark, books, map=sabotaged(tmp_path / "half", fail_halfway))
    assert list(tmp_path.glob("half.*"))


def test_a_reduce_task_killed_after_all_of_its_blocks_counts_once(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    def die_after(original: Any, arguments: tuple[Any, ...]) -> None:
        original(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    check(spark, books, map=sabotaged(tmp_path / "all", die_after))
    assert list(tmp_path.glob("all.*"))


def sinking(books: Path, look: Callable[[DataFrame, int], object]) -> ms.Workflow:
    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=2))
    counts = lines.map_reduce("count", map=split, reduce=count)
    counts.sink("out", ms.write.foreach_batch(look))
    return flow


def lose_map_outputs(spark: SparkSession) -> None:
    """Forget what map tasks have written, as when their executors are lost: they run again."""
    context: Any = spark.sparkContext._jsc
    cleaner = context.sc().cleaner().get()
    for shuffle in range(10_000):
        cleaner.doCleanupShuffle(shuffle, True)


def test_a_sink_that_evaluates_twice_sees_the_same_rows_and_counts_once(
    spark: SparkSession, books: Path
) -> None:
    seen: dict[int, tuple[Any, Any]] = {}

    def twice(frame: DataFrame, epoch: int) -> None:
        first = frame.collect()
        lose_map_outputs(spark)
        seen[epoch] = (first, frame.select("*").collect())

    outcome = run_to_end(spark, sinking(books, twice), "count")

    assert {w: s["n"] for w, s in outcome.state["count"].items()} == expected_counts(books)
    assert all(first and sorted(first) == sorted(second) for first, second in seen.values())


@pytest.mark.parametrize("look", ["part", "nothing"])
def test_a_sink_that_reads_a_part_or_nothing_still_counts_everything(
    spark: SparkSession, books: Path, look: str
) -> None:
    def some(frame: DataFrame, epoch: int) -> None:
        if look == "part":
            frame.limit(1).collect()

    outcome = run_to_end(spark, sinking(books, some), "count")

    assert {w: s["n"] for w, s in outcome.state["count"].items()} == expected_counts(books)


def test_state_that_is_mutated_in_place_is_stored_once(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    def careless(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
        parts = state.get("parts")
        if parts is None:
            parts = state["parts"] = []
        parts.append(sum(ones))
        state["n"] = sum(parts)
        if once(tmp_path / "reduce", times=2):
            raise OSError("after the mutation")
        yield word, state["n"]

    check(spark, books, reduce=careless)
    assert len(list(tmp_path.glob("reduce.*"))) == 2


def test_clearing_and_setting_again_leaves_only_the_new_entries(
    spark: SparkSession, books: Path
) -> None:
    def renewed(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
        total = state.get("n", 0) + sum(ones)
        stale = "old" in state
        state.clear()
        state["n"] = total
        if not stale:
            state["old" if total % 2 else "odd"] = True
        yield word, total

    outcome = run_to_end(spark, counting(books, Outcome(), reduce=renewed), "count")

    assert {w: s["n"] for w, s in outcome.state["count"].items()} == expected_counts(books)
    assert all(len(state) <= 2 for state in outcome.state["count"].values())


def test_a_user_exception_in_mid_epoch_leaves_the_epoch_undone(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    def doomed(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
        state["epochs"] = state.get("epochs", 0) + 1
        state["n"] = state.get("n", 0) + sum(ones)
        yield word, state["n"]
        if state["epochs"] == 2 and word == "w3":
            raise ValueError("no more w3")

    out = tmp_path / "out"
    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=2))
    lines.map_reduce("count", map=split, reduce=doomed).sink("out", ms.write.parquet(out))
    run = ms.start(flow, spark=spark, nodes=2, partitions=4)
    with run:
        with pytest.raises(UserFunctionError) as caught:
            run.await_termination()

    assert "no more w3" in str(caught.value) and "'w3'" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)
    visible = spark.read.parquet(str(out)).select("epoch").distinct().collect()
    assert [row.epoch for row in visible] == [0]


def test_a_map_that_is_not_deterministic_is_detected(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    def moody(line: str) -> Iterator[tuple[str, int]]:
        yield from split(line)
        yield "extra", int.from_bytes(os.urandom(4))

    def twice(frame: DataFrame, epoch: int) -> None:
        frame.collect()
        lose_map_outputs(spark)
        frame.select("*").collect()

    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=2))
    lines.map_reduce("count", map=moody, reduce=count).sink("out", ms.write.foreach_batch(twice))
    with ms.start(flow, spark=spark, nodes=2, partitions=4) as run:
        with pytest.raises(MillstreamError, match="deterministic"):
            run.await_termination()


def test_a_map_that_yields_no_pair_is_an_error_with_file_and_line(
    spark: SparkSession, books: Path
) -> None:
    def wrong(line: str) -> Iterator[Any]:
        yield line

    with ms.start(counting(books, Outcome(), map=wrong), spark=spark, nodes=1) as run:
        with pytest.raises(MillstreamError, match="not a \\(key, value\\) pair") as caught:
            run.await_termination()

    assert f"{__file__}:{wrong.__code__.co_firstlineno}" in str(caught.value)


def test_a_value_that_does_not_fit_names_job_key_and_type(spark: SparkSession, books: Path) -> None:
    def mixed(word: str, ones: list[int], state: Any) -> Iterator[Any]:
        yield word, "many" if word == "w5" else len(ones)

    flow = counting(books, Outcome(), reduce=mixed)
    with ms.start(flow, spark=spark, nodes=1) as run:
        with pytest.raises(MillstreamError) as caught:
            run.await_termination()
    assert "'out' has the columns" in str(caught.value)
    assert "value int" in str(caught.value) and "('w5', 'many')" in str(caught.value)


def test_arrow_reducers_have_state_rows(spark: SparkSession, books: Path) -> None:
    def total(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        new = rows.group_by("key").aggregate([("value", "sum")])
        new = new.rename_columns({"value_sum": "n"})
        if state.num_rows:
            new = pa.concat_tables([state.select(["key", "n"]), new.select(["key", "n"])])
            new = new.group_by("key").aggregate([("n", "sum")]).rename_columns({"n_sum": "n"})
        return new, new

    outcome = run_to_end(spark, counting(books, Outcome(), reduce=ms.arrow(total)), "count")

    assert {w: s["n"] for w, s in outcome.state["count"].items()} == expected_counts(books)


def test_an_epoch_without_all_receipts_runs_again_as_the_next_try(
    spark: SparkSession, books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = ReceiptCollector._collect

    def forgetful(self: ReceiptCollector) -> Any:
        record = self._run.ledger.record
        assert record is not None
        return {} if record.at == (1, 0) else collect(self)

    monkeypatch.setattr(ReceiptCollector, "_collect", forgetful)
    seen = Outcome()
    with ms.start(counting(books, seen), spark=spark, nodes=2, partitions=4) as run:
        run.await_termination()
        counted = {word: state["n"] for word, state in run.state("count").items()}
        assert [report.tries for report in run.progress.recent] == [1, 2, 1]

    assert counted == seen.newest == expected_counts(books)

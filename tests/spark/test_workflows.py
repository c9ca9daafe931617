"""Workflows of many shapes on real Spark, against plain Python."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import millstream as ms
from millstream.coordinator.run_context import RunEndedError
from millstream.errors import ConfigError, MillstreamError, WorkflowError
from tests.spark.words import count, expected_counts, run_to_end, split, write_books

pytestmark = pytest.mark.spark


@pytest.fixture
def books(tmp_path: Path) -> Path:
    return write_books(tmp_path)


def numbers(count: int = 60, per_epoch: int = 20) -> Any:
    rows = [{"n": n, "name": f"k{n % 5}", "amount": n * 0.5} for n in range(count)]
    return ms.read.replay(rows, rows_per_epoch=per_epoch)


def test_a_diamond_with_a_skipped_level_equals_the_batch_result(
    spark: SparkSession, books: Path
) -> None:
    def grown(word: Any, ones: list[int], state: Any) -> Iterator[tuple[Any, int]]:
        state["n"] = state.get("n", 0) + sum(ones)
        yield word, sum(ones)

    flow = ms.Workflow("diamond")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=3))
    words = lines.map_reduce("words", map=split, reduce=grown)
    lengths = words.map_reduce("lengths", map=lambda p: [(len(p[0]), p[1])], reduce=grown)
    tails = words.map_reduce("tails", map=lambda p: [(p[0][-1], p[1])], reduce=grown)
    # The sources reach this job over two levels of jobs, and directly.
    direct = lines.map(lambda line: ("line", 1))
    everything = lengths.map(lambda p: ("length", p[1])).union(
        tails.map(lambda p: ("tail", p[1])), direct
    )
    everything.map_reduce("totals", reduce=ms.sum())

    outcome = run_to_end(spark, flow, "words", "lengths", "tails", "totals")

    expected = expected_counts(books)
    total = sum(expected.values())
    lines_read = sum(len(book.read_text().splitlines()) for book in books.iterdir())
    by_tail: Counter[str] = Counter()
    for word, n in expected.items():
        by_tail[word[-1]] += n
    assert {k: s["n"] for k, s in outcome.state["words"].items()} == expected
    assert {k: s["n"] for k, s in outcome.state["tails"].items()} == by_tail
    assert outcome.state["totals"] == {"length": total, "tail": total, "line": lines_read}


def test_several_sinks_see_their_own_streams(
    spark: SparkSession, books: Path, tmp_path: Path
) -> None:
    seen: list[Any] = []
    flow = ms.Workflow("sinks")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=3))
    counts = lines.map_reduce("count", map=split, reduce=count)
    counts.sink("counts", ms.write.parquet(tmp_path / "counts"))
    counts.filter(lambda pair: pair[0] == "w1").sink("one", ms.write.json(tmp_path / "one"))
    lines.map(str.upper).sink("upper", ms.write.callback(lambda rows, epoch: seen.extend(rows)))

    run_to_end(spark, flow)

    expected = expected_counts(books)
    rows = spark.read.parquet(str(tmp_path / "counts")).where("epoch = 1").collect()
    assert {row.key: row.value for row in rows} == expected
    assert spark.read.json(str(tmp_path / "one")).where("epoch = 1").first().value == expected["w1"]  # type: ignore[union-attr]
    assert sorted(row[0] for row in seen) == sorted(
        line.upper() for book in books.iterdir() for line in book.read_text().splitlines()
    )


def test_python_arrow_and_jvm_steps_mix_in_any_order(spark: SparkSession) -> None:
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"key": batch["key"], "value": pc.multiply(batch["value"], 2)})

    def only_even(frame: DataFrame) -> DataFrame:
        return frame.where(sf.col("value") % 4 == 0)

    def grown(key: str, values: list[int], state: Any) -> Iterator[tuple[str, int]]:
        yield key, sum(values)

    flow = ms.Workflow("mixed")
    stream = flow.source("numbers", numbers()).map(ms.sql("n", "name", where="n < 50"))
    pairs = stream.map(lambda row: (row.name, row.n)).map(ms.arrow(doubled))
    pairs = pairs.map(ms.dataframe(only_even)).map(lambda pair: (pair.key, pair.value + 1))
    first = pairs.map_reduce("first", reduce=grown)
    later = first.map(ms.sql("substr(key, 2, 1) AS key", "value * 10 AS value"))
    later.map_reduce("second", reduce=ms.sum())

    outcome = run_to_end(spark, flow, "second")

    expected: Counter[str] = Counter()
    for n in range(50):
        if n * 2 % 4 == 0:
            expected[str(n % 5)] += (n * 2 + 1) * 10
    assert outcome.state["second"] == expected


def test_two_sources_of_different_columns_meet(spark: SparkSession) -> None:
    flow = ms.Workflow("meeting")
    left = flow.source("left", numbers()).map(lambda row: (row.name, row.n))
    right = flow.source("right", ms.read.replay([{"who": "k1", "much": 1000}], rows_per_epoch=1))
    both = left.union(right.map(lambda row: (row.who, row.much)))
    both.map_reduce("total", reduce=ms.aggregate(total=ms.sum(), n=ms.count()))

    outcome = run_to_end(spark, flow, "total")

    expected = {f"k{k}": {"total": sum(range(k, 60, 5)), "n": 12} for k in range(5)}
    expected["k1"] = {"total": expected["k1"]["total"] + 1000, "n": 13}
    assert outcome.state["total"] == expected


def test_a_users_streaming_dataframe_is_a_source(spark: SparkSession, books: Path) -> None:
    frame = spark.readStream.option("maxFilesPerTrigger", 3).text(str(books))
    flow = ms.Workflow("frame")
    words = flow.source("lines", frame).map(ms.sql("explode(split(value, ' ')) AS key"))
    words.map_reduce("count", reduce=ms.count())
    with ms.start(flow, spark=spark, nodes=1) as run:
        deadline = time.monotonic() + 60
        while run.status().committed < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert dict(run.state("count").items()) == expected_counts(books)
        assert run.status().phase == "running"
        run.stop()
        assert run.status().phase == "stopped"


@dataclass
class Basket:
    """A user's own class, as value and as state."""

    things: list[str]


def test_objects_of_users_classes_travel_and_stay(spark: SparkSession) -> None:
    def gather(key: int, baskets: list[Basket], state: Any) -> None:
        kept = state.get("basket", Basket([]))
        for basket in baskets:
            kept.things.extend(basket.things)
        state["basket"] = kept

    flow = ms.Workflow("objects")
    stream = flow.source("numbers", numbers())
    baskets = stream.map(lambda row: Basket([row.name]))
    baskets.key_by(lambda basket: len(basket.things[0])).reduce("gather", gather)

    outcome = run_to_end(spark, flow, "gather")

    things = outcome.state["gather"][2]["basket"].things
    assert Counter(things) == {f"k{k}": 12 for k in range(5)}


@pytest.mark.parametrize(
    "key",
    [
        lambda row: (row.name, row.n % 2),
        lambda row: None if row.n % 2 else row.name,
        lambda row: row.n % 3 == 0,
        lambda row: float("nan") if row.n % 2 else -0.0,
        lambda row: date(2024, 1, 1 + row.n % 3),
        lambda row: row.name.encode(),
    ],
    ids=["tuple", "null", "bool", "float", "date", "bytes"],
)
def test_keys_of_every_kind_count_right(spark: SparkSession, key: Any) -> None:
    flow = ms.Workflow("keys")
    flow.source("numbers", numbers()).key_by(key).reduce("count", ms.count())

    outcome = run_to_end(spark, flow, "count")

    @dataclass
    class Row:
        n: int
        name: str

    expected = Counter(repr(key(Row(n, f"k{n % 5}"))).replace("-0.0", "0.0") for n in range(60))
    assert Counter({repr(k): n for k, n in outcome.state["count"].items()}) == expected


def test_combine_and_combinables_equal_reducing_all_values(spark: SparkSession) -> None:
    def total(key: str, values: list[float], state: Any) -> Iterator[tuple[str, float]]:
        state["sum"] = state.get("sum", 0.0) + sum(values)
        yield key, state["sum"]

    longest = ms.combinable(
        zero=list, add=lambda acc, v: [*acc, v], merge=lambda a, b: a + b, result=sorted
    )
    flow = ms.Workflow("combine")
    stream = flow.source("numbers", numbers())
    pairs = stream.map(lambda row: (row.name, row.amount))
    pairs.map_reduce("combined", combine=lambda key, values: sum(values), reduce=total)
    pairs.map_reduce("plain", reduce=total)
    pairs.map_reduce("all", reduce=longest)
    stream.map_reduce(
        "builtin",
        key="name",
        reduce=ms.aggregate(
            n=ms.count(), low=ms.min("amount"), top=ms.top_k(2, "n"), kinds=ms.distinct("n")
        ),
    )

    outcome = run_to_end(spark, flow, "combined", "plain", "all", "builtin")

    values: dict[str, list[float]] = defaultdict(list)
    for n in range(60):
        values[f"k{n % 5}"].append(n * 0.5)
    assert outcome.state["combined"] == {k: {"sum": sum(v)} for k, v in values.items()}
    assert outcome.state["plain"] == outcome.state["combined"]
    assert outcome.state["all"] == {k: sorted(v) for k, v in values.items()}
    assert outcome.state["builtin"]["k3"] == {"n": 12, "low": 1.5, "top": [58, 53], "kinds": 12}


def test_idle_keys_expire_even_when_the_stream_is_silent(spark: SparkSession) -> None:
    flow = ms.Workflow("ttl")
    rows = flow.source("rows", ms.read.rate(rows_per_second=50))
    early = rows.filter(lambda row: row.value < 50).map(lambda row: (row.value % 7, 1))
    early.map_reduce("count", reduce=ms.count(), ttl=timedelta(seconds=1))
    early.map_reduce("keep", reduce=ms.count())
    with ms.start(flow, spark=spark, nodes=1) as run:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            kept, forgotten = dict(run.state("keep").items()), dict(run.state("count").items())
            if sum(kept.values()) == 50 and not forgotten:
                break
            time.sleep(0.2)
        assert sum(kept.values()) == 50 and not forgotten


def test_state_is_read_key_by_key_and_progress_counts(spark: SparkSession, books: Path) -> None:
    flow = ms.Workflow("reading")
    lines = flow.source("lines", ms.read.text(books, max_files_per_epoch=2))
    lines.map_reduce("count", map=split, reduce=count)
    with ms.start(flow, spark=spark, nodes=2) as run:
        run.await_termination()
        expected = expected_counts(books)

        assert run.state("count").get("w1") == {"n": expected["w1"]}
        assert run.state("count").get("nobody", "nothing") == "nothing"
        totals = run.progress.totals
        assert (totals.epochs, totals.rows) == (3, sum(expected.values()))
        last = run.progress.last
        assert last is not None and last.jobs["count"].state_keys == len(expected)
        status = run.status()
        assert (status.phase, status.committed, len(status.nodes)) == ("finished", 2, 2)
        assert sum(node.slots for node in status.nodes) == 4096
        with pytest.raises(ConfigError, match="the jobs are count"):
            run.state("cuont")


def test_a_workflow_with_sparks_own_state_is_rejected(spark: SparkSession, books: Path) -> None:
    def aggregating(frame: DataFrame) -> DataFrame:
        return frame.groupBy("value").count()

    flow = ms.Workflow("twofold")
    lines = flow.source("lines", ms.read.text(books))
    counted = lines.map(ms.dataframe(aggregating))
    counted.map_reduce("again", key="value", reduce=ms.count())

    with pytest.raises(WorkflowError, match="groupBy"):
        ms.run(flow, spark=spark, nodes=1)


def test_jvm_steps_with_python_between_lose_nothing(spark: SparkSession) -> None:
    seen: list[Any] = []
    flow = ms.Workflow("back-and-forth")
    stream = flow.source("numbers", numbers()).map(lambda row: (row.name, row.n))
    doubled = stream.map(ms.sql("key", "value * 2 AS value")).map(lambda row: (row.key, row.value))
    last = doubled.map(ms.sql("key", "value + 1 AS value", where="value >= 100"))
    last.sink("out", ms.write.callback(lambda rows, epoch: seen.extend(rows)))

    run_to_end(spark, flow)

    assert sorted(row.value for row in seen) == [n * 2 + 1 for n in range(50, 60)]


def test_a_sink_that_gets_nothing_at_first_is_written_when_it_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = ms.Workflow("late")
    late = flow.source("numbers", numbers()).filter(lambda row: row.n >= 45)
    late.map(lambda row: (row.name, row.n)).sink("out", ms.write.parquet(tmp_path / "out"))

    run_to_end(spark, flow)

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.value, row.epoch) for row in rows) == [(n, 2) for n in range(45, 60)]


def test_a_column_that_is_none_in_every_row_must_be_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = ms.Workflow("void")
    stream = flow.source("numbers", numbers())
    stream.map(lambda row: {"n": row.n, "why": None}).sink(
        "out", ms.write.parquet(tmp_path / "out")
    )

    with pytest.raises(MillstreamError, match=r"why .type unknown.*declare output="):
        ms.run(flow, spark=spark, nodes=1)


def test_paced_recordings_each_play_to_their_end(spark: SparkSession) -> None:
    flow = ms.Workflow("paced")
    slow = flow.source("slow", ms.read.replay([{"k": "slow"}] * 6, rate=3.0))
    fast = flow.source("fast", ms.read.replay([{"k": "fast"}] * 500, rate=1000.0))
    rest = flow.source("rest", ms.read.replay([{"k": "rest"}] * 50, rows_per_epoch=10))
    slow.union(fast, rest).map_reduce("count", key="k", reduce=ms.count())

    outcome = run_to_end(spark, flow, "count")

    assert outcome.state["count"] == {"slow": 6, "fast": 500, "rest": 50}


def test_a_sinks_function_may_stop_the_run(spark: SparkSession) -> None:
    runs: list[ms.Run] = []
    seen: list[int] = []

    def enough(rows: list[Any], epoch: int) -> None:
        seen.append(epoch)
        if epoch == 1:
            runs[0].stop()

    flow = ms.Workflow("enough")
    rows = flow.source("rows", ms.read.rate(rows_per_second=20))
    counts = rows.map_reduce("count", map=lambda row: [(f"k{row.value % 3}", 1)], reduce=count)
    counts.sink("out", ms.write.callback(enough))
    runs.append(ms.start(flow, spark=spark, nodes=1))
    with runs[0] as run:
        run.await_termination()
        assert run.status().phase == "stopped"
        assert seen[:2] == [0, 1] and len(seen) == 2


def test_objects_are_read_back_key_by_key_until_the_run_ends(spark: SparkSession) -> None:
    def keep(key: str, values: list[int], state: Any) -> None:
        state["basket"] = Basket([key] * len(values))

    flow = ms.Workflow("baskets")
    flow.source("numbers", numbers()).map_reduce(
        "keep", map=lambda row: [(row.name, row.n)], reduce=keep
    )
    with ms.start(flow, spark=spark, nodes=2) as run:
        run.await_termination()
        assert run.state("keep").get("k1")["basket"].things == ["k1"] * 4
    with pytest.raises(RunEndedError, match="read state before stop"):
        run.state("keep").get("k1")

"""Splits, shared maps and shared panes on real Spark, against plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from tests.spark.words import run_to_end

pytestmark = pytest.mark.spark

START = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ROWS: list[dict[str, Any]] = [
    {"n": n, "name": f"k{n % 3}", "at": START + n * timedelta(seconds=20)} for n in range(90)
]


def named(row: Any) -> Iterator[tuple[str, int]]:
    yield row.name, row.n


def timed(row: Any) -> Iterator[tuple[str, int, datetime]]:
    yield row.name, row.n, row.at


def is_slow_path(row: Any) -> bool:
    return bool(row.n % 2)


def test_both_sides_of_a_split_and_jobs_with_one_map_equal_the_batch_result(
    spark: SparkSession,
) -> None:
    flow = ms.Workflow("split")
    odd, even = flow.source("rows", ms.read.replay(ROWS, rows_per_epoch=40)).split(is_slow_path)
    odd.map_reduce("odd", map=named, reduce=ms.sum())
    even.map_reduce("even", map=named, reduce=ms.sum())
    even.map_reduce("even_count", map=named, reduce=ms.count())

    outcome = run_to_end(spark, flow, "odd", "even", "even_count")

    sums: dict[int, Counter[str]] = defaultdict(Counter)
    counts: Counter[str] = Counter()
    for row in ROWS:
        sums[row["n"] % 2][row["name"]] += row["n"]
        counts[row["name"]] += row["n"] % 2 == 0
    assert outcome.state["odd"] == sums[1]
    assert outcome.state["even"] == sums[0]
    assert outcome.state["even_count"] == counts


def test_jobs_that_share_panes_each_emit_their_own_windows(spark: SparkSession) -> None:
    seen: dict[str, dict[tuple[str, datetime, datetime], int]] = {"short": {}, "long": {}}
    sizes = {"short": 2 * MINUTE, "long": 10 * MINUTE}
    flow = ms.Workflow("panes")
    rows = flow.source("rows", ms.read.replay(ROWS, rows_per_epoch=40))

    def note(name: str) -> Any:
        def callback(rows: list[Any], epoch: int) -> None:
            for row in rows:
                window = row.window_start.astimezone(UTC), row.window_end.astimezone(UTC)
                assert (row.key, *window) not in seen[name]
                seen[name][row.key, *window] = row.value

        return callback

    for name, size in sizes.items():
        job = rows.map_reduce(name, map=timed, reduce=ms.sum(), window=ms.tumbling(size))
        job.sink(f"{name}_out", ms.write.callback(note(name)))

    with ms.start(flow, spark=spark, nodes=2) as run:
        run.await_termination()
        progress = run.progress.recent

    assert {name: job.fused for name, job in progress[0].jobs.items()} == {"short": ("long",)}
    for name, size in sizes.items():
        expected: Counter[tuple[str, datetime, datetime]] = Counter()
        for row in ROWS:
            start = START + (row["at"] - START) // size * size
            expected[row["name"], start, start + size] += row["n"]
        found = {
            (k, s.astimezone(UTC), e.astimezone(UTC)): v for (k, s, e), v in seen[name].items()
        }
        assert found == expected

"""Windows in event time on Spark: what is set aside, and windows behind windows."""

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

START = datetime(2024, 5, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def row(n: int, at: datetime | None) -> dict[str, Any]:
    return {"n": n, "name": f"k{n % 3}", "at": at}


def test_values_that_windows_do_not_take_are_read_from_sides(spark: SparkSession) -> None:
    # Four rows an epoch; a watermark is known in the epoch after, and closes windows for good in
    # the one after that.
    rows = [row(n, START + n * MINUTE) for n in range(16)]
    rows[11] = row(11, START)
    rows[13] = row(13, START.replace(year=2324))
    rows[14] = row(14, None)
    flow = ms.Workflow("sides")
    source = flow.source("rows", ms.read.replay(rows, rows_per_epoch=4))
    job = source.map_reduce(
        "sums", reduce=ms.sum("n"), key="name", time="at", window=ms.tumbling(MINUTE)
    )
    seen: dict[str, list[Any]] = defaultdict(list)

    def collect(name: str) -> Any:
        return ms.write.callback(lambda rows, epoch: seen[name].extend(rows))

    job.late.map(lambda late: ("late", late.n)).sink("late", collect("late"))
    job.ahead.map(lambda ahead: ("ahead", ahead.n)).sink("ahead", collect("ahead"))
    job.untimed.map(lambda untimed: ("untimed", untimed.n)).sink("untimed", collect("untimed"))
    job.map(lambda result: (result.key, result.value)).sink("out", collect("sums"))

    run_to_end(spark, flow)

    aside = {name: [value for _, value in seen[name]] for name in ("late", "ahead", "untimed")}
    assert aside == {"late": [11], "ahead": [13], "untimed": [14]}
    taken = [n for n in range(16) if n not in (11, 13, 14)]
    assert sorted(seen["sums"]) == sorted((f"k{n % 3}", n) for n in taken)


def test_a_sparse_stream_loses_nothing(spark: SparkSession) -> None:
    rows = [row(n, START + n * timedelta(weeks=1)) for n in range(5)]
    flow = ms.Workflow("sparse")
    source = flow.source("rows", ms.read.replay(rows, rows_per_epoch=1))
    job = source.map_reduce(
        "sums", reduce=ms.sum("n"), key="name", time="at", window=ms.tumbling(MINUTE)
    )
    seen: list[int] = []
    job.sink("out", ms.write.callback(lambda rows, epoch: seen.extend(row.value for row in rows)))

    run_to_end(spark, flow)

    assert sorted(seen) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("results_read", [True, False])
def test_a_session_that_is_open_takes_late_values(spark: SparkSession, results_read: bool) -> None:
    # Values every minute keep the session of "a" open; that of "b" is over after its first value.
    rows = [{"name": "a", "n": n, "at": START + n * MINUTE} for n in range(24)]
    rows[0] = {"name": "b", "n": 0, "at": START}
    rows[17] = {"name": "a", "n": 17, "at": START + 150 * timedelta(seconds=1)}
    rows[18] = {"name": "b", "n": 18, "at": START + MINUTE}
    flow = ms.Workflow("late-sessions")
    source = flow.source("rows", ms.read.replay(rows, rows_per_epoch=4))
    job = source.map_reduce(
        "bursts", reduce=ms.sum("n"), key="name", time="at", window=ms.session(4 * MINUTE)
    )
    late: list[Any] = []
    job.late.map(lambda row: (row.key, row.n)).sink(
        "late", ms.write.callback(lambda rows, epoch: late.extend(rows))
    )
    sums: list[Any] = []
    if results_read:
        job.sink("out", ms.write.callback(lambda rows, epoch: sums.extend(rows)))

    with ms.start(flow, spark=spark, nodes=2, partitions=4) as run:
        run.await_termination()
        counted = [epoch.jobs["bursts"] for epoch in run.progress.recent]

    assert [tuple(row) for row in late] == [("b", 18)]
    assert sum(epoch.late for epoch in counted) == 1
    if results_read:
        assert sorted((row.key, row.value) for row in sums) == [
            ("a", sum(range(24)) - 18),
            ("b", 0),
        ]


def test_results_of_windows_have_the_event_time_for_later_windows(
    spark: SparkSession,
) -> None:
    rows = [row(n, START + n * timedelta(seconds=20)) for n in range(60)]
    flow = ms.Workflow("chained")

    def timed(record: Any) -> Iterator[tuple[str, int, datetime]]:
        yield record.name, record.n, record.at

    def spread(key: str, values: list[int], window: Any) -> Iterator[tuple[str, int]]:
        yield key, max(values) - min(values)

    source = flow.source("rows", ms.read.replay(rows, rows_per_epoch=15))
    short = source.map_reduce("short", map=timed, reduce=spread, window=ms.tumbling(2 * MINUTE))
    doubled = short.map(lambda pair: (pair[0], pair[1] * 2))
    long = doubled.map_reduce("long", reduce=ms.sum(), window=ms.tumbling(10 * MINUTE))
    seen: dict[tuple[str, datetime], int] = {}

    def note(rows: list[Any], epoch: int) -> None:
        for found in rows:
            assert (found.key, found.window_start.astimezone(UTC)) not in seen
            seen[found.key, found.window_start.astimezone(UTC)] = found.value

    long.sink("out", ms.write.callback(note))

    run_to_end(spark, flow)

    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for n in range(60):
        groups[f"k{n % 3}", n // 6].append(n)
    expected: Counter[tuple[str, datetime]] = Counter()
    for (name, short_window), values in groups.items():
        at = START + short_window // 5 * 10 * MINUTE
        expected[name, at] += 2 * (max(values) - min(values))
    assert seen == expected

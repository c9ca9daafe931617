"""Windows of all kinds on real Spark: when their results come, and what is in them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.checkpoints.evolution import WorkflowChangedError

pytestmark = pytest.mark.spark

START = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
PATIENCE = 60.0
EPOCH = 15


class Seen:
    """What sinks were given, by sink, in order; other threads can wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.rows: dict[str, list[Any]] = defaultdict(list)

    def sink(self, name: str) -> Any:
        def take(rows: list[Any], epoch: int) -> None:
            with self._changed:
                self.rows[name] += rows
                self._changed.notify_all()

        return ms.write.callback(take)

    def wait(self, name: str, number: int, run: ms.Run) -> list[Any]:
        """The rows of a sink, once there are so many of them."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while len(self.rows[name]) < number:
                assert run.status().phase == "running"
                assert time.monotonic() < deadline, f"{name}: {self.rows[name]}"
                self._changed.wait(0.5)
            return list(self.rows[name])


def windows(rows: Iterable[Any]) -> dict[tuple[str, datetime, datetime], int]:
    """The results of windows by key and bounds, each of which must have come once."""
    rows = list(rows)
    found = {
        (r.key, r.window_start.astimezone(UTC), r.window_end.astimezone(UTC)): r.value for r in rows
    }
    assert len(found) == len(rows)
    return found


def sums(
    rows: Iterable[dict[str, Any]], size: timedelta, slide: timedelta
) -> Counter[tuple[str, datetime, datetime]]:
    """The batch answer: for each key and window, the sum of its values."""
    found: Counter[tuple[str, datetime, datetime]] = Counter()
    for row in rows:
        start = START + (row["at"] - START) // slide * slide
        while start > row["at"] - size:
            found[row["name"], start, start + size] += row["n"]
            start -= slide
    return found


def sessions(rows: Iterable[dict[str, Any]], gap: timedelta) -> list[tuple[Any, ...]]:
    """The batch answer: bursts, with their bounds and values in the order of their times."""
    found: list[tuple[Any, ...]] = []
    for name in {row["name"] for row in rows}:
        mine = sorted((r for r in rows if r["name"] == name), key=lambda r: r["at"])
        bursts: list[list[dict[str, Any]]] = []
        for row in mine:
            if bursts and row["at"] - bursts[-1][-1]["at"] < gap:
                bursts[-1].append(row)
            else:
                bursts.append([row])
        found += [
            (name, burst[0]["at"], burst[-1]["at"] + gap, [row["n"] for row in burst])
            for burst in bursts
        ]
    return sorted(found, key=str)


def burst(key: str, values: list[int], window: Any) -> Iterator[tuple[str, str, str, str]]:
    yield key, window.start.isoformat(), window.end.isoformat(), str(values)


def table_sums(rows: pa.Table, window: ms.Window) -> pa.Table:
    """The sums of a window, for all keys at once."""
    found = rows.group_by("key").aggregate([("n", "sum")])
    bounds = {"window_start": window.start, "window_end": window.end}
    columns = {name: pa.array([at] * found.num_rows) for name, at in bounds.items()}
    return pa.table({"key": found["key"], "value": found["n_sum"], **columns})


def recording() -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Rows out of order, some of them twice, and three that no window of time takes."""
    rows: list[dict[str, Any]] = []
    for n in range(5 * EPOCH):
        pause = n // 10 * 7 * MINUTE  # so that sessions end
        back = -(n * 7 % 5) * timedelta(seconds=25)
        at = START + timedelta(hours=1) + n * timedelta(seconds=20) + pause + back
        rows.append({"n": n, "name": f"k{n % 3}", "at": at})
    for twice in (7, 30, 31):
        rows[twice + 6] = rows[twice]
    aside = {"late": 4 * EPOCH + 2, "ahead": EPOCH + 4, "untimed": 2 * EPOCH}
    rows[aside["late"]] = {"n": 1000, "name": "k0", "at": START}
    rows[aside["ahead"]] = {"n": 2000, "name": "k1", "at": START.replace(year=2226)}
    rows[aside["untimed"]] = {"n": 3000, "name": "k2", "at": None}
    return rows, aside


def by_key(rows: Iterable[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row.value)
    return found


def sums_so_far(rows: list[dict[str, Any]], aside: dict[str, int]) -> dict[str, list[int]]:
    """The batch answer: for each key, the sum of its values after every epoch."""
    found: dict[str, list[int]] = defaultdict(list)
    total: Counter[str] = Counter()
    for at, row in enumerate(rows):
        if at not in (aside["ahead"], aside["untimed"]):
            total[row["name"]] += row["n"]
        if (at + 1) % EPOCH == 0:
            for name, value in total.items():
                found[name].append(value)
    return found


def test_windows_of_all_kinds_equal_the_batch_result(spark: SparkSession) -> None:
    rows, aside = recording()
    seen = Seen()
    flow = ms.Workflow("kinds")
    source = flow.source("rows", ms.read.replay(rows, rows_per_epoch=EPOCH), lateness=10 * MINUTE)

    def job(name: str, window: Any, **options: Any) -> None:
        stream = source.map_reduce(
            name, **{"reduce": ms.sum("n"), "key": "name", "time": "at", **options}, window=window
        )
        stream.sink(f"{name}_out", seen.sink(name))

    def pair(row: Any) -> Iterator[tuple[str, int, datetime]]:
        yield row.name, row.n, row.at

    sliding, tumbling = ms.sliding(4 * MINUTE, MINUTE), ms.tumbling(10 * MINUTE)
    job("times", [sliding, tumbling])
    job("tables", sliding, reduce=ms.arrow(table_sums))
    bursts = source.flat_map(pair).key_by().window(ms.session(3 * MINUTE))
    bursts.reduce("bursts", burst, ordered=True).sink("bursts_out", seen.sink("bursts"))
    job("counted", ms.count_window(4, 2), reduce=ms.count())
    job("thirds", ms.global_window(ms.every(3)))
    job("totals", ms.global_window(ms.on_watermark()))
    with ms.start(flow, spark=spark, nodes=2, partitions=2) as run:
        run.await_termination()
        reports = [report.jobs for report in run.progress.recent]

    refused = {
        name: Counter(
            {
                kind: sum(getattr(jobs[name], kind) for jobs in reports)
                for kind in ("late", "ahead", "untimed")
            }
        )
        for name in ("times", "bursts", "counted", "thirds", "totals")
    }
    of_time = Counter({"late": 1, "ahead": 1, "untimed": 1})
    without_late = Counter({"late": 0, "ahead": 1, "untimed": 1})
    assert refused["times"] == refused["bursts"] == of_time
    assert refused["counted"] == refused["thirds"] == refused["totals"] == without_late

    taken = [row for at, row in enumerate(rows) if at not in aside.values()]
    expected = sums(taken, 4 * MINUTE, MINUTE) + sums(taken, 10 * MINUTE, 10 * MINUTE)
    assert windows(seen.rows["times"]) == expected
    assert windows(seen.rows["tables"]) == sums(taken, 4 * MINUTE, MINUTE)
    found = [
        (name, datetime.fromisoformat(start), datetime.fromisoformat(end), eval(values))
        for name, start, end, values in seen.rows["bursts"]
    ]
    assert sorted(found, key=str) == sessions(taken, 3 * MINUTE)

    ever = [row for at, row in enumerate(rows) if at not in (aside["ahead"], aside["untimed"])]
    number, total = Counter[str](), Counter[str]()
    for row in ever:
        number[row["name"]] += 1
        total[row["name"]] += row["n"]
    # A window of four begins with two, and goes on by two.
    counts = {name: [2, *[4] * (count // 2 - 1)] for name, count in number.items()}
    assert by_key(seen.rows["counted"]) == counts
    # Every epoch had three values of each key and more: its result is the sum so far.
    assert by_key(seen.rows["thirds"]) == sums_so_far(rows, aside)
    # There was always a newer value, until the end.
    assert by_key(seen.rows["totals"]) == {name: [value] for name, value in total.items()}


def test_open_windows_emit_early_results_and_processing_time_places_values(
    spark: SparkSession,
) -> None:
    rows: list[dict[str, Any]] = [
        {"n": n, "name": f"k{n % 2}", "at": START + n * SECOND} for n in range(40)
    ]
    seen = Seen()
    flow = ms.Workflow("early")
    source = flow.source("rows", ms.read.replay(rows, rows_per_epoch=10))
    day = ms.tumbling(timedelta(days=1))
    soon = timedelta(microseconds=1)
    by_name = source.key_by("name").window(day, time="at", early_every=soon)
    timely = by_name.reduce("timely", ms.sum("n"))
    timely.sink("timely_out", seen.sink("timely"))
    read = source.map_reduce(
        "read", reduce=ms.sum("n"), key="name", time=ms.processing_time, window=day
    )
    read.sink("read_out", seen.sink("read"))
    began = datetime.now(UTC)
    with ms.start(flow, spark=spark, nodes=2, partitions=2) as run:
        run.await_termination()

    total = Counter[str]()
    for row in rows:
        total[row["name"]] += row["n"]
    for name in total:
        mine = [row for row in seen.rows["timely"] if row.key == name]
        assert [row.timing for row in mine] == ["early"] * (len(mine) - 1) + ["on_time"]
        values = [row.value for row in mine]
        assert values == sorted(values) and values[-1] == total[name]
        assert values[0] < total[name]
    # A run at midnight has two windows.
    placed = Counter[str]()
    for row in seen.rows["read"]:
        placed[row.key] += row.value
        assert row.timing == "on_time"
        assert row.window_start.astimezone(UTC) >= began - timedelta(days=1)
    assert placed == total


def line(row: Any) -> Iterator[tuple[str, int, datetime]]:
    key, n, seconds = row.split()
    yield key, int(n), START + int(seconds) * SECOND


class Lines:
    """A folder of text files, each of which appears at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ready"
        self.folder.mkdir(parents=True)
        self._number = 0

    def add(self, *lines: str) -> None:
        self._number += 1
        made = self.folder.parent / f"{self._number}.txt"
        made.write_text("\n".join(lines) + "\n")
        made.rename(self.folder / made.name)


def test_a_silent_stream_closes_its_windows_and_so_does_the_users_word(
    spark: SparkSession, tmp_path: Path
) -> None:
    silent, waiting = Lines(tmp_path / "silent"), Lines(tmp_path / "waiting")
    silent.add("a 1 0", "a 2 1", "b 3 0")
    waiting.add("a 1 0", "a 2 59", "a 3 150")
    seen = Seen()
    flow = ms.Workflow("silent")
    hour = timedelta(hours=1)
    for name, lines, size, timing in (
        ("silent", silent, 2 * SECOND, {"idle_after": timedelta(milliseconds=10)}),
        ("waiting", waiting, MINUTE, {"idle_after": hour, "lateness": hour}),
    ):
        source = flow.source(f"{name}_lines", ms.read.text(lines.folder, follow=True), **timing)
        job = source.map_reduce(name, map=line, reduce=ms.sum(), window=ms.tumbling(size))
        job.sink(f"{name}_out", seen.sink(name))
    with ms.start(flow, spark=spark, nodes=2, partitions=2) as run:
        found = windows(seen.wait("silent", 2, run))
        assert found == {("a", START, START + 2 * SECOND): 3, ("b", START, START + 2 * SECOND): 3}
        assert seen.rows["waiting"] == []

        run.advance(START + MINUTE)
        found = windows(seen.wait("waiting", 1, run))
        assert found == {("a", START, START + MINUTE): 3}

        waiting.add("a 4 30", "b 5 90")
        until(run, lambda: sum(r.jobs["waiting"].late for r in run.progress.recent) == 1)
        run.advance(None)
        rest = windows(seen.wait("waiting", 3, run)[1:])
        assert rest == {
            ("a", START + 2 * MINUTE, START + 3 * MINUTE): 3,
            ("b", START + MINUTE, START + 2 * MINUTE): 5,
        }


def until(run: ms.Run, holds: Callable[[], bool]) -> None:
    """Wait for something that epochs bring about."""
    committed = threading.Event()
    run.progress.listen(lambda report: committed.set())
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert run.status().phase == "running" and time.monotonic() < deadline
        committed.wait(0.5)
        committed.clear()


def test_open_windows_resume_after_a_restart_and_changed_ones_are_rejected(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines, seen = Lines(tmp_path), Seen()
    short, long = ms.tumbling(10 * SECOND), ms.tumbling(MINUTE)

    def flow(*, follow: bool, sizes: dict[str, Any]) -> ms.Workflow:
        flow = ms.Workflow("again")
        source = flow.source("lines", ms.read.text(lines.folder, follow=follow))
        for name, window in sizes.items():
            job = source.map_reduce(name, map=line, reduce=ms.sum(), window=window)
            job.sink(f"{name}_out", seen.sink(name))
        return flow

    def start(flow: ms.Workflow) -> ms.Run:
        place = tmp_path / "checkpoint"
        return ms.start(flow, spark=spark, nodes=2, partitions=2, slots=64, checkpoint=place)

    both = {"short": short, "long": long}
    lines.add("a 1 0", "b 2 5", "a 4 25")
    with start(flow(follow=True, sizes=both)) as run:
        seen.wait("short", 2, run)
    # The first of these finds its short window closed, and its long one open.
    lines.add("a 64 3", "a 8 26", "b 16 40", "b 32 70")
    for changed in ({"short": short}, {"short": short, "long": ms.tumbling(2 * MINUTE)}):
        with pytest.raises(
            WorkflowChangedError, match=r"job 'short' \(with those of long\) is for win"
        ):
            start(flow(follow=False, sizes=changed))
    with start(flow(follow=False, sizes=both)) as run:
        run.await_termination()
    # At the end of input the windows up to 120 s were closed; the second of these is in none other.
    lines.add("a 128 130", "b 256 100")
    with start(flow(follow=False, sizes=both)) as run:
        run.await_termination()

    def at(seconds: int) -> datetime:
        return START + seconds * SECOND

    assert windows(seen.rows["short"]) == {
        ("a", at(0), at(10)): 1,
        ("b", at(0), at(10)): 2,
        ("a", at(20), at(30)): 12,
        ("b", at(40), at(50)): 16,
        ("b", at(70), at(80)): 32,
        ("a", at(130), at(140)): 128,
    }
    assert windows(seen.rows["long"]) == {
        ("a", at(0), at(60)): 77,
        ("b", at(0), at(60)): 18,
        ("b", at(60), at(120)): 32,
        ("a", at(120), at(180)): 128,
    }


def rank(key: str, values: list[int], window: Any, state: Any) -> Iterator[tuple[str, int, int]]:
    """The number of the window among those of its key, and the largest sum so far."""
    state["windows"] = state.get("windows", 0) + 1
    state["record"] = max(state.get("record", 0), sum(values))
    yield key, state["windows"], state["record"]


def test_state_of_a_windowed_function_outlives_windows_restarts_and_missing_readers(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines, seen = Lines(tmp_path), Seen()

    def run() -> ms.Run:
        flow = ms.Workflow("state")
        source = flow.source("lines", ms.read.text(lines.folder))
        windows = source.flat_map(line).key_by().window(ms.tumbling(10 * SECOND))
        windows.reduce("ranks", rank).sink("out", seen.sink("ranks"))
        windows.reduce("unread", rank)
        return ms.start(
            flow, spark=spark, nodes=2, partitions=2, checkpoint=tmp_path / "checkpoint"
        )

    lines.add("a 5 1", "a 3 12", "b 2 3", "a 9 25")
    with run() as first:
        first.await_termination()
    assert sorted(seen.rows["ranks"]) == [("a", 1, 5), ("a", 2, 5), ("a", 3, 9), ("b", 1, 2)]
    lines.add("a 1 41", "a 20 52", "b 1 45")
    with run() as second:
        second.await_termination()
        state = dict(second.state("ranks").items())
        assert state == dict(second.state("unread").items())
    assert sorted(seen.rows["ranks"][4:]) == [("a", 4, 9), ("a", 5, 20), ("b", 2, 2)]
    assert state == {
        "a": {"state": {"windows": 5, "record": 20}},
        "b": {"state": {"windows": 2, "record": 2}},
    }
    stored = ms.read_state(tmp_path / "checkpoint", "ranks", spark=spark).collect()
    assert {row.key for row in stored} == {"a", "b"}

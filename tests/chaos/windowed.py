"""What a chaos run with windows computes: the same lines, put in windows, and the batch answer.

The amounts of every user are added up in windows that overlap, and in longer ones, which share
their panes; behind them, the sums of a group of users are collected. Windows close one after the
other as the input goes on, so that some are open whenever something happens. Values come out of
order, but none is late; the answer does not depend on how the input was cut into epochs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.flow.sources import Source
from tests.chaos.workload import Answer, Rows, Shape, group_of, lines_of

JOBS = ("recent", "spans")
START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LATENESS = 30
SIZE, SLIDE, LONG, SPAN = 60, 20, 180, 120
"""Of windows, in seconds; there is a line in every second."""

Sums = Counter[tuple[str, int]]


def second_of(number: int) -> int:
    """The time of a line, out of order."""
    return LATENESS + number - number * 7 % LATENESS


def timed(line: str) -> Iterator[tuple[str, int, datetime]]:
    number, user, _, _, amount = line.split()
    yield user, int(amount), START + second_of(int(number)) * SECOND


def since_start(moment: datetime) -> int:
    return (moment.astimezone(UTC) - START) // SECOND


def reported(result: Any) -> tuple[str, int, int]:
    """A result of a built-in reducer, in the form of ``add_up``."""
    return result.key, since_start(result.window_start), result.value


def add_up(user: str, amounts: list[int], window: Any) -> Iterator[tuple[str, int, int]]:
    yield user, since_start(window.start), sum(amounts)


def by_group(result: tuple[str, int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    user, start, amount = result
    yield group_of(user), (start, amount)


def collect(
    group: int, sums: list[tuple[int, int]], window: Any
) -> Iterator[tuple[int, int, int, int]]:
    yield group, since_start(window.start), len(sums), sum(amount for _, amount in sums)


def windowed_workflow(
    source: Source,
    folder: Path,
    shape: Shape,
    *,
    timed: Callable[[str], Any] = timed,
    collect: Callable[..., Any] = collect,
) -> ms.Workflow:
    """The workflow over a source of lines."""
    flow = ms.Workflow("chaos")
    lines = flow.source(
        "lines",
        source,
        lateness=LATENESS * SECOND,
        idle_after=timedelta(hours=1),  # else a slow machine makes values late
    )

    def sums(name: str, window: Any) -> ms.Stream:
        reduce = ms.sum() if shape.builtin else add_up
        job = lines.map_reduce(name, map=timed, reduce=reduce, window=window)
        return job.map(reported) if shape.builtin else job

    recent = sums("recent", ms.sliding(SIZE * SECOND, SLIDE * SECOND))
    longer = sums("longer", ms.tumbling(LONG * SECOND))
    spans = recent.map_reduce(
        "spans", map=by_group, reduce=collect, window=ms.tumbling(SPAN * SECOND)
    )
    spans.sink("spans_out", ms.write.parquet(folder / "spans"))
    if shape.two_sinks:
        recent.sink("recent_out", ms.write.parquet(folder / "recent"))
        longer.sink("longer_out", ms.write.parquet(folder / "longer"))
    return flow


def windowed_answer(seed: int, epochs: int, shape: Shape) -> Answer:
    """The batch answer; rows are under no epoch. Of state nothing is left when all has closed."""
    files = [file for epoch in range(epochs) for file in lines_of(seed, epoch)]
    lines = [line.split() for file in files for line in file]
    recent = _sums(lines, SIZE, SLIDE)
    spans: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (user, start), amount in recent.items():
        # A result has the time of its window's last moment.
        spans[group_of(user), (start + SIZE - 1) // SPAN * SPAN].append(amount)
    rows: dict[str, list[tuple[Any, ...]]] = {
        "spans": [(*place, len(amounts), sum(amounts)) for place, amounts in spans.items()]
    }
    if shape.two_sinks:
        rows["recent"] = [(*place, amount) for place, amount in recent.items()]
        rows["longer"] = [(*place, amount) for place, amount in _sums(lines, LONG, LONG).items()]
    state: dict[str, dict[Any, Any]] = {job: {} for job in JOBS}
    return Answer(state, {sink: {-1: sorted(found)} for sink, found in rows.items()})


def _sums(lines: Iterable[list[str]], size: int, slide: int) -> Sums:
    found: Sums = Counter()
    for number, user, _, _, amount in lines:
        second = second_of(int(number))
        for start in range(second // slide * slide, second - size, -slide):
            found[user, start] += int(amount)
    return found


def in_one(rows: dict[str, Rows]) -> dict[str, Rows]:
    """The rows of sinks, of whatever epoch."""
    return {sink: {-1: sorted(chain.from_iterable(found.values()))} for sink, found in rows.items()}


def lines_that_differ(found: dict[str, Rows], expected: dict[str, Rows]) -> Iterator[str]:
    """What came too often, too seldom, or with another content, a line each."""
    for sink, wanted in expected.items():
        has, should = Counter(found.get(sink, {}).get(-1, [])), Counter(wanted[-1])
        for row in sorted(has.keys() | should.keys()):
            if has[row] != should[row]:
                yield f"rows of {sink!r}: {row} came {has[row]} times, expected {should[row]}"

"""Windows over panes equal the plain answer, whatever is copied, moved, cut or tried again."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.flow.windows import TimeWindow
from millstream.ring.keys import encode_keys
from millstream.state.blocks import place_rows
from millstream.work.job_clock import JobClock
from millstream.work.unit import UnitContext
from millstream.work.windows.choice import window_operator
from millstream.work.windows.forms import Window, form_of
from millstream.work.windows.time_windows import TimeWindowOperator
from tests.work.windows.rig import SLOTS, Rig, Row, block_of, expected, job_of, packed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(time: datetime) -> int:
    return round((time - EPOCH).total_seconds() * 1e6)


def joined(key: str, values: list[str], window: Window) -> tuple[str, str, int, int]:
    return key, "".join(values), micros(window.start), micros(window.end)


def totals(rows: pa.Table, window: Window) -> pa.Table:
    """The sum of each key, and the times in the order in which they are given."""
    found = rows.group_by("key").aggregate([("value", "sum"), ("time", "list")])
    bounds = {"start": micros(window.start), "end": micros(window.end)}
    return pa.table(
        {
            "key": found["key"],
            "value": found["value_sum"],
            "times": found["time_list"],
            **{name: [at] * found.num_rows for name, at in bounds.items()},
        }
    )


class Longest:
    """A combinable with a list for an accumulator that its merge changes."""

    def zero(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        accumulator.append(value)
        return accumulator

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        left.extend(right)
        right.clear()
        return left

    def result(self, accumulator: list[int]) -> int:
        accumulator.sort()
        return accumulator[-1] * 1000 + len(accumulator)


def stream(rng: random.Random, epochs: int) -> list[tuple[list[Row], int]]:
    """Rows that come roughly in order, some a good deal late, and a watermark that follows."""
    found = []
    now = rng.randint(-30, 30)
    for _ in range(epochs):
        rows = []
        for _ in range(rng.choice([0, 1, 5, 12])):
            time = now + rng.randint(-12, 6)
            rows.append((rng.choice("abcdefg"), time, rng.randint(0, 50)))
        found.append((rows, now - rng.choice([0, 0, 4, 12])))
        now += rng.choice([0, 1, 3, 3, 9, 40])
    found.append(([], 10_000))
    return found


WINDOWS = [
    (TimeWindow(10, 10),),
    (TimeWindow(12, 4),),
    (TimeWindow(30, 1),),
    (TimeWindow(9, 6),),
    (TimeWindow(20, 5), TimeWindow(40, 5), TimeWindow(10, 10)),
]


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_built_in_aggregates(windows: tuple[TimeWindow, ...], seed: int) -> None:
    rng = random.Random(f"{seed} {windows}")
    rig = Rig(job_of(ms.sum(), *windows), rng)
    epochs = stream(rng, 14)
    for rows, watermark in epochs:
        rig.run(rows, watermark, folding=rng.random() < 0.8)

    found: dict[Any, Any] = {}
    for key, value, start, end, timing in rig.results:
        at = (key, micros(start), micros(end))
        assert at not in found and timing == "on_time"
        found[at] = value
    wanted: dict[Any, Any] = {}
    for window in windows:
        wanted |= expected(epochs, window, lambda rows: sum(value for _, _, value in rows))
    assert found == wanted


def early_results(
    epochs: list[tuple[list[Row], int, bool]], windows: tuple[TimeWindow, ...], pane: int
) -> list[tuple[Any, ...]]:
    """The sums of open windows, of all keys in slots where a pane has changed since the last."""
    found: list[tuple[Any, ...]] = []
    dirty: set[tuple[int, int]] = set()
    known: list[Row] = []
    for rows, watermark, early in epochs:
        known += rows
        dirty |= {(time // pane * pane, slot_of(key)) for key, time, _ in rows}
        for window in windows if early else ():
            sums: dict[tuple[Any, int], int] = {}
            for key, time, value in known:
                first = (time - window.size) // window.slide * window.slide + window.slide
                for start in range(first, time + 1, window.slide):
                    panes = range(start, start + window.size, pane)
                    fresh = any((at, slot_of(key)) in dirty for at in panes)
                    if start + window.size > watermark and fresh:
                        sums[key, start] = sums.get((key, start), 0) + value
            found += [(key, total, s, s + window.size) for (key, s), total in sums.items()]
        if early:
            dirty.clear()
    return found


@cache
def slot_of(key: str) -> int:
    slots, _ = place_rows(encode_keys([key]), SLOTS)
    return int(slots[0])


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_early_results_cover_dirty_panes_whichever_node_owns_the_slots(
    windows: tuple[TimeWindow, ...], seed: int
) -> None:
    rng = random.Random(f"{seed} {windows}")
    job = job_of(ms.sum(), *windows, early=5)
    assert job.windowing is not None
    rig = Rig(job, rng)
    epochs = []
    watermark = -10_000
    for rows, now in stream(rng, 14):
        early = rng.random() < 0.4
        in_time = [row for row in rows if row[1] >= watermark]
        watermark = max(watermark, now)
        rig.run(in_time, watermark, folding=rng.random() < 0.8, early=early)
        epochs.append((in_time, watermark, early))

    found = [
        (key, value, micros(start), micros(end))
        for key, value, start, end, timing in rig.results
        if timing == "early"
    ]
    assert sorted(found) == sorted(early_results(epochs, windows, job.windowing.pane))


def with_news(*epochs: int) -> tuple[Any, list[Any]]:
    """A node that took a value in each of some epochs, and the fragments of these."""
    job = job_of(ms.sum(), TimeWindow(10, 10), early=5)
    node, fragments = window_operator(job, SLOTS), []
    for epoch in epochs:
        unit = UnitContext(range(SLOTS), 0, None, True, JobClock(-100, -100), epoch)
        reduced = node.reduce(block_of(job, [("a", epoch, 7)], True), unit)
        node.state.apply(reduced.fragment)
        fragments.append(reduced.fragment)
    return node, fragments


def test_an_epoch_without_values_does_not_repeat_dirty_panes() -> None:
    node, _ = with_news(0)
    unit = UnitContext(range(SLOTS), 0, None, True, JobClock(-100, -100), 1)

    assert not node.reduce([], unit).fragment


def test_merged_fragments_list_dirty_panes_once() -> None:
    node, fragments = with_news(0, 1, 11, 12)
    merged = node.state.merge([node.state.merge(fragments[:2]), node.state.merge(fragments[2:])])

    [(slots, dirty)] = merged.dirty
    assert slots == range(SLOTS)
    assert {start: at.tolist() for start, at in dirty.items()} == {
        0: [slot_of("a")],
        10: [slot_of("a")],
    }


def test_dirty_panes_are_dropped_without_early_results() -> None:
    node, _ = with_news(0)
    other = window_operator(job_of(ms.sum(), TimeWindow(10, 10)), SLOTS)
    other.state.apply(node.state.snapshot(range(SLOTS)))
    unit = UnitContext(range(SLOTS), 0, None, True, JobClock(-100, 50), 1)
    other.state.apply(other.reduce([], unit).fragment)

    assert not other.state.snapshot(range(SLOTS))


def test_dirty_panes_move_and_are_dropped_with_their_slots() -> None:
    rig = Rig(job_of(ms.sum(), TimeWindow(10, 10), early=5), random.Random(1), nodes=1)
    rig.run([("a", 1, 7)], -100)
    [owner] = rig.owners
    rig.owners = [rig._new()]
    rig.owners[0].state.apply(owner.state.snapshot(range(SLOTS)))
    rig.run([], -100, early=True)
    assert [(key, value, timing) for key, value, _, _, timing in rig.results] == [("a", 7, "early")]

    rig.run([("a", 2, 1)], -100)
    rig.owners[0].state.drop(np.ones(SLOTS, bool))
    assert not rig.owners[0].state.snapshot(range(SLOTS))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_combinables_that_change_what_they_are_given(
    windows: tuple[TimeWindow, ...], seed: int
) -> None:
    rng = random.Random(f"{seed} {windows}")
    rig = Rig(job_of(Longest(), *windows), rng)
    epochs = stream(rng, 14)
    for rows, watermark in epochs:
        rig.run(rows, watermark, folding=rng.random() < 0.8)

    found = {(key, micros(start), micros(end)): value for key, value, start, end, _ in rig.results}
    wanted: dict[Any, Any] = {}
    for window in windows:
        wanted |= expected(
            epochs, window, lambda rows: max(v for _, _, v in rows) * 1000 + len(rows)
        )
    assert found == wanted and len(found) == len(rig.results)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_functions_see_whole_windows_in_order(windows: tuple[TimeWindow, ...], seed: int) -> None:
    rng = random.Random(f"{seed} {windows}")
    rig = Rig(job_of(joined, *windows, ordered=True), rng)
    epochs = [
        ([(key, time, f"{time}.") for key, time, _ in rows], watermark)
        for rows, watermark in stream(rng, 14)
    ]
    for rows, watermark in epochs:
        rig.run(rows, watermark)

    found = {(key, start, end): value for key, value, start, end in rig.results}
    wanted: dict[Any, Any] = {}
    for window in windows:
        wanted |= expected(
            epochs, window, lambda rows: "".join(f"{t}." for t in sorted(t for _, t, _ in rows))
        )
    assert found == wanted and len(found) == len(rig.results)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_functions_over_tables_see_all_keys_at_once(
    windows: tuple[TimeWindow, ...], seed: int
) -> None:
    rng = random.Random(f"{seed} {windows}")
    rig = Rig(job_of(ms.arrow(totals), *windows, ordered=True), rng, pack=packed)
    epochs = stream(rng, 14)
    for rows, watermark in epochs:
        rig.run(rows, watermark)

    found: dict[Any, Any] = {}
    for key, value, times, start, end in rig.results:
        assert (key, start, end) not in found and times == sorted(times)
        found[key, start, end] = value
    wanted: dict[Any, Any] = {}
    for window in windows:
        wanted |= expected(epochs, window, lambda rows: sum(value for _, _, value in rows))
    assert found == wanted


def test_a_function_over_tables_must_give_a_table() -> None:
    job = job_of(ms.arrow(lambda rows, window: 5), TimeWindow(10, 10))
    rig = Rig(job, random.Random(1), nodes=1, pack=packed)
    with pytest.raises(ms.RecordError, match=r"returned 5 .*pyarrow\.Table"):
        rig.run([("a", 5, 1)], 100)


def test_rows_of_tables_are_read_as_they_arrived() -> None:
    job = job_of(ms.arrow(totals), TimeWindow(10, 10))
    rig = Rig(job, random.Random(1), nodes=1, pack=packed)
    rig.run([("a", 5, 1), ("a", 7, 2)], 0)
    [owner] = rig.owners
    shown = owner.state.get(0, "a")
    assert [(row["value"], micros(row["time"])) for row in shown[EPOCH]] == [(1, 5), (2, 7)]


def test_the_state_is_empty_once_all_windows_are_closed() -> None:
    rig = Rig(job_of(ms.count(), TimeWindow(30, 10)), random.Random(1), nodes=1)
    rig.run([("a", 5, 1), ("b", 25, 1)], 0)
    [owner] = rig.owners
    assert dict(owner.state.items(np.ones(8, bool))) == {
        "a": {EPOCH: 1},
        "b": {EPOCH.replace(microsecond=20): 1},
    }
    rig.run([], 1000)
    [owner] = rig.owners
    assert not owner.state.starts and owner.state.count(np.ones(8, bool)) == 0


def test_values_of_another_type_are_refused_before_their_epoch_is_committed() -> None:
    rig = Rig(job_of(ms.max(), TimeWindow(30, 10)), random.Random(1), nodes=1)
    rig.run([("a", 5, 1)], 0)
    with pytest.raises(ms.RecordError, match="changed its type"):
        rig.run([("b", 5, "one")], 0)


def test_what_comes_after_an_eviction_outlives_it_in_a_merged_fragment() -> None:
    job = job_of(ms.sum(), TimeWindow(10, 10))
    one = TimeWindowOperator(job, form_of(job), 8)
    fragments = []
    for epoch, (rows, watermark) in enumerate([([("a", 5, 1)], 2**62), ([("a", 7, 2)], 0)]):
        unit = UnitContext(range(8), 0, None, True, JobClock(0, watermark), epoch)
        reduced = one.reduce(block_of(job, rows, True), unit)
        one.state.apply(reduced.fragment)
        fragments.append(reduced.fragment)
    other = TimeWindowOperator(job, form_of(job), 8)
    other.state.apply(other.state.decode(one.state.encode(one.state.merge(fragments))))
    everything = np.ones(8, bool)
    assert (
        dict(other.state.items(everything))
        == dict(one.state.items(everything))
        == {"a": {EPOCH: 2}}
    )

"""Sessions equal the plain answer, whatever is copied, moved, cut or tried again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import SessionWindow
from millstream.times import BEGINNING, END
from millstream.work.event_time_gate import Gate
from millstream.work.job_clock import JobClock, Tally
from millstream.work.keyed_batches import Pairs
from millstream.work.maybe_late import MaybeLatePacker
from millstream.work.packers.packer import packer_for
from millstream.work.windows.forms import Window
from tests.work.windows.rig import SLOTS, Rig, Row, block_of, job_of, packed
from tests.work.windows.streams import EPOCH, Listed, micros, stream, sum_of

ALL = np.ones(8, bool)
Result = tuple[Any, Any, int, int, str]


class Plain:
    """Sessions one value at a time."""

    def __init__(self, gap: int, early: bool) -> None:
        self._gap = gap
        self._early = early
        self._watermark = BEGINNING
        self._open: list[tuple[Any, list[Row], bool]] = []
        self.closed: list[tuple[Any, list[Row], int, int, str]] = []

    def in_time(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row[1] + self._gap > self._watermark]

    def run(self, rows: list[Row], watermark: int, early: bool) -> None:
        for row in rows:
            self._add(row)
        self._watermark = max(self._watermark, watermark)
        still = []
        for key, of_session, dirty in self._open:
            start, end = self._bounds(of_session)
            over = end <= self._watermark
            if over or (early and dirty):
                timing = "on_time" if over else "early"
                self.closed.append((key, of_session, start, end, timing))
            if not over:
                still.append((key, of_session, dirty and not early))
        self._open = still

    def _add(self, row: Row) -> None:
        joined, others = [row], []
        for key, rows, dirty in self._open:
            start, end = self._bounds(rows)
            if key == row[0] and start - self._gap < row[1] < end:
                joined = rows + joined
            else:
                others.append((key, rows, dirty))
        self._open = [*others, (row[0], joined, self._early)]

    def _bounds(self, rows: list[Row]) -> tuple[int, int]:
        times = [time for _, time, _ in rows]
        return min(times), max(times) + self._gap

    def results(self, reduce: Callable[[list[Row]], Any]) -> Counter[Result]:
        return Counter((key, reduce(rows), *rest) for key, rows, *rest in self.closed)


def run(reduce: object, seed: int, gap: int, early: bool, **options: Any) -> tuple[Rig, Plain]:
    rng = random.Random(f"{seed} {gap} {early}")
    pack = packed if seed % 2 else block_of
    every = 5 if early else None
    rig = Rig(job_of(reduce, SessionWindow(gap), early=every, **options), rng, pack=pack)
    plain = Plain(gap, early)
    for rows, watermark in [*stream(rng, 25), ([], END)]:
        is_early = early and rng.random() < 0.4
        taken = plain.in_time(rows)
        plain.run(taken, watermark, is_early)
        rig.run(taken, watermark, early=is_early)
    return rig, plain


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("gap", [1, 4, 15])
@pytest.mark.parametrize("seed", range(5))
def test_built_in_aggregates(seed: int, gap: int, early: bool) -> None:
    rig, plain = run(ms.sum(), seed, gap, early)

    found = [(key, value, micros(s), micros(e), timing) for key, value, s, e, timing in rig.results]
    assert Counter(found) == plain.results(sum_of)
    assert rig.times == [end - 1 for _, _, _, end, _ in found]
    assert {timing for *_, timing in found} == ({"on_time", "early"} if early else {"on_time"})


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("gap", [4, 15])
@pytest.mark.parametrize("seed", range(4))
def test_combinables_that_change_what_they_are_given(seed: int, gap: int, early: bool) -> None:
    rig, plain = run(Listed(), seed, gap, early)

    found = Counter(
        (key, tuple(sorted(map(int, text.split(",")))), micros(start), micros(end), timing)
        for key, text, start, end, timing in rig.results
    )
    assert found == plain.results(lambda rows: tuple(sorted(value for _, _, value in rows)))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("gap", [4, 15])
@pytest.mark.parametrize("seed", range(4))
def test_functions_see_whole_sessions_in_order(seed: int, gap: int, early: bool) -> None:
    def joined(key: str, values: list[int], window: Window) -> tuple[Any, ...]:
        times = "".join(f"{value}." for value in sorted(values))
        return key, times, micros(window.start), micros(window.end), window.timing

    rig, plain = run(joined, seed, gap, early)

    def text(rows: list[Row]) -> str:
        return "".join(f"{value}." for value in sorted(value for _, _, value in rows))

    assert Counter(rig.results) == plain.results(text)


def test_functions_can_have_values_in_the_order_of_time() -> None:
    def seen(key: str, values: list[int], window: Window) -> tuple[str, str]:
        return key, str(values)

    rig = Rig(job_of(seen, SessionWindow(10), ordered=True), random.Random(3), nodes=1)
    rig.run([("a", 15, 15), ("a", 3, 3)], 0)
    rig.run([("a", 9, 9)], 100)
    assert rig.results == [("a", "[3, 9, 15]")]


def test_values_just_a_gap_apart_are_in_two_sessions() -> None:
    rig = Rig(job_of(ms.count(), SessionWindow(10)), random.Random(2), nodes=1)
    rig.run([("a", 0, 1), ("a", 10, 1), ("b", 0, 1), ("b", 9, 1)], 100)
    assert sorted((k, n, micros(s), micros(e)) for k, n, s, e, _ in rig.results) == [
        ("a", 1, 0, 10),
        ("a", 1, 10, 20),
        ("b", 2, 0, 19),
    ]


def test_a_session_is_open_until_the_watermark_is_a_gap_behind_its_last_value() -> None:
    rig = Rig(job_of(ms.count(), SessionWindow(10)), random.Random(1), nodes=1)
    rig.run([("a", 0, 1), ("b", 30, 1)], 9)
    rig.run([("a", 8, 1)], 17)
    [owner] = rig.owners
    assert not rig.results
    assert dict(owner.state.items(ALL)) == {
        "a": {EPOCH: 2},
        "b": {EPOCH.replace(microsecond=30): 1},
    }
    assert owner.state.get(0, "a") == {EPOCH: 2} and owner.state.get(0, "z") is None
    rig.run([], 18)
    [owner] = rig.owners
    assert [(key, value) for key, value, *_ in rig.results] == [("a", 2)]
    assert owner.state.count(ALL) == 1 and owner.state.get(0, "a") is None


# -- values behind the watermark -----------------------------------------------------------------


def told_apart(rig: Rig, job: JobVertex, rows: list[Row]) -> list[pa.RecordBatch]:
    """The blocks of one map task whose gate knows what was closed."""
    gate = Gate(job, JobClock(closed=rig.closed), 0, ["late"])
    packer, maybe_late = packer_for(job, SLOTS), MaybeLatePacker(job, SLOTS)
    for at in range(0, len(rows), 4):
        items = [(k, v, EPOCH + timedelta(microseconds=t)) for k, t, v in rows[at : at + 4]]
        admitted = gate.admit(Pairs(items, True), 7)
        packer.add(admitted.taken.values, admitted.taken.times)
        if admitted.maybe_late is not None:
            maybe_late.add(admitted.maybe_late.values, 7, admitted.maybe_late.records)
    blocks = [packer.flush(), maybe_late.flush()]
    rig.counted += gate.tallies
    return [block for block in blocks if block is not None]


def rig_of(reduce: object, gap: int, rng: random.Random, nodes: int = 2) -> Rig:
    rig = Rig(job_of(reduce, SessionWindow(gap)), rng, nodes=nodes)
    rig.pack = lambda job, rows, _: told_apart(rig, job, list(rows))
    return rig


def late_of(plain: Plain, rows: list[Row]) -> list[Row]:
    """The rows whose sessions were over before, with all that they can be joined with."""
    trial = Plain(plain._gap, False)
    trial._open = list(plain._open)
    for row in rows:
        trial._add(row)
    return [
        row
        for key, members, _ in trial._open
        for row in members
        if trial._bounds(members)[1] <= plain._watermark
    ]


@pytest.mark.parametrize("reduce", [ms.sum(), Listed(), "function"])
@pytest.mark.parametrize("gap", [8, 15])
@pytest.mark.parametrize("seed", range(5))
def test_a_value_is_late_only_if_its_session_was_over(seed: int, gap: int, reduce: Any) -> None:
    def whole(key: str, values: list[int], window: Window) -> tuple[Any, ...]:
        return key, sum(values), window.start, window.end, window.timing

    rng = random.Random(f"{seed} {gap}")
    rig, plain = rig_of(whole if reduce == "function" else reduce, gap, rng), Plain(gap, False)
    late: list[Row] = []
    rows_in = merged = 0
    watermark = 0
    for epoch in range(40):
        rows = [
            (rng.choice("abc"), watermark + rng.randrange(-40, 12), rng.randrange(100))
            for _ in range(rng.randrange(12))
        ]
        found = late_of(plain, rows)
        taken = [row for row in rows if row not in found]
        merged += sum(row[1] + gap <= plain._watermark for row in taken)
        late, rows_in = late + found, rows_in + len(taken)
        watermark = END if epoch == 39 else watermark + rng.randrange(6)
        plain.run(taken, watermark, False)
        rig.run(rows, watermark)

    texts = isinstance(reduce, Listed)
    shown = [(k, sum(map(int, v.split(","))) if texts else v, *rest) for k, v, *rest in rig.results]
    assert Counter((k, v, micros(s), micros(e), t) for k, v, s, e, t in shown) == plain.results(
        sum_of
    )
    assert Counter(rig.late) == Counter(
        (key, value, EPOCH + timedelta(microseconds=time)) for key, time, value in late
    )
    [tally] = [sum(rig.counted, Tally(7))]
    assert (tally.rows, tally.late) == (rows_in, len(late))
    assert late and merged


def test_a_late_value_is_taken_by_the_session_that_it_makes_one_of_two() -> None:
    rig = rig_of(ms.count(), 10, random.Random(3), nodes=1)
    rig.run([("a", 0, 1), ("a", 8, 1), ("a", 24, 1), ("b", 24, 1)], 9)
    rig.run([], 17)
    # With 16 all values of "a" are one session; "b" has none that 5 could be joined with.
    rig.run([("a", 2, 1), ("a", 16, 1), ("b", 5, 1)], 30)
    rig.run([], 100)

    found = sorted((key, n, micros(s), micros(e)) for key, n, s, e, _ in rig.results)
    assert found == [("a", 5, 0, 34), ("b", 1, 24, 34)]
    assert rig.late == [("b", 1, EPOCH + timedelta(microseconds=5))]


def test_values_that_come_together_can_reach_an_open_session_by_each_other() -> None:
    rig = rig_of(ms.count(), 10, random.Random(3), nodes=1)
    rig.run([("a", 40, 1)], 45)
    rig.run([("a", 14, 1), ("a", 23, 1), ("a", 32, 1), ("a", 3, 1)], 100)

    assert [(n, micros(s), micros(e)) for _, n, s, e, _ in rig.results] == [(4, 14, 50)]
    assert [value for _, value, _ in rig.late] == [1]

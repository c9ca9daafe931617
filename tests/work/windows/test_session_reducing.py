"""Sessions equal the plain answer, whatever is copied, moved, cut or tried again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.flow.windows import SessionWindow
from millstream.work.clocks import BEGINNING, END
from millstream.work.windows.forms import Window
from tests.work.windows.rig import Rig, Row, block_of, job_of, packed
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
        for key, of_session, news in self._open:
            start, end = self._bounds(of_session)
            over = end <= self._watermark
            if over or (early and news):
                timing = "on_time" if over else "early"
                self.closed.append((key, of_session, start, end, timing))
            if not over:
                still.append((key, of_session, news and not early))
        self._open = still

    def _add(self, row: Row) -> None:
        joined, others = [row], []
        for key, rows, news in self._open:
            start, end = self._bounds(rows)
            if key == row[0] and start - self._gap < row[1] < end:
                joined = rows + joined
            else:
                others.append((key, rows, news))
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
    assert dict(owner.items(ALL)) == {"a": {EPOCH: 2}, "b": {EPOCH.replace(microsecond=30): 1}}
    assert owner.get(0, "a") == {EPOCH: 2} and owner.get(0, "z") is None
    rig.run([], 18)
    [owner] = rig.owners
    assert [(key, value) for key, value, *_ in rig.results] == [("a", 2)]
    assert owner.keys(ALL) == 1 and owner.get(0, "a") is None

"""Count windows equal the plain answer, whatever is copied, moved, cut or tried again."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.flow.windows import CountWindow
from millstream.work.windows.forms import CountedWindow
from tests.work.windows.rig import Rig, Row, block_of, job_of, packed
from tests.work.windows.streams import Listed, stream, sum_of, text_of

ALL = np.ones(8, bool)
WINDOWS = [
    CountWindow(1, 1),
    CountWindow(3, 3),
    CountWindow(3, 2),
    CountWindow(4, 1),
    CountWindow(12, 4),
    CountWindow(9, 6),
    CountWindow(17, 1),
    CountWindow(50, 3),
]


def run(
    reduce: object,
    window: CountWindow,
    seed: int,
    plain: Callable[[list[Row]], Any],
    check: Callable[[Rig, dict[Any, list[Row]]], None] = lambda rig, seen: None,
    **options: Any,
) -> tuple[Rig, Counter[tuple[Any, ...]]]:
    """A rig after many epochs, and what its job should have given."""
    rng = random.Random(f"{seed} {window}")
    pack = packed if seed % 2 else block_of
    rig = Rig(job_of(reduce, window, **options), rng, pack=pack)
    seen: dict[Any, list[Row]] = defaultdict(list)
    wanted: Counter[tuple[Any, ...]] = Counter()
    for rows, watermark in stream(rng, 25, "abcd"):
        closed, given = rig.watermark, len(rig.times)
        taken = rig.run(rows, watermark)
        # Results have an event time that came with the epoch, but none that would be late behind.
        newest = max([time for _, time, _ in taken], default=closed)
        assert all(closed <= time <= max(closed, newest) for time in rig.times[given:])
        for row in taken:
            of_key = seen[row[0]]
            of_key.append(row)
            end = len(of_key)
            if end % window.slide == 0:
                start = max(0, end - window.size)
                wanted[row[0], plain(of_key[start:end]), start, end] += 1
        check(rig, seen)
    assert len(wanted) > 15
    return rig, wanted


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_built_in_aggregates(window: CountWindow, seed: int) -> None:
    rig, wanted = run(ms.sum(), window, seed, sum_of)

    assert Counter(rig.results) == Counter({(*one, "on_time"): n for one, n in wanted.items()})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_combinables_that_change_what_they_are_given(window: CountWindow, seed: int) -> None:
    def check(rig: Rig, seen: dict[Any, list[Row]]) -> None:
        """What is shown of a key is the window that comes next."""
        for owner in rig.owners:
            for key, text in owner.items(ALL):
                following = len(seen[key]) // window.slide * window.slide + window.slide
                rows = seen[key][max(0, following - window.size) :]
                assert text == (text_of(rows) if rows else None) == owner.get(0, key)

    rig, wanted = run(Listed(), window, seed, text_of, check)

    assert Counter(result[:4] for result in rig.results) == wanted


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_functions_see_whole_windows(window: CountWindow, seed: int, ordered: bool) -> None:
    def joined(key: str, values: list[int], window: CountedWindow) -> tuple[Any, ...]:
        assert window.timing == "on_time"
        return key, ",".join(map(str, values)), window.start, window.end

    def plain(rows: list[Row]) -> str:
        return text_of(sorted(rows, key=lambda row: row[1]) if ordered else rows)

    rig, wanted = run(joined, window, seed, plain, ordered=ordered)

    assert Counter(rig.results) == wanted


@pytest.mark.parametrize("at_once", [1, 7, 500])
@pytest.mark.parametrize("window", [CountWindow(100, 1), CountWindow(64, 1)], ids=str)
def test_long_windows_cost_no_more_merges_than_short_ones(
    window: CountWindow, at_once: int
) -> None:
    reducer = Listed()
    rig = Rig(job_of(reducer, window), random.Random(5), nodes=1)
    for start in range(0, 500, at_once):
        rig.run([("a", 0, value) for value in range(start, start + at_once)], 0)
    assert len(rig.results) >= 500
    # An attempt in three is made twice.
    assert reducer.merges < 2 * 5 * 500


def test_functions_keep_only_what_windows_to_come_need() -> None:
    def total(key: str, values: list[int], window: CountedWindow) -> tuple[str, int]:
        return key, sum(values)

    rig = Rig(job_of(total, CountWindow(5, 2)), random.Random(1), nodes=1)
    rows = rig.run([("a", 0, value) for value in range(20)], 0)
    [owner] = rig.owners
    assert dict(owner.items(ALL)) == {"a": [value for _, _, value in rows[-3:]]}

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
        for row in taken:
            of_key = seen[row[0]]
            of_key.append(row)
            end = len(of_key)
            if end % window.slide == 0:
                start = max(0, end - window.size)
                wanted[row[0], plain(of_key[start:end]), start, end] += 1
        # Results have the newest event time of their key, but none that would be late behind.
        newest = {key: max(time for _, time, _ in of_key) for key, of_key in seen.items()}
        for result, time in zip(rig.results[given:], rig.times[given:], strict=True):
            assert time == max(closed, newest[result[0]])
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
            for key, text in owner.state.items(ALL):
                following = len(seen[key]) // window.slide * window.slide + window.slide
                rows = seen[key][max(0, following - window.size) :]
                assert text == (text_of(rows) if rows else None) == owner.state.get(0, key)

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
    assert dict(owner.state.items(ALL)) == {"a": [value for _, _, value in rows[-3:]]}


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("reduce", [ms.count(), lambda key, values, window: (key, len(values))])
def test_the_time_of_results_does_not_depend_on_what_else_is_on_a_node(
    reduce: object, nodes: int
) -> None:
    rig = Rig(job_of(reduce, CountWindow(1, 1)), random.Random(1), nodes=nodes)

    rig.run([(key, key * 10, 1) for key in range(8)], 0)

    found = sorted((result[0], time) for result, time in zip(rig.results, rig.times, strict=True))
    assert found == [(key, key * 10) for key in range(8)]


@pytest.mark.parametrize("reduce", [ms.count(), lambda key, values, window: (key, len(values))])
def test_results_have_the_newest_time_of_their_key_whenever_it_came(reduce: object) -> None:
    rig = Rig(job_of(reduce, CountWindow(2, 2)), random.Random(1), nodes=1)

    rig.run([("a", 70, 1), ("b", 20, 1)], 0)
    rig.run([("b", 10, 1), ("a", 30, 1), ("b", 5, 1)], 0)
    rig.run([("b", 5, 1)], 50)  # closes up to 50, so that results may not be earlier from then on
    rig.run([("b", 5, 1), ("b", 5, 1)], 50)

    found = [(result[0], time) for result, time in zip(rig.results, rig.times, strict=True)]
    assert found == [("b", 20), ("a", 70), ("b", 20), ("b", 50)]

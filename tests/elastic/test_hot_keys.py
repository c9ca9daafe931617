from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.elastic.hot_keys import HotKeySketch
from millstream.errors import ConfigError

batches = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 50)), max_size=40), max_size=8
)


def filled(capacity: int, parts: list[list[tuple[int, int]]]) -> HotKeySketch[int]:
    sketch = HotKeySketch[int](capacity)
    for part in parts:
        sketch.add([key for key, _ in part], [count for _, count in part])
    return sketch


def exact(parts: list[list[tuple[int, int]]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for part in parts:
        for key, count in part:
            counts[key] += count
    return counts


def check(sketch: HotKeySketch[int], counts: Counter[int]) -> None:
    total = sum(counts.values())
    found = {each.key: each for each in sketch.top(0)}

    assert sketch.total == total
    assert len(found) <= sketch.capacity
    assert sketch.bound * sketch.capacity <= total
    for key, count in counts.items():
        if count * sketch.capacity > total:
            assert key in found
        if key not in found:
            assert count <= sketch.bound
    for key, each in found.items():
        assert each.count - each.error <= counts[key] <= each.count
        assert each.error * sketch.capacity <= total


@given(st.integers(1, 20), batches)
def test_every_key_with_a_large_share_is_found_and_estimates_are_bounded(
    capacity: int, parts: list[list[tuple[int, int]]]
) -> None:
    check(filled(capacity, parts), exact(parts))


@given(st.integers(1, 20), batches, batches)
def test_merged_sketches_keep_the_bounds(
    capacity: int, some: list[list[tuple[int, int]]], others: list[list[tuple[int, int]]]
) -> None:
    merged = filled(capacity, some).merge(filled(capacity, others))

    check(merged, exact(some) + exact(others))


@given(st.integers(1, 20), batches, batches, batches)
def test_a_merged_sketch_goes_on_counting(
    capacity: int,
    some: list[list[tuple[int, int]]],
    others: list[list[tuple[int, int]]],
    more: list[list[tuple[int, int]]],
) -> None:
    merged = filled(capacity, some).merge(filled(capacity, others))
    for part in more:
        merged.add([key for key, _ in part], [count for _, count in part])

    check(merged, exact([*some, *others, *more]))


def test_few_keys_are_counted_exactly() -> None:
    sketch = HotKeySketch[str](4)
    sketch.add(["a", "b", "a"], np.array([3, 1, 4]))
    sketch.add(["c"], [1])

    assert [(each.key, each.count, each.error) for each in sketch.top(0.1)] == [
        ("a", 7, 0),
        ("b", 1, 0),
        ("c", 1, 0),
    ]
    assert [each.key for each in sketch.top(0.5)] == ["a"]


def test_a_hot_key_is_found_in_a_million_others() -> None:
    random = np.random.default_rng(7)
    sketch = HotKeySketch[int](64)
    for _ in range(20):
        keys, counts = np.unique(random.integers(1, 10**6, 50_000), return_counts=True)
        sketch.add([0, *keys.tolist()], np.concatenate([[5_000], counts]))

    hottest = sketch.top(0.05)

    assert [each.key for each in hottest] == [0]
    assert 100_000 <= hottest[0].count <= 100_000 + sketch.total / 64


def test_unusable_input_is_rejected() -> None:
    with pytest.raises(ConfigError, match="capacity must be"):
        HotKeySketch[str](0)
    with pytest.raises(ConfigError, match="a count of at least 0 for each of 1 keys"):
        HotKeySketch[str](2).add(["a"], [1, 2])
    with pytest.raises(ConfigError, match="a count of at least 0"):
        HotKeySketch[str](2).add(["a"], [-1])
    with pytest.raises(ConfigError, match="capacities must be equal"):
        HotKeySketch[str](2).merge(HotKeySketch[str](3))

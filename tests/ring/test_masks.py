"""Runs of slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.ring.masks import equal_runs, expanded, overlap


def test_equal_runs_are_cut_where_any_value_changes() -> None:
    first, second = np.array([1, 1, 2, 2, 2]), np.array(["a", "a", "a", "b", "b"], dtype=object)

    assert list(equal_runs(range(3, 8), first, second)) == [range(3, 5), range(5, 6), range(6, 8)]
    assert list(equal_runs(range(3, 8), first)) == [range(3, 5), range(5, 8)]
    assert list(equal_runs(range(3, 4), first[:1])) == [range(3, 4)]


def test_runs_that_only_touch_do_not_overlap() -> None:
    assert overlap(range(0, 4), range(3, 5))
    assert not overlap(range(0, 4), range(4, 5))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_ranges_expand_to_all_their_members(ranges: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = np.array([start + length for start, length in ranges], np.int64)

    members = expanded(starts, stops).tolist()

    assert members == [m for start, length in ranges for m in range(start, start + length)]

"""Runs of slots."""

from __future__ import annotations

import numpy as np

from millstream.ring.masks import equal_runs, overlap


def test_equal_runs_are_cut_where_any_value_changes() -> None:
    first, second = np.array([1, 1, 2, 2, 2]), np.array(["a", "a", "a", "b", "b"], dtype=object)

    assert list(equal_runs(range(3, 8), first, second)) == [range(3, 5), range(5, 6), range(6, 8)]
    assert list(equal_runs(range(3, 8), first)) == [range(3, 5), range(5, 8)]
    assert list(equal_runs(range(3, 4), first[:1])) == [range(3, 4)]


def test_runs_that_only_touch_do_not_overlap() -> None:
    assert overlap(range(0, 4), range(3, 5))
    assert not overlap(range(0, 4), range(4, 5))

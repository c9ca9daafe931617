from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.elastic.load import Load
from millstream.elastic.load_history import with_newest

SPAN = 60.0


def load_at(epoch: int, time: float) -> Load:
    none = np.zeros(1)
    return Load(epoch=epoch, time=time, nodes={}, seconds=none, tuples=none, state_bytes=none)


def history_of(times: list[float], most: int) -> tuple[Load, ...]:
    history: tuple[Load, ...] = ()
    for epoch, time in enumerate(times):
        history = with_newest(history, load_at(epoch, time), most=most, span=SPAN)
    return history


@given(
    st.lists(st.floats(0.01, 20), min_size=1, max_size=300),
    st.integers(3, 40),
)
def test_a_history_is_bounded_and_reaches_back_far_enough(gaps: list[float], most: int) -> None:
    times = np.cumsum(gaps).tolist()

    history = history_of(times, most)

    kept = [load.time for load in history]
    assert len(kept) <= most
    assert kept[-1] == times[-1]
    assert kept == sorted(set(kept))
    assert kept[0] == times[0] or kept[-1] - kept[0] >= SPAN - 1e-9
    # What is left out is close to what is kept.
    step = SPAN / (most - 2)
    assert all(later - one < step + 20 for one, later in pairwise(kept))


def test_epochs_that_are_long_enough_are_all_kept() -> None:
    history = history_of([10.0 * epoch for epoch in range(20)], 8)

    assert [load.epoch for load in history] == [12, 13, 14, 15, 16, 17, 18, 19]


def test_the_newest_is_there_even_if_only_one_is_kept() -> None:
    assert [load.epoch for load in history_of([1.0, 2.0, 3.0], 1)] == [2]

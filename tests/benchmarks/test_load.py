"""Loads that rise and fall, and what runs make of them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load_shapes import LEAST, PEAK, SHAPES, STEPS, arrivals
from benchmarks.load_traces import (
    changes_of,
    latency,
    node_seconds,
    trace_of,
    weighted_quantile,
)
from benchmarks.modelled_work import Played, Sample, Seen

SECONDS = 50.0


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_due_at_the_rate_of_the_load(shape: str) -> None:
    rate = SHAPES[shape](SECONDS)
    due = arrivals(rate, SECONDS)

    assert (np.diff(due) > 0).all() and due[0] > 0 and due[-1] <= SECONDS
    for second in (3, 24, 25, 37):
        rows = int(((due > second) & (due <= second + 1)).sum())
        assert rows == pytest.approx(rate(np.array([second + 0.5]))[0], rel=0.02)


def test_a_sine_begins_and_ends_low_and_has_its_peak_in_between() -> None:
    rate = SHAPES["sine"](SECONDS)

    assert rate(np.array([0.0, SECONDS / 2, SECONDS])) == pytest.approx([LEAST, PEAK, LEAST])


def test_steps_have_equal_lengths() -> None:
    rate = SHAPES["steps"](SECONDS)
    middles = (np.arange(len(STEPS)) + 0.5) * SECONDS / len(STEPS)

    assert rate(middles) == pytest.approx([PEAK * step for step in STEPS])


def test_a_row_waits_for_the_next_epoch_on_average_half_as_long_as_the_last_one_took() -> None:
    before = Seen(0, output=10.9, began=10.0, seconds=1.0, rows=5, work={})
    seen = Seen(1, output=12.5, began=12.0, seconds=0.6, rows=5, work={})

    assert latency(before, seen) == 1.5


def test_quantiles_go_by_weight() -> None:
    assert weighted_quantile([3.0, 1.0, 2.0], [1, 98, 1], 0.95) == 1.0
    assert weighted_quantile([3.0, 1.0, 2.0], [10, 80, 10], 0.95) == 3.0
    assert weighted_quantile([3.0, 1.0, 2.0], [10, 80, 10], 0.85) == 2.0


def test_nodes_count_as_long_as_they_live() -> None:
    samples = [Sample(0.0, 1), Sample(2.0, 3), Sample(3.0, 2), Sample(7.0, 1)]

    assert node_seconds(samples) == 2 + 3 + 8


def test_only_changes_of_the_number_of_nodes_are_shown() -> None:
    samples = [Sample(float(at), nodes) for at, nodes in enumerate([1, 1, 2, 2, 2, 1, 1])]

    assert [sample.time for sample in changes_of(samples)] == [0.0, 2.0, 5.0, 6.0]


def test_a_trace_begins_with_the_first_epoch() -> None:
    epochs = [
        Seen(number, output=at + 0.4, began=at, seconds=0.5, rows=100, work={})
        for number, at in enumerate([20.0, 21.0, 22.0])
    ]
    run = Played(epochs, [Sample(at, 2) for at in (19.0, 20.0, 21.0, 22.0)], [])

    trace = trace_of(run)

    assert trace.rate == [(1.0, 100.0), (2.0, 100.0)]
    assert trace.nodes == [(0.0, 2.0), (2.0, 2.0)]
    assert [value for _, value in trace.latency] == pytest.approx([0.9, 0.9])
    assert trace.mean_nodes == 2.0

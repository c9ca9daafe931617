"""Loads that rise and fall, and what runs make of them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load_shapes import LEAST, PEAK, SHAPES, STEPS, arrivals
from benchmarks.load_traces import changes_of, node_seconds, trace_of
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


def test_nodes_count_as_long_as_they_live() -> None:
    samples = [Sample(0.0, 1), Sample(2.0, 3), Sample(3.0, 2), Sample(7.0, 1)]

    assert node_seconds(samples) == 2 + 3 + 8


def test_only_changes_of_the_number_of_nodes_are_shown() -> None:
    samples = [Sample(float(at), nodes) for at, nodes in enumerate([1, 1, 2, 2, 2, 1, 1])]

    assert [sample.time for sample in changes_of(samples)] == [0.0, 2.0, 5.0, 6.0]


def test_a_trace_has_latencies_from_when_rows_were_due() -> None:
    # A row is due every 10 ms. The last epoch is bounded: it leaves half of them for later.
    rows = [100, 100, 50, 50]
    epochs = [
        Seen(number, output=at + 0.4, began=at, seconds=0.5, rows=rows[number], work={})
        for number, at in enumerate([20.0, 21.0, 22.0, 23.0])
    ]
    run = Played(epochs, [Sample(at, 2) for at in (19.0, 20.0, 21.0, 22.0)], [])

    trace = trace_of(run, np.arange(1, 301) / 100)

    assert trace.rate == [(1.0, 100.0), (2.0, 50.0), (3.0, 50.0)]
    assert trace.nodes == [(0.0, 2.0), (2.0, 2.0)]
    assert [value for _, value in trace.latency] == pytest.approx([0.9, 0.9, 1.15, 1.65], abs=0.01)
    assert trace.p95 == pytest.approx(1.75, abs=0.01)
    assert trace.mean_nodes == 2.0

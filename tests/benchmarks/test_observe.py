"""The benchmark of reads runs, on nodes of its own; that of the HTTP API takes turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.goals import Goal
from benchmarks.observe import QUICK, Turns, reads
from benchmarks.paired import cost_of
from millstream.observe.progress import EpochProgress

SMALL = replace(QUICK, keys=2_000, changes=200, epochs=3, seconds=0.2)


def test_reads_and_what_they_cost_epochs_are_measured() -> None:
    results = {result.name: result for result in reads(SMALL)}

    goals = {name for name, result in results.items() if isinstance(result, Goal)}
    assert goals == {"state_reads_per_second", "read_slowdown"}
    assert results["state_reads_per_second"].value > results["state_single_reads_per_second"].value


def test_turns_are_pairs_in_which_each_is_the_first_as_often() -> None:
    switched: list[bool] = []
    turns = Turns(switched.append, replace(QUICK, warm=2, pairs=4, turn=5))

    for epoch in range(2 + 8 * 5):
        turns.add(EpochProgress(epoch=epoch, tries=1, seconds=0.1))

    assert switched == [True, False, False, True] * 2
    assert len(turns.seconds[True]) == len(turns.seconds[False]) == 4


def test_a_cost_is_the_median_of_pairs_and_says_how_uncertain_it_is() -> None:
    drift = [1.0, 2.0, 4.0, 8.0]

    exact = cost_of([1.1 * each for each in drift], drift)
    scattered = cost_of([1.0, 2.2, 4.4, 9.6], drift)

    assert exact.median == pytest.approx(0.1) and exact.uncertainty == pytest.approx(0.0)
    assert scattered.median == pytest.approx(0.1) and scattered.uncertainty > 0.05

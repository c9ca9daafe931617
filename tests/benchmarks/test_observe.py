"""The benchmark of reads runs, on nodes of its own."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.goals import Goal
from benchmarks.observe import QUICK, reads

SMALL = replace(QUICK, keys=2_000, changes=200, epochs=3, seconds=0.2)


def test_reads_and_what_they_cost_epochs_are_measured() -> None:
    results = {result.name: result for result in reads(SMALL)}

    goals = {name for name, result in results.items() if isinstance(result, Goal)}
    assert goals == {"state_reads_per_second", "read_slowdown"}
    assert results["state_reads_per_second"].value > results["state_single_reads_per_second"].value

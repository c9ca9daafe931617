"""The benchmark of pauses runs, on nodes of its own."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.goals import Goal
from benchmarks.pauses import QUICK, measure

SMALL = replace(QUICK, keys=500, at_once=250, epochs=3, changes=50, memory_epochs=12)


def test_pauses_and_memory_are_measured_for_every_kind_of_value() -> None:
    results = {result.name: result for result in measure(SMALL, ("pauses", "memory"))}

    goals = {name for name, result in results.items() if isinstance(result, Goal)}
    assert goals == {"max_pause_ms", "growth_per_1000_epochs"}
    assert {f"pause_{kind}_ping_ms" for kind in SMALL.kinds} < set(results)
    for kind in SMALL.kinds:
        assert 0 < results[f"pause_{kind}_get_ms"].value <= results[f"wait_{kind}_get_ms"].value

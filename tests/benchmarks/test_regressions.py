"""A ratio that is worse than the one that is checked in is found."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.goals import Goal
from benchmarks.harness import Result
from benchmarks.regressions import regressions


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [
        (Goal("speed", 4.0, "times", at_least=3), 3.6, False),
        (Goal("speed", 4.0, "times", at_least=3), 3.4, True),
        (Goal("speed", 4.0, "times", at_least=3), 9.0, False),
        (Goal("delay", 0.7, "times", at_most=0.75), 0.8, False),
        (Goal("delay", 0.7, "times", at_most=0.75), 0.82, True),
        (Goal("cost", 0.01, "of the rate", at_most=0.15), 0.10, False),
        (Goal("cost", 0.01, "of the rate", at_most=0.15), 0.20, True),
        (Goal("gain", 0.50, "of the latency", at_least=0.31), 0.45, False),
        (Goal("gain", 0.50, "of the latency", at_least=0.31), 0.40, True),
        (Result("rate", 1000.0, "words/s"), 1.0, False),
    ],
)
def test_more_than_fifteen_percent_is_worse(before: Result, after: float, is_worse: bool) -> None:
    taken = {**asdict(before), "value": after}

    assert bool(regressions([asdict(before)], [taken])) is is_worse


def test_a_ratio_that_is_missing_is_found_unless_only_parts_were_taken() -> None:
    known = [asdict(Goal("speed", 4.0, "times", at_least=3))]

    assert regressions(known, []) == ["speed was not measured"]
    assert regressions(known, [], all_of_them=False) == []

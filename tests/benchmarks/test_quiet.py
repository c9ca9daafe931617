"""Benchmarks refuse a machine that does other work."""

from __future__ import annotations

import pytest

from benchmarks.quiet import BOUND, Load, load_now, require_quiet


def test_the_load_is_the_cpu_time_of_others_per_core() -> None:
    busy = iter([100.0, 103.0])

    load = load_now(
        seconds=3.0,
        busy=lambda: next(busy),
        sleep=lambda _: None,
        average=lambda: (4.0, 0.0, 0.0),
        cores=2,
    )

    assert load == Load(0.5, 2.0)


def test_a_busy_machine_is_refused_unless_it_is_to_be_taken() -> None:
    busy = Load(2 * BOUND, 0.0)

    with pytest.raises(SystemExit, match="--even-if-loaded"):
        require_quiet(busy, anyway=False)
    require_quiet(busy, anyway=True)
    require_quiet(Load(BOUND / 2, 1.0), anyway=False)


def test_a_load_average_that_no_benchmark_leaves_is_refused() -> None:
    with pytest.raises(SystemExit, match="load average"):
        require_quiet(Load(0.0, 10.0), anyway=False)

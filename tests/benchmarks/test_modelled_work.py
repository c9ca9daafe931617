"""Modelled work takes its time, counts as CPU time, and differs from node to node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from benchmarks.modelled_work import Processor, Seen


@pytest.fixture(autouse=True)
def real_clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Sleeps take no time here, but the clock goes on."""
    slept = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: 100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: slept[0])

    def sleep(seconds: float) -> None:
        slept[0] += 1.5 * seconds  # always too long

    monkeypatch.setattr(time, "sleep", sleep)
    yield slept


def arrived(processor: Processor) -> Processor:
    found: Processor = cloudpickle.loads(cloudpickle.dumps(processor))
    return found


def test_work_takes_its_time_in_the_long_run(real_clocks: list[float]) -> None:
    processor = arrived(Processor(0.001))

    took = [processor.work(3) for _ in range(100)]

    assert sum(took) == pytest.approx(0.3)
    assert real_clocks[0] == pytest.approx(0.3, abs=0.01)


def test_work_counts_as_cpu_time_of_the_process_that_it_arrived_in(
    real_clocks: list[float],
) -> None:
    processor = arrived(Processor(0.001))
    cpu = time.process_time  # as a node looks it up, before the first value
    other = arrived(Processor(0.001))

    processor.work(1000)
    other.work(500)

    assert cpu() == pytest.approx(100.0 + real_clocks[0])


def test_each_node_has_a_factor_of_its_own(tmp_path: Path) -> None:
    processor = Processor(0.01, slowness=(1.0, 2.0, 5.0), ranks=tmp_path)

    nodes = [arrived(processor) for _ in range(3)]

    assert [node.work(1) for node in nodes] == pytest.approx([0.01, 0.02, 0.05])
    assert [node.work(2) for node in nodes] == pytest.approx([0.02, 0.04, 0.1])


def test_imbalance_is_the_most_work_over_the_mean_of_all_nodes() -> None:
    seen = Seen(0, output=0.0, began=0.0, seconds=1.0, rows=8, work={11: 3.0, 12: 1.0})

    assert seen.imbalance(2) == 1.5
    assert seen.imbalance(4) == 3.0

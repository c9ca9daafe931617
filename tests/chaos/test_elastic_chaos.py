"""A sample of the chaos for elasticity (``make chaos-elastic`` has all), and tests of its plans."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from tests.chaos.elastic_plans import MOST_NODES, ElasticPlan, Kind, Outcome, Start, Step, plan_of
from tests.chaos.elastic_runner import run_once
from tests.chaos.workload import Shape

RUNS = 20


def step(kind: Kind, size: float = 0.5, *, settled: bool = False) -> Step:
    return Step(kind=kind, epochs=1, wait=0.1, pick=0.3, size=size, settled=settled)


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
def test_a_run_that_grows_shrinks_and_loses_nodes_and_its_driver_equals_the_batch_result() -> None:
    plan = ElasticPlan(
        seed=300,
        master="local-cluster",
        durability="epoch",
        shape=Shape(builtin=True, two_sinks=True),
        starts=(
            Start(nodes=2, steps=(step("scale", 0.6), step("move")), end="kill", wait=0.5),
            Start(nodes=3, steps=(step("kill"), step("scale", 0.2, settled=True))),
        ),
    )

    outcome = run_once(plan)

    assert outcome.exact, outcome.report()
    assert outcome.done == {"scale": 2, "move": 1, "kill": 1, "driver": 1}, outcome.report()


# -- the plans ---------------------------------------------------------------------------------


def test_a_plan_is_its_seeds_alone() -> None:
    assert plan_of(7) == plan_of(7)
    assert plan_of(7) != plan_of(8)


def test_every_run_has_all_kinds_of_steps_and_asks_for_one_to_six_nodes() -> None:
    for seed in range(RUNS):
        steps = plan_of(seed).steps

        assert {step.kind for step in steps} == set(get_args(Kind))
        assert all(1 <= step.nodes <= MOST_NODES for step in steps)


def test_half_of_the_runs_are_on_each_master_and_drivers_are_killed_in_many() -> None:
    plans = [plan_of(seed) for seed in range(RUNS)]

    assert Counter(plan.master for plan in plans) == {"local-cluster": 10, "standalone": 10}
    pairs = Counter((plan.master, plan.durability, plan.has_checkpoint) for plan in plans)
    assert len(pairs) == 8
    ends = {start.end for plan in plans for start in plan.starts[:-1]}
    assert ends == {"kill", "kill driver", "kill jvm"}
    assert all(plan.starts[-1].end is None for plan in plans)


def test_the_summary_of_a_run_has_its_seed_and_counts() -> None:
    outcome = Outcome(plan_of(5), done=Counter(move=2, scale=1), epochs=30)

    assert outcome.line().startswith("seed 5 | standalone epoch")
    assert "(move 2, scale 1)" in outcome.line() and "exact yes" in outcome.line()

"""Whole runs, simulated: nothing is lost and nothing counted twice, whatever happens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millstream.coordinator.ledger import Ledger
from millstream.sim.__main__ import main
from millstream.sim.cluster import Size
from millstream.sim.durable_scenario import DurableScenario
from millstream.sim.links import Faults
from millstream.sim.scenario import Scenario, draw, play, simulate
from millstream.sim.search import anything, first_broken, in_memory
from millstream.sim.spark import Shape, SparkFaults
from millstream.sim.workloads import WORKLOADS

SEEDS = 60


@pytest.mark.slow
def test_no_seed_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", str(SEEDS)]) == 0, capsys.readouterr().err


chances = st.sampled_from([0.0, 0.01, 0.05])


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    nodes = draw(st.integers(2, 5))
    slots = draw(st.integers(nodes, 12))
    bad = draw(chances)
    return Scenario(
        seed=draw(st.integers(0, 2**32)),
        size=Size(
            nodes=nodes,
            executors=draw(st.integers(1, nodes)),
            slots=slots,
            replicas=draw(st.integers(0, 3)),
            durability=draw(st.sampled_from(["epoch", "interval"])),
            log_limit=draw(st.sampled_from([200, 1_000_000])),
        ),
        shape=Shape(slots, draw(st.integers(1, 5)), draw(st.integers(1, 3))),
        spark_faults=SparkFaults(
            kill=draw(st.sampled_from([0.0, 0.3])),
            speculate=draw(st.sampled_from([0.0, 0.3])),
            rerun=draw(st.sampled_from([0.0, 0.3])),
            twice=draw(st.sampled_from([0.0, 0.3])),
            partly=draw(st.sampled_from([0.0, 0.3])),
        ),
        faults=Faults(
            lose_request=bad,
            lose_answer=bad,
            duplicate=draw(chances),
            break_feed=draw(chances),
            slow=draw(st.sampled_from([0.0, 0.005])),
        ),
        epochs=draw(st.integers(1, 5)),
        node_faults=draw(st.integers(0, 6)),
        rate=draw(st.sampled_from([0.003, 0.02])),
        changes=draw(st.sampled_from([0.0, 0.5])),
        may_lose_state=False,
        workload=draw(st.sampled_from(WORKLOADS)),
    )


@pytest.mark.slow
@settings(
    max_examples=settings().max_examples * 2 // 5,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(scenarios())
def test_no_scenario_breaks_a_promise(scenario: Scenario) -> None:
    play(scenario)


def test_one_of_two_nodes_that_cannot_reach_each_other_continues() -> None:
    kind = in_memory(
        size={"nodes": 2, "executors": 2, "replicas": 1},
        spark_faults={"kill": 0.0, "speculate": 0.0, "rerun": 0.0, "partly": 0.0, "flaky": 0.0},
        kinds=("cut",),
        node_faults=3,
        rate=0.01,
        epochs=4,
        may_lose_state=False,
    )
    outcomes = [play(kind(seed)) for seed in range(8)]

    assert all(outcome.error is None for outcome in outcomes)
    assert {outcome.lost_nodes for outcome in outcomes} == {0, 1}


@pytest.mark.parametrize("seed", [7, 8])
def test_the_same_seed_takes_the_same_course(seed: int) -> None:
    one, other = simulate(seed), simulate(seed)

    assert one == other
    assert one.fingerprint != play(replace(one.scenario, seed=seed + 3)).fingerprint


def test_every_third_seed_has_a_store_and_drivers_that_are_replaced() -> None:
    outcomes = [simulate(seed) for seed in range(2, 40, 3)]

    assert all(isinstance(outcome.scenario, DurableScenario) for outcome in outcomes)
    assert sum(outcome.drivers > 1 for outcome in outcomes) > len(outcomes) / 3


def test_every_workload_is_among_the_seeds_with_and_without_a_store() -> None:
    drawn = [draw(seed) for seed in range(2 * SEEDS)]

    for kind in (Scenario, DurableScenario):
        names = {scenario.workload for scenario in drawn if isinstance(scenario, kind)}
        assert names == set(WORKLOADS)


def test_a_violation_is_reported_with_its_seed_and_the_last_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Ledger, "missing", lambda ledger: {})

    found = first_broken(anything, range(100))

    assert found is not None
    assert found.problem.startswith(f"seed {found.seed}: ")
    assert "the last steps:\nt=" in found.problem
    assert main(["--seed", str(found.seed)]) == 1
    assert capsys.readouterr().out == found.problem + "\n"

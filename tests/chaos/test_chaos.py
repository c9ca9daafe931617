"""A sample of the chaos runs (``make chaos`` makes many), and tests of their checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millstream.spark.status import Status
from millstream.wire.control import NodeStatus
from tests.chaos.faults import Fault, Kind, Mode, is_complete, schedule, victims
from tests.chaos.plans import Outcome, Plan
from tests.chaos.sample import PLANS
from tests.chaos.workload import FILES, LINES, LOAD, Shape, answer, differences

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sample() -> dict[str, Any]:
    """The outcomes of the sample's runs, by name."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.sample"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    try:
        output, errors = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{output}\n{errors[-3000:]}"
    return {run["name"]: run for run in map(json.loads, output.splitlines())}


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
def test_a_node_that_is_stopped_for_half_of_its_timeout_is_not_fenced(
    sample: dict[str, Any],
) -> None:
    run = sample["stops"]

    assert run["exact"] and run["landed"] > 0 and run["fenced"] == 0, run["report"]


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("name", ["epoch", "interval", "zones"])
def test_a_run_with_killed_processes_equals_the_batch_result(
    sample: dict[str, Any], name: str
) -> None:
    run = sample[name]

    assert run["exact"], run["report"]
    assert run["landed"] > 0 and run["lost"] > 0, run["report"]


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
def test_killing_a_node_without_replicas_loses_state_with_an_error(sample: dict[str, Any]) -> None:
    run = sample["no copies"]

    assert not run["exact"]
    assert "StateLostError" in run["report"]


# -- what judges the runs ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_or_doubled_epoch_is_seen_in_state_and_rows(seed: int) -> None:
    shape = Shape.of(seed)
    right, short = answer(seed, 5, shape), answer(seed, 4, shape)

    reported = "\n".join(differences(short, right))

    assert differences(right, right) == []
    assert "state of 'baskets'" in reported and "state of 'worth'" in reported
    assert "rows of 'totals', epoch 4: missing" in reported
    doubled = answer(seed, 5, shape)
    doubled.rows["totals"][2].append(doubled.rows["totals"][2][0])
    assert len(differences(doubled, right)) == 1


def test_users_leave_and_entries_are_removed_in_the_input() -> None:
    kept = [answer(0, epochs, Shape.of(0)).state["baskets"] for epochs in range(1, 20)]

    assert any(before.keys() - after.keys() for before, after in pairwise(kept))
    assert any(
        before[user].keys() - after[user].keys()
        for before, after in pairwise(kept)
        for user in before.keys() & after.keys()
    )


def test_a_schedule_is_its_seeds_alone_and_has_every_kind() -> None:
    assert schedule(7, "single", 5) == schedule(7, "single", 5)
    assert schedule(7, "single", 5) != schedule(8, "single", 5)
    kinds = {fault.kind for fault in schedule(7, "single", 5)}
    assert kinds == {"kill", "pause", "freeze", "worker", "executor"}


def test_stops_are_for_half_of_and_for_twice_the_patience() -> None:
    kinds = {fault.kind for fault in schedule(7, "stops", 4)}

    assert kinds == {"half", "twice", "kill"}


def test_all_keys_of_the_load_come_in_the_first_epoch_and_some_in_every_other() -> None:
    first, second = (answer(1, epochs, Shape.of(1), 4_000).state[LOAD] for epochs in (1, 2))

    assert first == dict.fromkeys(range(4000), 1)
    assert second.keys() == first.keys() and sum(second.values()) == 4_000 + 2 * FILES * LINES


def test_the_summary_of_a_run_has_the_number_of_living_nodes_fenced() -> None:
    outcome = Outcome(Plan(seed=1), "local-cluster", fenced=["a1"])

    assert "living nodes fenced for being slow 1" in outcome.line()


NODES = [
    NodeStatus(name, "host", executor, zone, pid, slots=2, copies=2, in_sync=2)
    for pid, (name, executor, zone) in enumerate(
        [("a1", "0", "north"), ("b2", "1", "south"), ("c3", "0", "north"), ("d4", "1", "south")]
    )
]
RING = Status("flow", "running", 3, 0, NODES, drawing="ring\na1 …\nb2 …\nc3 …\nd4 …")


@pytest.mark.parametrize(
    ("kind", "hit"),
    [
        ("kill", ["d4"]),
        ("neighbours", ["d4", "a1"]),
        ("executor", ["b2", "d4"]),
        ("zone", ["b2", "d4"]),
    ],
)
def test_a_fault_hits_its_target(kind: Kind, hit: list[str]) -> None:
    fault = Fault(kind, epochs=1, wait=0.0, pick=0.9, length=0.5)

    assert sorted(node.node for node in victims(fault, RING)) == sorted(hit)


def test_no_fault_leaves_fewer_than_two_nodes() -> None:
    few = replace(RING, nodes=NODES[:2])
    modes: list[Mode] = ["single", "stops", "neighbours", "zones"]
    faults = [fault for mode in modes for fault in schedule(0, mode, 5)]

    spared = {fault.kind for fault in faults if not victims(fault, few)}

    assert spared == {"kill", "freeze", "twice", "executor", "neighbours", "zone"}


def test_a_ring_is_complete_only_with_all_copies_in_sync() -> None:
    behind = replace(RING, nodes=[replace(NODES[0], in_sync=1), *NODES[1:]])

    assert is_complete(RING, replicas=1, slots=8)
    assert not is_complete(RING, replicas=2, slots=8)
    assert not is_complete(behind, replicas=1, slots=8)
    assert is_complete(replace(RING, nodes=NODES[:1]), replicas=1, slots=2)


def test_the_sample_covers_both_ways_to_keep_copies() -> None:
    assert {plan.durability for plan in PLANS.values()} == {"epoch", "interval"}

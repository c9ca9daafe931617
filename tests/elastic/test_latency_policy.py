from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.elastic.actions import AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.latency_policy import LatencyOptions, LatencyPolicy
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load, NodeLoad
from millstream.elastic.wait_queue import WaitQueues, mean_latency, wait_queues
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring
from tests.elastic.closed_loop import ClosedLoop, Demand, node_ids

A, B, C, D, E = map(NodeId, "abcde")
RING = Ring.even([A, B], 100)


def run_with(speeds: list[float], demand: Demand) -> ClosedLoop:
    """Speeds and demand are in millions of tuples a second."""
    nodes = node_ids(len(speeds))
    ring = Ring.even(nodes, len(demand))
    per_second = dict(zip(nodes, (1e6 * speed for speed in speeds), strict=True))
    return ClosedLoop(ring, 1e6 * demand, speeds=per_second, interval=1.0)


def load_with(ring: Ring, *nodes: NodeLoad) -> Load:
    ones = np.ones(ring.slots)
    return Load(
        epoch=1,
        time=1.0,
        nodes={node.node: node for node in nodes},
        seconds=ones,
        tuples=ones,
        state_bytes=ones,
        epoch_seconds=1.0,
    )


@given(st.permutations([1.0, 1.5, 2.5, 4.0]), st.integers(0, 9))
def test_four_nodes_of_different_speed_gain_15_percent_within_five_rounds(
    speeds: list[float], seed: int
) -> None:
    demand = np.random.default_rng(seed).uniform(0.5, 1.5, 1024) / 1024
    loop = run_with(speeds, demand)
    even = mean_latency(loop.run_epoch())

    for _ in range(5):
        loop.decide(LatencyPolicy(), Limits(max_nodes=4))

    assert mean_latency(loop.run_epoch()) <= 0.85 * even


@given(st.lists(st.floats(0.5, 8), min_size=2, max_size=12), st.integers(0, 9))
def test_every_round_lowers_latency_as_predicted_and_comes_near_the_optimum(
    speeds: list[float], seed: int
) -> None:
    demand = np.random.default_rng(seed).uniform(0.5, 1.5, 4096) / 4096
    loop = run_with(speeds, demand)
    latency = mean_latency(loop.run_epoch())

    for _ in range(10):
        actions = loop.decide(LatencyPolicy(), Limits(max_nodes=len(speeds)))
        later = mean_latency(loop.run_epoch())
        if actions:
            assert later == pytest.approx(actions[0].predicted["latency"])
            assert later < latency
        latency = later

    assert latency <= 1.05 * 1 / sum(speeds)


@given(
    st.lists(st.floats(1e-6, 1), min_size=2, max_size=2),
    st.lists(st.floats(0, 1000), min_size=2, max_size=2).filter(lambda tuples: sum(tuples) > 1),
)
def test_no_other_number_of_tuples_gives_a_lower_latency(
    costs: list[float], tuples: list[float]
) -> None:
    queues = WaitQueues(np.array(costs))
    counts = np.array(tuples)

    best = queues.best_transfer(0, 1, counts)

    gain = queues.gain(0, 1, counts, best)
    for step in (-1.0, -0.01, 0.01, 1.0):
        assert queues.gain(0, 1, counts, best + step) <= gain + 1e-9


def test_latency_is_processing_and_waiting() -> None:
    queues = WaitQueues(np.array([0.001, 0.002]))
    tuples = np.array([90.0, 10.0])

    assert queues.latencies(tuples).tolist() == pytest.approx([0.091, 0.022])
    assert queues.mean_latency(tuples) == pytest.approx(0.0841)
    # With 20 tuples more on the second: 4.3 and 4.4 with f = 3 and f = 70/90.
    later = (70 * 0.071 + 30 * 0.062) / 100
    assert queues.gain(0, 1, tuples, 20) == pytest.approx(1 - later / 0.0841)


def test_a_node_without_figures_is_an_average_one_of_its_kind() -> None:
    load = load_with(
        RING,
        NodeLoad(node=A, cpu=0.5, tuples=100, reduce_seconds=1.0, kind="small"),
        NodeLoad(node=B, cpu=0.5, tuples=100, reduce_seconds=0.2, kind="large"),
        NodeLoad(node=C, cpu=0.5, tuples=100, reduce_seconds=0.4, kind="large"),
        NodeLoad(node=D, cpu=0.0, kind="large"),
        NodeLoad(node=E, cpu=0.0, kind="other"),
    )

    queues = wait_queues(load, [A, D, E])

    assert queues is not None
    assert queues.costs.tolist() == pytest.approx([0.01, 0.003, 0.016 / 3])


def test_feeds_that_wait_for_each_other_do_not_make_a_node_slow() -> None:
    whole = NodeLoad(node=A, cpu=0.5, tuples=50, reduce_seconds=0.5)
    in_parts = NodeLoad(node=B, cpu=0.5, tuples=50, reduce_seconds=0.5, queue=1.0)

    load = load_with(RING, whole, in_parts)

    assert LatencyPolicy().decide([load], RING, Limits(max_nodes=2)) == []


def test_the_slowest_node_is_paired_with_the_fastest() -> None:
    loop = run_with([4.0, 1.0, 2.0, 8.0], np.full(1024, 1 / 1024))

    actions = loop.decide(LatencyPolicy(), Limits(max_nodes=4))

    pairs = [(a.source, a.to) for a in actions if isinstance(a, MoveSlots)]
    assert pairs == [("n001", "n003"), ("n002", "n000")]


def test_a_node_without_slots_receives_none() -> None:
    own = [NodeLoad(node=node, cpu=0.5, tuples=50, reduce_seconds=0.5) for node in (A, B)]
    load = load_with(RING, *own, NodeLoad(node=C, cpu=0.0))

    assert LatencyPolicy().decide([load], RING, Limits(max_nodes=3)) == []


def test_a_small_gain_moves_nothing() -> None:
    loop = run_with([1.0, 1.2], np.full(1000, 0.001))
    loop.run_epoch()

    assert LatencyPolicy().decide(loop.history, loop.ring, Limits(max_nodes=2)) == []
    eager = LatencyPolicy(LatencyOptions(min_gain=0.001))
    assert eager.decide(loop.history, loop.ring, Limits(max_nodes=2)) != []


def test_with_a_target_nodes_are_added_and_removed() -> None:
    policy = LatencyPolicy(LatencyOptions(target=timedelta(seconds=0.3)))
    limits = Limits(min_nodes=2, max_nodes=8, standby=8)
    loop = run_with([1.0] * 3, np.full(1000, 0.0012))
    high = loop.run_epoch()

    (added,) = policy.decide([high], loop.ring, limits)

    # 1.2 s of work: four nodes bring it to the target.
    assert isinstance(added, AddNodes) and added.count == 1
    assert added.predicted == {"nodes": 4, "latency": pytest.approx(0.3, rel=1e-4)}
    loop.demand = loop.demand / 5
    (removed,) = policy.decide([loop.run_epoch()], loop.ring, limits)
    assert isinstance(removed, RemoveNodes)
    assert removed.predicted == {"nodes": 2, "latency": pytest.approx(0.12, rel=1e-4)}
    assert policy.decide([loop.run_epoch()], loop.ring, replace(limits, min_nodes=3)) == []
    assert LatencyPolicy().decide([high], loop.ring, limits) == []


def test_with_a_target_nodes_are_added_for_a_backlog() -> None:
    policy = LatencyPolicy(LatencyOptions(target=timedelta(seconds=0.3)))
    loop = run_with([1.0] * 3, np.full(1000, 0.0012))
    waiting = replace(loop.run_epoch(), backlog=10.0)

    (added,) = policy.decide([waiting], loop.ring, Limits(max_nodes=8, standby=8))

    # 1.2 s of work in an epoch, and as much of the backlog; at most twice as many nodes at once.
    assert isinstance(added, AddNodes) and added.count == 3


def test_the_measured_latency_of_nothing_is_zero() -> None:
    assert mean_latency(load_with(RING, NodeLoad(node=A, cpu=0.0))) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_gain": 0}, "min_gain must be between"),
        ({"low": 1.0}, "low must be between"),
        ({"target": 0.3}, "target must be a timedelta"),
        ({"target": timedelta(0)}, "target must be a timedelta of more than 0"),
    ],
)
def test_unusable_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LatencyOptions(**options)  # type: ignore[arg-type]

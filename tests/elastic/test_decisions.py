from __future__ import annotations

import numpy as np
import pytest

from millstream.elastic.actions import AddNodes, MoveSlots
from millstream.elastic.decisions import decided, outcome, summarise
from millstream.elastic.limits import Limits
from millstream.elastic.ring_policy import RingPolicy
from millstream.ring.ring import NodeId, Ring
from tests.elastic.closed_loop import ClosedLoop, load_of, node_ids, skewed

A, B, C = map(NodeId, "abc")
RING = Ring.even([A, B], 8)


def test_a_summary_has_the_figures_of_nodes_with_slots() -> None:
    load = load_of(RING, {A: 0.3, B: 0.1, C: 0.9})

    summary = summarise(load, RING)

    assert summary.nodes == 2
    assert summary.busiest == A
    assert summary.mean_cpu == pytest.approx(0.2)
    assert summary.max_cpu == 0.3
    assert summary.imbalance == pytest.approx(1.5)
    assert summary.tuples == pytest.approx(400)
    # 300 tuples wait 0.3 s, 100 wait 0.1 s, and each takes 1 ms.
    assert summary.latency == pytest.approx((300 * 0.301 + 100 * 0.101) / 400)


def test_the_summary_of_nodes_that_have_not_reported_is_zero() -> None:
    summary = summarise(load_of(RING, {}, seconds=np.zeros(8)), RING)

    assert (summary.busiest, summary.max_cpu, summary.latency) == (None, 0.0, 0.0)


def test_a_decision_records_what_it_was_made_from() -> None:
    move = MoveSlots(slots=(range(1),), source=A, to=B, reason="test", predicted={"imbalance": 1.1})
    add = AddNodes(count=1, reason="test", predicted={"nodes": 3})
    load = load_of(RING, {A: 0.3, B: 0.1}, epoch=7, time=9.5)

    decision = decided("ring", [move, add], load, RING, dry_run=True)

    assert (decision.epoch, decision.time, decision.ring) == (7, 9.5, 0)
    assert (decision.policy, decision.dry_run) == ("ring", True)
    assert decision.actions == (move, add)
    assert decision.before == summarise(load, RING)
    assert decision.predicted == {"imbalance": 1.1, "nodes": 3}


def test_what_came_of_a_decision_stands_beside_its_prediction() -> None:
    loop = ClosedLoop(Ring.even(node_ids(4), 1024), skewed(1024, 1) * 2)
    limits = Limits(max_nodes=4, min_nodes=4)
    before, ring = loop.run_epoch(), loop.ring
    decision = decided("ring", RingPolicy().decide([before], ring, limits), before, ring)
    loop.enact(decision.actions)

    result = outcome(decision, loop.run_epoch(), loop.ring)

    assert result.epoch == 2
    assert result.after.imbalance < decision.before.imbalance
    assert result.errors == {"imbalance": pytest.approx(0, abs=0.01)}
    text = str(result)
    assert text.startswith(f"imbalance from {decision.before.imbalance:.3g} to ")
    assert f"(predicted {decision.predicted['imbalance']:.3g}), latency from" in text
    assert text.endswith("nodes from 4 to 4")


def test_a_prediction_without_a_figure_is_left_out() -> None:
    add = AddNodes(count=1, reason="test", predicted={"mood": 1.0, "nodes": 3})
    load = load_of(RING, {A: 0.3, B: 0.1})

    result = outcome(decided("own", [add], load, RING), load, RING)

    assert result.errors == {"nodes": 1.0}

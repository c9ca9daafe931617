from __future__ import annotations

import numpy as np
import pytest

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.limits import Limits
from millstream.elastic.ring_policy import RingOptions, RingPolicy
from millstream.elastic.slot_shares import imbalance
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring
from tests.elastic.closed_loop import ClosedLoop, load_of

A, B, C, D = map(NodeId, "abcd")
RING = Ring.even([A, B, C, D], 64)
FIXED = Limits(min_nodes=4, max_nodes=4)
OPEN = Limits(min_nodes=1, max_nodes=8, standby=4)


def decide(
    *cpu: float, limits: Limits = FIXED, ring: Ring = RING, queue: float = 0.0
) -> list[Action]:
    load = load_of(ring, dict(zip(ring.nodes, cpu, strict=True)), queue=queue)
    return RingPolicy().decide([load], ring, limits)


def moved(actions: list[Action]) -> dict[tuple[NodeId, NodeId], tuple[range, ...]]:
    moves = [action for action in actions if isinstance(action, MoveSlots)]
    assert len(moves) == len(actions)
    return {(move.source, move.to): move.slots for move in moves}


def test_an_overloaded_node_gives_half_of_the_difference_to_its_clockwise_neighbour() -> None:
    actions = decide(0.9, 0.1, 0.5, 0.5)

    # 0.9 / 16 a slot: seven of them are nearest to 0.4.
    assert moved(actions) == {(A, B): (range(9, 16),)}
    assert "a carries 0.9 s per epoch" in actions[0].reason
    assert "go clockwise to b, which carries 0.1 s" in actions[0].reason


def test_a_neighbour_without_room_hands_slots_on_first() -> None:
    actions = decide(0.9, 0.6, 0.1, 0.4)

    assert set(moved(actions)) == {(A, B), (B, C)}


def test_slots_go_clockwise_around_the_end_of_the_ring() -> None:
    assert set(moved(decide(0.1, 0.5, 0.5, 0.9))) == {(D, A)}


def test_the_prediction_is_what_comes_about() -> None:
    load = load_of(RING, {A: 0.9, B: 0.6, C: 0.1, D: 0.4})
    actions = RingPolicy().decide([load], RING, FIXED)
    loop = ClosedLoop(RING, load.seconds)
    loop.enact(actions)

    assert imbalance(load, loop.ring) == pytest.approx(actions[0].predicted["imbalance"])
    assert imbalance(load, loop.ring) < 1.2 < imbalance(load, RING)


def test_high_cpu_alone_is_no_overload() -> None:
    ring = Ring.even([A], 16)
    busy_otherwise = load_of(ring, {A: 0.9}, seconds=np.full(16, 0.01))
    waiting = load_of(ring, {A: 0.9}, seconds=np.full(16, 0.01), queue=0.4)

    assert RingPolicy().decide([busy_otherwise], ring, OPEN) == []
    assert RingPolicy().decide([waiting], ring, OPEN) != []


def test_an_uneven_ring_is_evened_out_below_the_thresholds_unless_it_is_hardly_busy() -> None:
    assert moved(decide(0.5, 0.3, 0.3, 0.3))
    assert decide(0.05, 0.03, 0.03, 0.03) == []


def test_a_node_is_added_where_the_whole_neighbourhood_is_loaded() -> None:
    actions = decide(0.95, 0.8, 0.8, 0.8, limits=OPEN)

    assert len(actions) == 1 and isinstance(actions[0], AddNodes)
    assert actions[0].relieve[0] == A
    assert actions[0].predicted["nodes"] == 4 + actions[0].count
    assert "a used 95 % of a core" in actions[0].reason


def test_no_more_nodes_are_added_than_are_missing_or_stand_by() -> None:
    everyone = (1.0, 1.0, 1.0, 1.0)

    counts = [
        [
            action.count
            for action in decide(*everyone, limits=limits)
            if isinstance(action, AddNodes)
        ]
        for limits in (OPEN, Limits(max_nodes=8, standby=2), Limits(max_nodes=8), FIXED)
    ]

    # Four cores in use are 71 % of eight nodes' high threshold with headroom.
    assert counts == [[4], [2], [1], []]


def test_a_node_next_to_an_idle_one_is_removed() -> None:
    actions = decide(0.1, 0.1, 0.12, 0.11, limits=OPEN)

    assert actions == [
        RemoveNodes(nodes=(A,), reason=actions[0].reason, predicted=actions[0].predicted)
    ]
    assert actions[0].predicted["nodes"] == 3
    assert actions[0].predicted["mean_cpu"] == pytest.approx(0.43 / 3)


def test_an_idle_node_stays_if_its_neighbour_is_busy() -> None:
    assert decide(0.2, 0.26, 0.2, 0.26, limits=OPEN) == []


def test_no_node_is_removed_below_the_minimum() -> None:
    assert decide(0.1, 0.1, 0.1, 0.1) == []


def test_a_node_that_has_not_reported_is_not_asked() -> None:
    load = load_of(RING, {A: 0.6, C: 0.4, D: 0.4})

    assert RingPolicy().decide([load], RING, FIXED) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_high": 0.5}, "cpu_low must be less than half of cpu_high"),
        ({"cpu_low": -1}, "cpu_low must be between 0 and 64"),
        ({"queue_low": 2.0}, "queue_low must be between 0 and 0.5"),
        ({"max_imbalance": 1.0}, "max_imbalance must be between 1.05"),
        ({"min_cpu": "half"}, "min_cpu must be between"),
        ({"reach": 0}, "reach must be an integer of at least 1"),
    ],
)
def test_unusable_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RingOptions(**options)  # type: ignore[arg-type]

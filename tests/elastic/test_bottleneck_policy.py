from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.bottleneck_policy import BottleneckOptions, BottleneckPolicy
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring
from tests.elastic.closed_loop import load_of

A, B, C, D = map(NodeId, "abcd")
RING = Ring.even([A, B, C, D], 64)
FIXED = Limits(min_nodes=4, max_nodes=4)
OPEN = Limits(min_nodes=1, max_nodes=8, standby=4)


def report(time: float, *cpu: float) -> Load:
    parts = dict(zip(map(NodeId, "abcde"), cpu, strict=False))
    return load_of(RING, parts, epoch=int(time), time=time)


def decide(*loads: Load, limits: Limits = FIXED) -> list[Action]:
    return BottleneckPolicy().decide(loads, RING, limits)


def test_a_node_is_split_when_two_reports_five_seconds_apart_are_over_the_threshold() -> None:
    high, normal = (0.9, 0.3, 0.4, 0.5), (0.6, 0.55, 0.55, 0.55)

    assert decide(report(0, *high), report(4, *high)) == []
    assert decide(report(0, *normal), report(5, *high)) == []
    assert decide(report(0, *high), report(5, *normal)) == []
    assert decide(report(0, *high), report(5, *high)) != []
    assert decide(report(0, *high), report(3, *normal), report(5, *high)) != []


def test_half_of_the_difference_in_load_goes_to_the_least_loaded_node() -> None:
    high = (0.9, 0.5, 0.4, 0.3)

    actions = decide(report(0, *high), report(5, *high))

    # 0.9 / 16 a slot: five of them are just under 0.3.
    assert [(a.slots, a.source, a.to) for a in actions if isinstance(a, MoveSlots)] == [
        ((range(11, 16),), A, D)
    ]
    assert "a used 90 % of a core" in actions[0].reason
    assert actions[0].predicted["imbalance"] == pytest.approx((0.9 - 5 * 0.9 / 16) / (2.1 / 4))


def test_the_split_follows_the_load_and_not_the_number_of_slots() -> None:
    seconds = np.full(64, 0.001)
    seconds[:8] = 0.1
    loads = [
        load_of(RING, {A: 0.9, B: 0.1, C: 0.1, D: 0.1}, time=at, seconds=seconds)
        for at in (0.0, 5.0)
    ]

    (move,) = decide(*loads)

    assert isinstance(move, MoveSlots) and move.count > 8
    assert sum(seconds[list(run)].sum() for run in move.slots) == pytest.approx(0.4, abs=0.1)


def test_the_most_loaded_nodes_are_paired_with_the_least_loaded() -> None:
    high = (0.9, 0.8, 0.2, 0.1)

    actions = decide(report(0, *high), report(5, *high))

    pairs = [(a.source, a.to) for a in actions if isinstance(a, MoveSlots)]
    assert pairs == [(A, D), (B, C)]


def test_a_node_is_added_if_no_other_has_room() -> None:
    high = (0.95, 0.65, 0.65, 0.65)

    (action,) = decide(report(0, *high), report(5, *high), limits=OPEN)

    assert isinstance(action, AddNodes)
    assert (action.count, action.relieve) == (1, (A,))


def test_a_node_without_slots_receives_none() -> None:
    high = (0.95, 0.4, 0.65, 0.65, 0.0)

    (action,) = decide(report(0, *high), report(5, *high), limits=OPEN)

    assert isinstance(action, MoveSlots) and action.to == B


def test_no_more_nodes_are_added_than_stand_by_or_are_allowed() -> None:
    high = (1.0, 1.0, 1.0, 1.0)

    counts = [
        [
            a.count
            for a in decide(report(0, *high), report(5, *high), limits=limits)
            if isinstance(a, AddNodes)
        ]
        for limits in (OPEN, Limits(max_nodes=5, standby=4), Limits(max_nodes=8), FIXED)
    ]

    assert counts == [[4], [1], [1], []]


def test_an_idle_node_is_removed_after_two_low_reports() -> None:
    low, normal = (0.3, 0.3, 0.3, 0.2), (0.3, 0.3, 0.3, 0.3)

    assert decide(report(0, *normal), report(5, *low), limits=OPEN) == []
    (action,) = decide(report(0, *low), report(5, *low), limits=OPEN)

    assert isinstance(action, RemoveNodes)
    assert action.nodes == (D,)
    assert action.predicted == {"nodes": 3, "mean_cpu": pytest.approx(1.1 / 3)}


def test_an_idle_node_stays_if_the_others_have_no_room_for_its_load() -> None:
    low = (0.55, 0.55, 0.55, 0.2)
    policy = BottleneckPolicy(BottleneckOptions(max_imbalance=10))

    assert policy.decide([report(0, *low), report(5, *low)], RING, OPEN) == []


def test_no_node_is_removed_below_the_minimum() -> None:
    low = (0.1, 0.1, 0.1, 0.1)

    assert decide(report(0, *low), report(5, *low)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_low": 0.4}, "cpu_low must be less than half of cpu_high"),
        ({"reports": 0}, "reports must be an integer of at least 1"),
        ({"every": 5}, "every must be a timedelta"),
        ({"every": timedelta(-1)}, "every must be a timedelta"),
    ],
)
def test_unusable_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BottleneckOptions(**options)  # type: ignore[arg-type]

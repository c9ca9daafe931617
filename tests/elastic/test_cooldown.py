from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from math import pi, sin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.elastic.actions import Action, AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.bottleneck_policy import BottleneckPolicy
from millstream.elastic.cooldown import Cooldown, decide_calmly
from millstream.elastic.decisions import decided
from millstream.elastic.latency_policy import LatencyOptions, LatencyPolicy
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.elastic.policy import Policy
from millstream.elastic.ring_policy import RingPolicy
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring
from tests.elastic.closed_loop import ClosedLoop, load_of, node_ids, skewed

POLICIES: dict[str, Policy] = {
    "ring": RingPolicy(),
    "bottleneck": BottleneckPolicy(),
    "latency": LatencyPolicy(LatencyOptions(target=timedelta(seconds=2.4))),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
LIMITS = Limits(min_nodes=1, max_nodes=16, standby=1)
A, B, C = map(NodeId, "abc")

few = settings(max_examples=settings().max_examples // 7)
starts = st.tuples(st.integers(1, 8), st.floats(0.2, 6), st.integers(0, 20))
"""How many nodes there are first, the cores that the load needs on average, and a seed."""


def actions_over(
    policy: Policy, start: tuple[int, float, int], seconds: int, level: Callable[[float], float]
) -> list[list[Action]]:
    """What is decided after each epoch of four seconds, under a load that follows ``level``."""
    count, cores, seed = start
    loop = ClosedLoop(Ring.even(node_ids(count), 256), np.zeros(256), interval=4.0)
    demand = skewed(256, seed) * cores
    found = []
    for _ in range(seconds // 4):
        loop.demand = demand * level(loop.time)
        found.append(loop.decide_calmly(policy, LIMITS, Cooldown()))
    return found


@every_policy
@few
@given(starts)
def test_a_constant_load_settles(policy: Policy, start: tuple[int, float, int]) -> None:
    actions = actions_over(policy, start, 1000, lambda time: 1.0)

    assert not any(actions[-30:])


@every_policy
@few
@given(starts, st.floats(0.2, 3))
def test_a_step_settles(policy: Policy, start: tuple[int, float, int], step: float) -> None:
    actions = actions_over(policy, start, 1300, lambda time: 1.0 if time < 200 else step)

    assert not any(actions[-30:])


def turns(decisions: Sequence[Sequence[Action]]) -> int:
    """How often nodes are added after they were removed, or the other way."""
    kinds = [type(action) for actions in decisions for action in actions]
    scaled = [kind for kind in kinds if kind is not MoveSlots]
    return sum(one is not other for one, other in pairwise(scaled))


@every_policy
@few
@given(starts, st.floats(9, 50))
def test_a_fast_wave_is_not_followed(
    policy: Policy, start: tuple[int, float, int], period: float
) -> None:
    def wave(time: float) -> float:
        return 1 + 0.5 * sin(2 * pi * time / period)

    decisions = actions_over(policy, start, 1000, wave)

    assert turns(decisions) <= 1
    # Peaks may meet reports late, and then add a node.
    assert sum(map(bool, decisions[125:])) <= 8


@every_policy
@few
@given(starts)
def test_a_slow_wave_is_followed_once_up_and_once_down(
    policy: Policy, start: tuple[int, float, int]
) -> None:
    def wave(time: float) -> float:
        return 1 + 0.8 * sin(2 * pi * time / 1000)

    decisions = actions_over(policy, start, 3000, wave)

    assert turns(decisions[250:]) <= 4


@dataclass(frozen=True)
class Fixed:
    """Decides the same whenever it is asked."""

    actions: Sequence[Action]
    name: str = "fixed"

    def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
        return list(self.actions)


RING = Ring.even([A, B, C], 12)
TO_B = MoveSlots(slots=(range(0, 2),), source=A, to=B, reason="test")
TO_C = MoveSlots(slots=(range(4, 6),), source=B, to=C, reason="test")
ADD = AddNodes(count=1, reason="test")
REMOVE = RemoveNodes(nodes=(A,), reason="test")


def history(*times: float, cpu: float = 0.5) -> list[Load]:
    parts = dict.fromkeys((A, B, C), cpu)
    return [load_of(RING, parts, epoch=int(at), time=float(at)) for at in times]


def asked(policy: Policy, at: float, past: Sequence[tuple[float, Action]]) -> list[Action]:
    decisions = [decided("fixed", [action], history(time)[0], RING) for time, action in past]
    loads = history(*range(int(at) + 1))
    return decide_calmly(policy, loads, RING, LIMITS, decisions, Cooldown())


def test_two_epochs_pass_after_a_move() -> None:
    assert asked(Fixed([TO_B]), 100, []) == [TO_B]
    assert asked(Fixed([TO_B]), 101, [(100, TO_C)]) == []
    assert asked(Fixed([TO_B]), 102, [(100, TO_C)]) == [TO_B]


def test_ten_seconds_pass_after_scaling() -> None:
    assert asked(Fixed([TO_B]), 109, [(100, ADD)]) == []
    assert asked(Fixed([TO_B]), 110, [(100, ADD)]) == [TO_B]
    assert asked(Fixed([TO_B]), 109, [(100, REMOVE)]) == []


def test_nodes_are_removed_only_if_the_load_was_low_for_a_minute() -> None:
    assert asked(Fixed([REMOVE]), 59, []) == []
    assert asked(Fixed([REMOVE]), 60, []) == [REMOVE]
    assert asked(Fixed([REMOVE]), 100, [(40, TO_B)]) == []
    assert asked(Fixed([REMOVE]), 101, [(40, TO_B)]) == [REMOVE]


def test_nodes_are_not_removed_after_a_recent_peak() -> None:
    low, high = history(*range(100), cpu=0.1), history(*range(100), cpu=0.5)
    calm = [low, [*high[:30], *low[30:]], [*low[:90], high[90], *low[91:]]]

    removed = [
        any(
            isinstance(action, RemoveNodes)
            for action in decide_calmly(RingPolicy(), loads, RING, LIMITS, [], Cooldown())
        )
        for loads in calm
    ]

    assert removed == [True, True, False]


def test_nodes_are_not_removed_if_input_had_to_wait() -> None:
    calm = history(*range(100), cpu=0.1)
    waited = [*calm[:90], replace(calm[90], backlog=0.5), *calm[91:]]

    found = decide_calmly(RingPolicy(), waited, RING, LIMITS, [], Cooldown())

    assert found == []


def test_other_actions_come_before_removals() -> None:
    assert asked(Fixed([REMOVE, TO_C]), 100, []) == [TO_C]


def test_a_slot_does_not_return_at_once() -> None:
    back = MoveSlots(slots=(range(1, 3),), source=B, to=A, reason="test")

    assert asked(Fixed([back]), 120, [(100, TO_B)]) == []
    assert asked(Fixed([back]), 130, [(100, TO_B)]) == [back]
    assert asked(Fixed([back]), 120, [(100, TO_C)]) == [back]


def test_a_node_that_may_not_hand_slots_on_receives_none() -> None:
    back = MoveSlots(slots=(range(4, 5),), source=C, to=B, reason="test")
    onto = MoveSlots(slots=(range(0, 1),), source=A, to=C, reason="test")

    assert asked(Fixed([onto, back]), 120, [(100, TO_C)]) == []


def test_a_dry_run_keeps_no_slot_from_moving() -> None:
    back = MoveSlots(slots=(range(1, 3),), source=B, to=A, reason="test")
    past = [decided("fixed", [TO_B], history(100)[0], RING, dry_run=True)]

    found = decide_calmly(Fixed([back]), history(110), RING, LIMITS, past, Cooldown())

    assert found == [back]


def test_the_policy_sees_only_the_load_since_the_last_change() -> None:
    seen: list[int] = []

    class Watching:
        name = "watching"

        def decide(self, history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
            seen.extend(load.epoch for load in history)
            return []

    asked(Watching(), 12, [(3, TO_B), (8, TO_C)])

    assert seen == [9, 10, 11, 12]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"no_return": 3}, "no_return must be a timedelta of at least 0, got 3"),
        ({"after_scaling": timedelta(-1)}, "after_scaling must be a timedelta of at least 0"),
    ],
)
def test_unusable_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cooldown(**options)  # type: ignore[arg-type]

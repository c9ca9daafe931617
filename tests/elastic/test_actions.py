from __future__ import annotations

import pytest

from millstream.elastic.action_checks import problem_with
from millstream.elastic.actions import AddNodes, MoveSlots, RemoveNodes
from millstream.elastic.limits import Limits
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring

A, B, X = map(NodeId, "abx")
RING = Ring.even([A, B], 8)
LIMITS = Limits(min_nodes=2, max_nodes=3)


def move(*slots: range, source: NodeId = A, to: NodeId = B) -> MoveSlots:
    return MoveSlots(slots=slots, source=source, to=to, reason="test")


def remove(*nodes: NodeId) -> RemoveNodes:
    return RemoveNodes(nodes=nodes, reason="test")


def add(count: int, *relieve: NodeId) -> AddNodes:
    return AddNodes(count=count, relieve=relieve, reason="test")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([move(range(4))], None),
        ([move(range(2)), move(range(4, 5), source=B, to=A)], None),
        ([add(1, A)], None),
        (["move"], "'move' (str); return MoveSlots, AddNodes or RemoveNodes objects"),
        ([move(range(4), to=X)], "no node x owns slots; the nodes are a, b"),
        ([add(1, X)], "no node x owns slots"),
        ([remove(X)], "no node x owns slots"),
        ([move(range(4, 9), source=B, to=A)], "slot 8 does not exist; slots are 0 to 7"),
        ([move(range(5))], "a does not own all of slots 0 to 4; move slots from the node that"),
        ([move(range(1), source=B, to=A)], "b does not own all of slots 0 to 0"),
        ([move(range(2)), move(range(1, 3))], "slots 1 to 2 are moved twice"),
        ([add(2)], "there would be 4 nodes; at most 3 are allowed"),
        ([remove(A)], "1 nodes would be left; at least 2 must stay"),
        ([move(range(1), to=B), remove(B)], "b is removed; move slots to a node that stays"),
        ([remove(B), remove(B)], "a node is removed twice; remove a node once"),
    ],
)
def test_actions_that_cannot_be_enacted_are_found(actions: list[object], message: str) -> None:
    problem = problem_with(actions, RING, LIMITS)

    if message is None:
        assert problem is None
    else:
        assert problem is not None and f"{problem.what}; {problem.fix}".startswith(message)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: move(), "slots must be a tuple of at least one range"),
        (lambda: move(range(3, 3)), "slots must be ranges that are not empty"),
        (lambda: move(range(0, 4, 2)), "slots must be ranges that are not empty, step 1"),
        (lambda: move(range(-1, 2)), "slots must be ranges"),
        (lambda: move(range(2, 4), range(0, 3)), "slots must be in increasing order"),
        (lambda: move(range(2), to=A), "source and to must differ"),
        (lambda: add(0), "count must be an integer of at least 1"),
        (lambda: add(1, A, A), "relieve must differ"),
        (lambda: remove(), "nodes must name at least one node"),
        (
            lambda: RemoveNodes(nodes="ab", reason="x"),  # type: ignore[arg-type]
            "nodes must be a tuple of node ids",
        ),
        (lambda: AddNodes(count=1, reason=" "), "AddNodes needs a reason"),
        (
            lambda: AddNodes(count=1, reason="x", predicted={"cpu": float("nan")}),
            "predicted must map names to finite numbers",
        ),
    ],
)
def test_an_action_that_makes_no_sense_is_rejected(build: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()  # type: ignore[operator]


def test_a_move_counts_its_slots() -> None:
    assert move(range(2), range(3, 4)).count == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_nodes": 0}, "max_nodes must be an integer of at least 1, got 0"),
        ({"max_nodes": 2, "min_nodes": 3}, "max_nodes must be at least min_nodes (3), got 2"),
        ({"max_nodes": 2, "standby": -1}, "standby must be an integer of at least 0"),
    ],
)
def test_unusable_limits_are_rejected(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Limits(**options)

    assert str(caught.value).startswith(message)


def test_limits_say_how_many_nodes_may_come_and_go() -> None:
    ring = Ring.even([NodeId(f"n{number}") for number in range(30)], 60)

    assert Limits(max_nodes=32, standby=5).addable(ring, 9) == 2
    assert Limits(max_nodes=40, standby=5).addable(ring, 9) == 5
    assert Limits(max_nodes=40).addable(ring, 9) == 1
    assert Limits(max_nodes=20).addable(ring, 9) == 0
    assert Limits(max_nodes=40).removable(ring) == 3
    assert Limits(max_nodes=40, min_nodes=29).removable(ring) == 1
    assert Limits(max_nodes=40, min_nodes=40).removable(ring) == 0

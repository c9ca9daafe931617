from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.ring.balance import pending
from millstream.ring.ring import NodeId, Ring, RingError, partition_slots
from tests.ring.key_strategies import untimed

A, B, C, D = map(NodeId, "abcd")


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    """Rings after any history of joins, leaves and moves, also with a token past slot 0."""
    slots = draw(st.integers(2, 64))
    positions = sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1, max_size=8)))
    names = st.sampled_from("abcdef").map(NodeId)
    tokens = [(position, draw(names)) for position in positions]
    return Ring(draw(st.integers(0, 9)), slots, tuple(tokens))


def walk(ring: Ring, slot: int) -> NodeId:
    """Find the owner as the definition says: step back until a token is met."""
    tokens = dict(ring.tokens)
    while slot not in tokens:
        slot = (slot - 1) % ring.slots
    return tokens[slot]


def moved(before: Ring, after: Ring) -> list[int]:
    return sorted(slot for move in pending(before, after) for run in move.runs for slot in run)


@untimed
@given(rings())
def test_every_slot_has_exactly_one_owner(ring: Ring) -> None:
    owned = [slot for node in ring.nodes for slot in ring.slots_of(node).tolist()]

    assert sorted(owned) == list(range(ring.slots))
    for slot in range(ring.slots):
        assert ring.owner(slot) == walk(ring, slot)
        assert slot in ring.slots_of(ring.owner(slot))


@untimed
@given(st.integers(1, 40), st.integers(0, 100))
def test_an_even_ring_gives_equal_arcs_in_node_order(count: int, more: int) -> None:
    nodes = [NodeId(f"n{index}") for index in range(count)]

    ring = Ring.even(nodes, count + more)

    assert ring.nodes == tuple(nodes)
    sizes = [len(ring.slots_of(node)) for node in nodes]
    assert max(sizes) - min(sizes) <= 1
    assert np.concatenate([ring.slots_of(node) for node in nodes]).tolist() == list(
        range(ring.slots)
    )


@untimed
@given(rings(), st.data())
def test_a_joining_node_takes_slots_and_nobody_else_does(ring: Ring, data: st.DataObject) -> None:
    free = sorted(set(range(ring.slots)) - {position for position, _ in ring.tokens})
    assume(free)
    token = data.draw(st.sampled_from(free))

    after = ring.with_node(NodeId("new"), token=token)

    assert after.version == ring.version + 1
    assert {move.target for move in pending(ring, after)} == {"new"}
    assert moved(ring, after) == after.slots_of(NodeId("new")).tolist()
    assert token in after.slots_of(NodeId("new"))


@untimed
@given(rings(), st.data())
def test_a_leaving_node_gives_its_slots_to_its_successor(ring: Ring, data: st.DataObject) -> None:
    assume(len(ring.nodes) > 1)
    node = data.draw(st.sampled_from(ring.nodes))

    after = ring.without(node)

    assert after.version == ring.version + 1
    assert node not in after.nodes
    assert moved(ring, after) == ring.slots_of(node).tolist()
    pairs = {(move.source, move.target) for move in pending(ring, after)}
    assert pairs == {(node, ring.successor(node))}


@untimed
@given(rings(), st.data())
def test_moved_slots_change_owner_and_no_others(ring: Ring, data: st.DataObject) -> None:
    slots = data.draw(st.sets(st.integers(0, ring.slots - 1)))
    to = data.draw(st.sampled_from([*ring.nodes, NodeId("new")]))

    after = ring.moved(slots, to)

    for slot in range(ring.slots):
        assert after.owner(slot) == (to if slot in slots else ring.owner(slot))
    assert set(moved(ring, after)) <= slots


@untimed
@given(rings())
def test_a_ring_survives_pickling(ring: Ring) -> None:
    assert ring.table.size == ring.slots  # the cache is filled

    copy = pickle.loads(pickle.dumps(ring))

    assert copy == ring
    assert hash(copy) == hash(ring)


def test_a_pickled_ring_leaves_its_table_behind() -> None:
    ring = Ring.even([A, B])
    assert ring.owner(0) == A

    assert len(pickle.dumps(ring)) < 500


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Ring.even([A, B]).table[0] = 1


def test_slots_before_the_first_token_belong_to_the_last_node() -> None:
    ring = Ring(0, 10, ((3, A), (7, B)))

    assert ring.slots_of(B).tolist() == [0, 1, 2, 7, 8, 9]


def test_neighbours_come_clockwise_and_never_include_the_node() -> None:
    ring = Ring.even([A, B, C, D])

    assert ring.successor(D) == A
    assert ring.neighbours(C, 2) == (D, A)
    assert ring.neighbours(C, 9) == (D, A, B)
    assert ring.neighbours(C, 0) == ()
    assert Ring.even([A]).successor(A) == A
    assert Ring.even([A]).neighbours(A, 1) == ()


def test_a_joining_node_without_a_token_takes_half_of_the_longest_arc() -> None:
    ring = Ring(0, 100, ((0, A), (20, B)))

    assert ring.with_node(C).slots_of(C).tolist() == list(range(60, 100))


def test_the_longest_arc_may_wrap_around() -> None:
    ring = Ring(0, 100, ((40, A), (60, B)))

    assert ring.with_node(C).slots_of(C).tolist() == list(range(40))


def test_nodes_can_join_until_every_slot_has_its_own() -> None:
    ring = Ring.even([A], 4)
    for name in "bcd":
        ring = ring.with_node(NodeId(name))

    assert sorted(ring.nodes) == [A, B, C, D]
    with pytest.raises(RingError, match="more slots"):
        ring.with_node(NodeId("e"))


@untimed
@given(st.integers(1, 300), st.integers(1, 400))
def test_partitions_cover_the_slots_in_order_and_evenly(slots: int, partitions: int) -> None:
    ranges = partition_slots(slots, partitions)

    assert len(ranges) == partitions
    assert [slot for part in ranges for slot in part] == list(range(slots))
    assert all(
        part == range(index * slots // partitions, (index + 1) * slots // partitions)
        for index, part in enumerate(ranges)
    )


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Ring(-1, 10, ((0, A),)), "version"),
        (lambda: Ring(0, 0, ((0, A),)), "slots"),
        (lambda: Ring(0, 10, ()), "at least one token"),
        (lambda: Ring(0, 10, ((5, A), (3, B))), "increasing"),
        (lambda: Ring(0, 10, ((5, A), (5, B))), "increasing"),
        (lambda: Ring(0, 10, ((10, A),)), "from 0 to 9"),
        (lambda: Ring(0, 10, ((-1, A),)), "from 0 to 9"),
        (lambda: Ring.even([]), "nodes"),
        (lambda: Ring.even([A, A]), "differ"),
        (lambda: Ring.even([A, B], 1), "nodes"),
        (lambda: Ring.even([A]).neighbours(A, -1), "at least 0"),
        (lambda: Ring.even([A]).with_node(B, token=4096), "token"),
        (lambda: partition_slots(0, 1), "slots"),
        (lambda: partition_slots(1, 0), "partitions"),
    ],
)
def test_an_impossible_option_is_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attempt()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Ring.even([A]).owner(4096), "no slot 4096"),
        (lambda: Ring.even([A]).owner(-1), "no slot -1"),
        (lambda: Ring.even([A]).moved([-1], B), "no slots"),
        (lambda: Ring.even([A]).moved([4096], A), "no slots"),
        (lambda: Ring.even([A]).slots_of(B), "not in the ring; it has a"),
        (lambda: Ring.even([A]).without(A), "last in the ring"),
        (lambda: Ring.even([A]).without(B), "not in the ring"),
        (lambda: Ring.even([A]).with_node(A), "new id"),
        (lambda: Ring.even([A]).with_node(B, token=0), "another token"),
    ],
)
def test_an_impossible_request_is_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(RingError, match=message):
        attempt()


def test_a_ring_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(RingError("what happened", "what to do")))

    assert str(error) == "what happened; what to do"

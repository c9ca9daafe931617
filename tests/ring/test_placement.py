from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement, Share
from millstream.ring.ring import NodeId, Ring, RingError
from millstream.ring.zones import Domain, backups_of, interleave
from tests.ring.key_strategies import untimed

A, B, C, D = map(NodeId, "abcd")


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    """Rings after any history: several tokens of a node, two in a row, none at slot 0."""
    slots = draw(st.integers(1, 48))
    positions = sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1, max_size=8)))
    tokens = [(position, draw(st.sampled_from("abcdef").map(NodeId))) for position in positions]
    return Ring(draw(st.integers(0, 9)), slots, tuple(tokens))


@st.composite
def masks_for(draw: st.DrawFn, ring: Ring) -> dict[NodeId, SlotMask]:
    """Any masks, also of nodes outside of the ring, in long runs and in single slots."""
    nodes = draw(st.sets(st.sampled_from("abcdefxyz").map(NodeId)))
    found = {}
    for node in sorted(nodes):
        mask = np.zeros(ring.slots, np.bool_)
        for _ in range(draw(st.integers(0, 3))):
            start, end = sorted(draw(st.tuples(*[st.integers(0, ring.slots)] * 2)))
            mask[start:end] = True
        found[node] = mask
    return found


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    ring = draw(rings())
    return Placement.of(ring, draw(masks_for(ring)))


def mask(slots: int, *true: int | range) -> SlotMask:
    found = np.zeros(slots, np.bool_)
    for where in true:
        found[list(where) if isinstance(where, range) else where] = True
    return found


def backed_up(ring: Ring, backups: Mapping[NodeId, tuple[NodeId, ...]]) -> Placement:
    """Feed each node's slots to its backups."""
    alone = Placement.alone(ring)
    feeds = {node: np.zeros(ring.slots, np.bool_) for node in ring.nodes}
    for node, others in backups.items():
        for other in others:
            feeds[other] |= alone.owned(node)
    return Placement.of(ring, feeds)


@untimed
@given(rings(), st.data())
def test_a_slot_is_copied_to_those_whose_masks_name_it(ring: Ring, data: st.DataObject) -> None:
    masks = data.draw(masks_for(ring))

    placement = Placement.of(ring, masks)

    for slot in range(ring.slots):
        owner = ring.owner(slot)
        named = {node for node, mask in masks.items() if mask[slot]} - {owner}
        around = [*ring.neighbours(owner, len(ring.nodes)), *sorted(named - set(ring.nodes))]
        assert placement.owner(slot) == owner
        assert placement.copies(slot) == tuple(node for node in around if node in named)


@untimed
@given(placements())
def test_the_owner_is_never_among_the_copies(placement: Placement) -> None:
    for slot in range(placement.ring.slots):
        assert placement.owner(slot) not in placement.copies(slot)
    for node in placement.nodes:
        assert not (placement.owned(node) & placement.fed(node)).any()


@untimed
@given(placements(), st.data())
def test_shares_cut_a_range_exactly_where_something_changes(
    placement: Placement, data: st.DataObject
) -> None:
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, placement.ring.slots)] * 2)))

    shares = placement.shares(range(start, end))

    assert [slot for share in shares for slot in share.slots] == list(range(start, end))
    assert all(share.slots for share in shares)
    for share in shares:
        for slot in share.slots:
            assert (share.owner, share.copies) == (placement.owner(slot), placement.copies(slot))
    for one, other in pairwise(shares):
        assert (one.owner, one.copies) != (other.owner, other.copies)


@untimed
@given(placements())
def test_masks_agree_with_single_slots(placement: Placement) -> None:
    everywhere = range(placement.ring.slots)
    for node in (*placement.nodes, NodeId("stranger")):
        owned, fed = placement.owned(node), placement.fed(node)
        assert owned.dtype == fed.dtype == np.bool_
        assert owned.tolist() == [placement.owner(slot) == node for slot in everywhere]
        assert fed.tolist() == [node in placement.copies(slot) for slot in everywhere]
        assert placement.held(node).tolist() == (owned | fed).tolist()


@untimed
@given(placements())
def test_the_nodes_are_those_that_hold_something(placement: Placement) -> None:
    names = map(NodeId, "abcdefxyz")
    holders = {node for node in names if placement.held(node).any()}

    assert set(placement.nodes) == holders
    assert placement.nodes[: len(placement.ring.nodes)] == placement.ring.nodes
    others = placement.nodes[len(placement.ring.nodes) :]
    assert list(others) == sorted(others)


@untimed
@given(placements())
def test_a_placement_is_rebuilt_from_its_masks(placement: Placement) -> None:
    masks = {node: placement.held(node) for node in placement.nodes}

    assert Placement.of(placement.ring, masks) == placement


@untimed
@given(placements())
def test_a_placement_survives_pickling(placement: Placement) -> None:
    copy = pickle.loads(pickle.dumps(placement))

    assert copy == placement
    assert hash(copy) == hash(placement)


@untimed
@given(placements(), st.integers(0, 99))
def test_another_version_places_slots_alike(placement: Placement, version: int) -> None:
    after = placement.at(version)

    assert after.version == after.ring.version == version
    assert after.at(placement.version) == placement


@untimed
@given(rings(), st.data())
def test_a_leaving_node_changes_the_owners_of_its_slots_only(
    ring: Ring, data: st.DataObject
) -> None:
    assume(len(ring.nodes) > 1)
    node = data.draw(st.sampled_from(ring.nodes))
    before = Placement.alone(ring)

    after = Placement.alone(ring.without(node))

    for other in before.nodes:
        gone = before.owned(other) & ~after.owned(other)
        assert gone.tolist() == (before.owned(node) & (other == node)).tolist()


@untimed
@given(st.integers(1, 10), st.integers(1, 10), st.integers(0, 50))
def test_a_ring_over_two_zones_loses_no_slot_with_a_zone(one: int, other: int, more: int) -> None:
    zones = {
        NodeId(f"n{index}"): "left" if index < one else "right" for index in range(one + other)
    }
    domains = {node: Domain(zone, f"host of {node}", "1") for node, zone in zones.items()}
    ring = Ring.even(interleave(list(zones), domains), one + other + more)

    placement = backed_up(ring, backups_of(ring, domains, 1))

    for lost in ("left", "right"):
        live = [placement.held(node) for node, zone in zones.items() if zone != lost]
        assert np.logical_or.reduce(live).all()


def test_copies_are_in_order_clockwise_from_the_owner() -> None:
    everything = np.ones(8, np.bool_)
    masks = dict.fromkeys(map(NodeId, "zydcba"), everything)

    placement = Placement.of(Ring.even([C, A, D, B], 8), masks)

    assert placement.copies(0) == ("a", "d", "b", "y", "z")
    assert placement.copies(4) == ("b", "c", "a", "y", "z")


def test_a_run_of_copies_spans_several_owners() -> None:
    ring = Ring.even([A, B, C], 9)

    placement = Placement.of(ring, {C: mask(9, range(9)), A: mask(9, range(6, 9))})

    assert placement.arcs == ((0, (C,)), (6, (A,)))
    assert placement.shares(range(1, 8)) == [
        Share(A, (C,), range(1, 3)),
        Share(B, (C,), range(3, 6)),
        Share(C, (A,), range(6, 8)),
    ]


def test_two_tokens_in_a_row_of_one_node_make_no_cut() -> None:
    ring = Ring(0, 10, ((2, A), (5, A), (8, B)))

    assert Placement.alone(ring).shares(range(10)) == [
        Share(B, (), range(0, 2)),
        Share(A, (), range(2, 8)),
        Share(B, (), range(8, 10)),
    ]


def test_without_masks_there_are_no_copies() -> None:
    ring = Ring.even([A, B])

    assert Placement.of(ring, {}) == Placement.alone(ring)
    assert Placement.of(ring, {C: mask(4096)}) == Placement.alone(ring)
    assert Placement.alone(ring).copies(17) == ()
    assert Placement.alone(ring).nodes == (A, B)


def test_an_empty_range_has_no_shares() -> None:
    assert Placement.alone(Ring.even([A], 8)).shares(range(3, 3)) == []


def test_the_masks_that_were_given_stay_as_they_are() -> None:
    given_mask = np.ones(8, np.bool_)

    Placement.of(Ring.even([A, B], 8), {A: given_mask})

    assert given_mask.all()


def test_changing_a_mask_does_not_change_the_placement() -> None:
    placement = Placement.of(Ring.even([A, B], 8), {B: mask(8, range(4))})

    for find in (placement.owned, placement.fed, placement.held):
        for node in (A, B, C):
            find(node)[:] = True

    assert placement.owned(A).tolist() == mask(8, range(4)).tolist()
    assert placement.fed(B).tolist() == mask(8, range(4)).tolist()
    assert not placement.held(C).any()


def test_a_pickled_placement_leaves_its_tables_behind() -> None:
    placement = Placement.of(Ring.even([A, B]), {B: mask(4096, range(2048))})
    assert placement.shares(range(4096))
    assert placement.owned(A).any()

    assert len(pickle.dumps(placement)) < 500


def test_a_large_placement_of_many_runs_is_cut_without_delay() -> None:
    nodes = [NodeId(f"{index:08x}-node") for index in range(64)]
    ring = Ring.even(nodes, 65536)
    placement = backed_up(ring, {node: ring.neighbours(node, 2) for node in nodes})

    # One arc per owner: the size of what is kept does not depend on the number of slots.
    assert len(placement.arcs) == 64
    assert len(placement.shares(range(65536))) == 64


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda ring: Placement(ring, ()), "slot 0"),
        (lambda ring: Placement(ring, ((1, ()),)), "slot 0"),
        (lambda ring: Placement(ring, ((0, ()), (5, (C,)), (5, ()))), "increasing"),
        (lambda ring: Placement(ring, ((0, ()), (7, (C,)), (5, ()))), "increasing"),
        (lambda ring: Placement(ring, ((0, ()), (10, (C,)))), "0 to 9, got 10"),
        (lambda ring: Placement(ring, ((0, (C,)), (5, (C,)))), "again at slot 5"),
        (lambda ring: Placement(ring, ((0, (C, D, C)),)), "different nodes"),
        (lambda ring: Placement(ring, ((0, (B,)),)), "'b' as both at slot 5"),
        (lambda ring: Placement(ring, ((0, ()), (4, (A,)), (5, ()))), "'a' as both at slot 4"),
        (lambda ring: Placement.of(ring, {C: np.ones(9, np.bool_)}), "10 booleans.*for 'c'"),
        (lambda ring: Placement.of(ring, {C: np.ones(10, np.int8)}), "10 booleans.*int8"),
        (lambda ring: Placement.alone(ring).at(-1), "version"),
    ],
)
def test_an_impossible_placement_is_refused(
    attempt: Callable[[Ring], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        attempt(Ring.even([A, B], 10))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda placement: placement.owner(10), "no slot 10"),
        (lambda placement: placement.copies(10), "no slot 10"),
        (lambda placement: placement.copies(-1), "no slot -1"),
        (lambda placement: placement.shares(range(5, 11)), "no run of slots"),
        (lambda placement: placement.shares(range(-1, 5)), "no run of slots"),
        (lambda placement: placement.shares(range(0, 8, 2)), "no run of slots"),
        (lambda placement: placement.shares(range(5, 0, -1)), "no run of slots"),
    ],
)
def test_an_impossible_question_is_refused(
    attempt: Callable[[Placement], object], message: str
) -> None:
    with pytest.raises(RingError, match=message):
        attempt(Placement.alone(Ring.even([A, B], 10)))

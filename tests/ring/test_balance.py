"""Target rings: fair shares, few moves, few arcs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.ring.balance import Move, Weights, pending, rebalanced
from millstream.ring.masks import SlotMask
from millstream.ring.ring import NodeId, Ring, RingError
from tests.ring.key_strategies import untimed

A, B, C, D, E = map(NodeId, "abcde")


def named(*numbers: int) -> list[NodeId]:
    return [NodeId(f"n{number}") for number in numbers]


@st.composite
def rings(draw: st.DrawFn, min_slots: int = 2, max_slots: int = 64) -> Ring:
    """Rings after any history, with nodes of very different shares."""
    slots = draw(st.integers(min_slots, max_slots))
    positions = sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1, max_size=12)))
    tokens = [(at, draw(st.sampled_from(named(*range(6))))) for at in positions]
    return Ring(draw(st.integers(0, 9)), slots, tuple(tokens))


node_sets = st.lists(st.sampled_from(named(*range(9))), min_size=1, max_size=9, unique=True)


@st.composite
def any_weights(draw: st.DrawFn, slots: int) -> Weights:
    """Weights of all kinds: even, spread over orders of magnitude, mostly 0."""
    kind = draw(st.sampled_from(["even", "light", "skewed", "sparse"]))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    if kind == "even":
        return np.full(slots, draw(st.sampled_from([0.0, 1.0, 1e-9, 1e9])))
    if kind == "light":
        return random.uniform(0.5, 1.5, slots)
    if kind == "skewed":
        return random.pareto(1.0, slots)
    return random.uniform(0, 1, slots) * (random.uniform(0, 1, slots) < 0.1)


def floored(weights: Weights) -> Weights:
    """The weights in slots, with the floor for empty ones."""
    return weights / weights.mean() + 0.01 if weights.any() else np.ones(len(weights))


def loads(ring: Ring, weights: Weights) -> dict[NodeId, float]:
    found = np.bincount(ring.table, floored(weights), len(ring.nodes)).tolist()
    return dict(zip(ring.nodes, found, strict=True))


def slots_in(moves: list[Move]) -> list[int]:
    return [slot for move in moves for run in move.runs for slot in run]


def assert_fair(ring: Ring, weights: Weights, capacities: dict[NodeId, float]) -> None:
    """Each node is within 5 % of its share, plus one slot."""
    found, slot = loads(ring, weights), floored(weights).mean()
    for node, capacity in capacities.items():
        share = floored(weights).sum() * capacity / sum(capacities.values())
        assert abs(found.get(node, 0.0) - share) <= (0.05 * share + slot) * (1 + 1e-6)


# -- every target ring ----------------------------------------------------------------------


@untimed
@given(rings(), node_sets, st.data())
def test_only_the_given_nodes_own_slots(
    ring: Ring, nodes: list[NodeId], data: st.DataObject
) -> None:
    weights = data.draw(any_weights(ring.slots))

    after = rebalanced(ring, weights, nodes)

    assert set(after.nodes) <= set(nodes)
    assert (after.slots, after.version) == (ring.slots, ring.version + 1)
    assert rebalanced(ring, weights, nodes) == after


@untimed
@given(rings(), node_sets, st.data())
def test_nobody_has_much_more_than_its_share_and_one_heavy_slot(
    ring: Ring, nodes: list[NodeId], data: st.DataObject
) -> None:
    weights = data.draw(any_weights(ring.slots))

    found = loads(rebalanced(ring, weights, nodes), weights)

    slots = floored(weights)
    share, heaviest = slots.sum() / len(nodes), slots.max()
    assert max(found.values()) <= 1.05 * max(share, heaviest) + slots.mean() + heaviest


@untimed
@given(rings(min_slots=200, max_slots=400), node_sets, st.data())
def test_shares_are_by_capacity_if_no_slot_is_heavy(
    ring: Ring, nodes: list[NodeId], data: st.DataObject
) -> None:
    weights = np.random.default_rng(data.draw(st.integers(0, 99))).uniform(0.5, 1.5, ring.slots)
    capacities = {node: data.draw(st.floats(0.5, 4)) for node in nodes}

    after = rebalanced(ring, weights, nodes, capacities=capacities)

    assert_fair(after, weights, capacities)


@untimed
@given(rings(min_slots=200, max_slots=400), node_sets, st.data())
def test_slots_move_from_nodes_above_to_nodes_below_their_share(
    ring: Ring, nodes: list[NodeId], data: st.DataObject
) -> None:
    weights = np.random.default_rng(data.draw(st.integers(0, 99))).uniform(0.5, 1.5, ring.slots)

    moves = pending(ring, rebalanced(ring, weights, nodes))

    before, share = loads(ring, weights), floored(weights).sum() / len(nodes)
    gained: defaultdict[NodeId, float] = defaultdict(float)
    for move in moves:
        assert move.source not in nodes or before[move.source] > share
        weight = floored(weights)[slots_in([move])].sum()
        gained[move.source] -= weight
        # A slot of a node that leaves may fill a gap in the arc of any other.
        gained[move.target] += weight if move.source in nodes else 0.0
    # A node that has given more than it had to may get single slots in return.
    assert all(before.get(node, 0.0) < share for node, weight in gained.items() if weight > 0)


@untimed
@given(rings(min_slots=200, max_slots=400), node_sets, st.data())
def test_a_balanced_ring_stays_as_it_is(
    ring: Ring, nodes: list[NodeId], data: st.DataObject
) -> None:
    weights = np.random.default_rng(data.draw(st.integers(0, 99))).uniform(0.5, 1.5, ring.slots)
    balanced = rebalanced(ring, weights, nodes)

    assert pending(balanced, rebalanced(balanced, weights)) == []


# -- joining and leaving --------------------------------------------------------------------


@untimed
@given(st.integers(1, 30), st.integers(1, 10), st.integers(20, 60))
def test_a_join_moves_slots_to_the_new_nodes_only(old: int, new: int, each: int) -> None:
    ring = Ring.even(named(*range(old)), each * (old + new))
    joining = named(*range(old, old + new))
    nodes = [*ring.nodes, *joining]

    after = rebalanced(ring, np.ones(ring.slots), nodes)

    assert {move.target for move in pending(ring, after)} == set(joining)
    assert_fair(after, np.ones(ring.slots), dict.fromkeys(nodes, 1.0))


@untimed
@given(st.integers(2, 30), st.integers(20, 60), st.data())
def test_a_leave_moves_the_slots_of_the_leaving_nodes_only(
    count: int, each: int, data: st.DataObject
) -> None:
    ring = Ring.even(named(*range(count)), each * count)
    leaving = data.draw(st.sets(st.sampled_from(ring.nodes), min_size=1, max_size=count - 1))
    nodes = [node for node in ring.nodes if node not in leaving]

    after = rebalanced(ring, np.ones(ring.slots), nodes)

    assert sorted(slots_in(pending(ring, after))) == sorted(
        slot for node in leaving for slot in ring.slots_of(node).tolist()
    )
    assert_fair(after, np.ones(ring.slots), dict.fromkeys(nodes, 1.0))


def test_a_new_node_takes_its_slots_where_two_donors_meet() -> None:
    ring = Ring.even([A, B, C, D], 100)

    after = rebalanced(ring, np.ones(100), [A, B, C, D, E])

    assert after.tokens == ((0, A), (20, E), (30, B), (50, C), (70, E), (80, D))


def test_the_neighbours_share_the_slots_of_a_leaving_node() -> None:
    ring = Ring.even([A, B, C], 90)

    after = rebalanced(ring, np.ones(90), [A, C])

    assert after.tokens == ((0, A), (45, C))


def test_a_node_gets_a_slot_even_if_that_is_its_whole_share() -> None:
    ring = Ring.even([A, B], 4)

    assert sorted(rebalanced(ring, np.ones(4), [A, B, C, D]).nodes) == [A, B, C, D]


def test_there_may_be_more_nodes_than_slots() -> None:
    ring = Ring.even([A, B], 2)

    assert rebalanced(ring, np.ones(2), [A, B, C]).nodes == (A, B)


@pytest.mark.parametrize("seed", range(3))
def test_arcs_stay_few_after_many_changes(seed: int) -> None:
    random, weigh = Random(seed), np.random.default_rng(seed)
    ring, weights, arcs = Ring.even(named(*range(12)), 4096), np.ones(4096), []
    for step in range(120):
        nodes = list(ring.nodes)
        some = random.randint(1, len(nodes) // 4)
        change = random.choice(["join", "leave", "load"])
        if change == "join" and len(nodes) < 24:
            nodes += [NodeId(f"new{step}-{index}") for index in range(some)]
        elif change == "leave" and len(nodes) > 8:
            nodes = random.sample(nodes, len(nodes) - some)
        else:
            weights = weigh.gamma(2, size=4096)
        ring = rebalanced(ring, weights, nodes)
        arcs.append(len(ring.tokens) / len(nodes))

    assert np.mean(arcs) < 4.5
    assert max(arcs) < 8


# -- heavy slots ----------------------------------------------------------------------------


@untimed
@given(st.integers(2, 12), st.integers(0, 239), st.floats(1.05, 20), st.booleans())
def test_a_slot_heavier_than_a_share_gets_its_owner_to_itself(
    count: int, slot: int, times: float, leaves: bool
) -> None:
    ring = Ring.even(named(*range(count + leaves)), 240)
    nodes = [node for node in ring.nodes if not leaves or node != ring.owner(slot)]
    weights = np.ones(240)
    weights[slot] = times * 240 / (count - 1)  # more than a share of what it is part of

    after = rebalanced(ring, weights, nodes)

    found, heavy = loads(after, weights), floored(weights)[slot]
    owner = after.owner(slot)
    assert leaves or owner == ring.owner(slot)
    assert found[owner] - heavy <= 0.05 * heavy + floored(weights).mean()
    rest = [found.get(node, 0.0) for node in nodes if node != owner]
    share = (floored(weights).sum() - heavy) / len(rest)
    assert max(rest) <= 1.05 * share + floored(weights).mean() + 1e-6


def test_two_heavy_slots_of_one_node_part() -> None:
    ring = Ring.even([A, B, C, D], 40)
    weights = np.ones(40)
    weights[[3, 5]] = 40

    after = rebalanced(ring, weights)

    assert after.owner(3) == A
    assert after.owner(5) != A
    assert {after.owner(slot) for slot in range(40)} == {A, B, C, D}


def test_a_heavy_slot_moves_where_it_does_not_fit_if_that_evens_out_the_load() -> None:
    ring = Ring.even([A, B, C], 60)
    weights = np.full(60, 0.8)
    weights[:20] = 1.5
    weights[[0, 19]] = 20  # both ends of what a owns; the share of a node is 33

    found = loads(rebalanced(ring, weights), weights)

    assert max(found.values()) < 1.15 * floored(weights).sum() / 3


# -- copies ---------------------------------------------------------------------------------


def holding(slots: int, **held: range) -> Callable[[NodeId], SlotMask]:
    def in_sync(node: NodeId) -> SlotMask:
        mask = np.zeros(slots, dtype=bool)
        mask[list(held.get(node, range(0)))] = True
        return mask

    return in_sync


def test_slots_go_to_nodes_that_have_them_in_sync() -> None:
    ring = Ring.even([A, B, C, D, E], 100)

    after = rebalanced(ring, np.ones(100), [B, C, D, E], in_sync=holding(100, c=range(0, 20)))

    given = {move.target: slots_in([move]) for move in pending(ring, after)}
    assert len(given[C]) == 5
    assert set(given) == {B, C, D, E}


def test_of_nodes_with_copies_the_neighbour_is_preferred() -> None:
    ring = Ring.even([A, B, C, D], 120)
    both = holding(120, b=range(30), c=range(30))

    after = rebalanced(ring, np.ones(120), [B, C, D], in_sync=both)

    assert after.tokens == ((0, C), (10, D), (20, B), (60, C), (90, D))


@untimed
@given(rings(min_slots=100, max_slots=200), node_sets, st.data())
def test_copies_change_who_receives_but_not_who_is_in_balance(
    ring: Ring, nodes: list[NodeId], data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 99))
    masks = np.random.default_rng(seed).uniform(0, 1, (9, ring.slots)) < data.draw(st.floats(0, 1))
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, ring.slots)

    def in_sync(node: NodeId) -> npt.NDArray[np.bool_]:
        return np.asarray(masks[int(node[1:])])

    after = rebalanced(ring, weights, nodes, in_sync=in_sync)

    assert_fair(after, weights, dict.fromkeys(nodes, 1.0))


# -- pending moves --------------------------------------------------------------------------


@untimed
@given(rings(), rings())
def test_pending_moves_are_the_slots_whose_owner_differs(before: Ring, after: Ring) -> None:
    slots = max(before.slots, after.slots)
    before = Ring(before.version, slots, before.tokens)
    after = Ring(after.version, slots, after.tokens)

    moves = pending(before, after)

    found = {
        slot: (move.source, move.target) for move in moves for run in move.runs for slot in run
    }
    assert found == {
        slot: (before.owner(slot), after.owner(slot))
        for slot in range(slots)
        if before.owner(slot) != after.owner(slot)
    }
    assert len({(move.source, move.target) for move in moves}) == len(moves)
    assert len(slots_in(moves)) == len(found)


def test_pending_moves_are_in_runs() -> None:
    before, after = Ring.even([A, B], 8), Ring(1, 8, ((0, B), (1, A), (3, B), (6, C)))

    assert pending(before, after) == [
        Move(A, B, (range(0, 1), range(3, 4))),
        Move(B, C, (range(6, 8),)),
    ]


# -- wrong arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: rebalanced(Ring.even([A], 8), np.ones(9)), "8 weights"),
        (lambda: rebalanced(Ring.even([A], 2), np.array([1.0, -1.0])), "at least 0"),
        (lambda: rebalanced(Ring.even([A], 2), np.array([1.0, np.nan])), "finite"),
        (lambda: rebalanced(Ring.even([A], 2), np.ones(2), []), "at least one"),
        (lambda: rebalanced(Ring.even([A], 2), np.ones(2), [A, A]), "differ"),
        (lambda: rebalanced(Ring.even([A], 2), np.ones(2), capacities={A: 0.0}), "above 0"),
        (lambda: rebalanced(Ring.even([A], 2), np.ones(2), tolerance=1.0), "tolerance"),
    ],
)
def test_an_impossible_option_is_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attempt()


def test_rings_of_different_sizes_are_not_compared() -> None:
    with pytest.raises(RingError, match="8 and 9 slots"):
        pending(Ring.even([A], 8), Ring.even([A], 9))

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.elastic.slot_shares import (
    OwnedSlots,
    after,
    imbalance,
    per_node,
    portion,
    recut,
    runs,
    unevenness,
    weights_of,
)
from millstream.ring.ring import NodeId, Ring
from tests.elastic.closed_loop import load_of

A, B, C = map(NodeId, "abc")
RING = Ring.even([A, B], 8)

values_of = st.lists(st.floats(0, 10) | st.just(0.0), min_size=1, max_size=60).map(np.array)


def test_imbalance_is_the_busiest_node_over_the_mean() -> None:
    load = load_of(RING, {A: 0.3, B: 0.1})

    assert per_node(load.seconds, RING).tolist() == pytest.approx([0.3, 0.1])
    assert imbalance(load, RING) == pytest.approx(1.5)
    assert imbalance(load_of(RING, {A: 0.0, B: 0.0}), RING) == 1.0
    assert unevenness(np.zeros(0)) == 1.0


def test_slots_weigh_half_by_their_seconds_and_half_by_their_tuples() -> None:
    load = replace(
        load_of(RING, {A: 0.3, B: 0.1}),
        seconds=np.array([0.0, 0, 0, 1, 1, 1, 1, 0]),
        tuples=np.array([0.0, 20, 0, 0, 20, 0, 0, 0]),
    )

    assert weights_of(load).tolist() == [0, 1, 0, 0.5, 1.5, 0.5, 0.5, 0]
    assert weights_of(replace(load, tuples=np.zeros(8))) is load.seconds


@given(values_of, st.floats(0, 100))
def test_a_portion_is_never_worth_more_than_wanted_nor_all_there_is(
    values: np.ndarray, amount: float
) -> None:
    slots = np.arange(len(values))

    chosen = portion(slots, values, amount)

    assert len(set(chosen.tolist())) == len(chosen) < len(slots)
    assert values[chosen].sum() <= amount + 1e-9


@given(st.lists(st.floats(0.5, 1), min_size=20, max_size=60).map(np.array), st.floats(0.2, 0.8))
def test_a_portion_of_slots_that_are_alike_is_one_run_at_the_end(
    values: np.ndarray, part: float
) -> None:
    slots = np.arange(len(values))
    amount = part * values.sum()

    chosen = portion(slots, values, amount)

    assert values[chosen].sum() > amount - 1
    first = min(runs(chosen), key=len)
    # What a further pass adds is less than a slot of the first.
    assert len(runs(chosen)) <= 2 and (len(runs(chosen)) == 1 or len(first) <= 2)
    assert runs(chosen)[-1].stop == len(slots)


def test_hot_slots_stay_and_slots_without_load_do_not_move_for_nothing() -> None:
    values = np.array([0, 0, 1, 1, 9, 1, 0, 1.0])

    assert portion(np.arange(8), values, 2.5).tolist() == [7, 6, 5]
    assert sorted(portion(np.arange(8), values, 5).tolist()) == [2, 3, 5, 6, 7]
    assert portion(np.arange(8), values, 0.5).tolist() == []


def test_a_further_look_finds_slots_beyond_a_large_one() -> None:
    values = np.array([1, 1, 1, 1, 6, 6.0])

    assert sorted(portion(np.arange(6), values, 10).tolist()) == [0, 1, 2, 3, 5]


@given(st.integers(2, 6), st.data())
def test_recut_neighbours_keep_their_order_and_a_slot_each(count: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    slots = np.arange(sum(sizes))
    values = np.array(
        data.draw(st.lists(st.floats(0, 1), min_size=len(slots), max_size=len(slots)))
    )
    pieces = np.split(slots, np.cumsum(sizes)[:-1])

    transfers = recut(pieces, values)

    owners = np.repeat(np.arange(count), sizes)
    for each in transfers:
        assert (owners[each.slots] == each.source).all()
        assert each.amount == pytest.approx(values[each.slots].sum())
        owners[each.slots] = each.target
    assert owners.tolist() == sorted(owners.tolist())
    assert set(owners.tolist()) == set(range(count))
    shares = np.bincount(owners, weights=values)
    assert shares.max() <= values.sum() / count + values.max() + 1e-9
    before = np.array([values[piece].sum() for piece in pieces])
    assert after(before, transfers) == pytest.approx(shares)


def test_runs_join_adjacent_slots() -> None:
    assert runs(np.array([5, 3, 4, 9])) == (range(3, 6), range(9, 10))
    assert runs(np.array([], int)) == ()


def test_the_slots_next_to_the_clockwise_neighbour_come_last() -> None:
    ring = Ring(0, 12, ((2, A), (5, B), (9, A), (11, C)))
    owned = OwnedSlots(ring)

    assert [owned.of(index).tolist() for index in range(3)] == [
        ring.slots_of(node).tolist() for node in ring.nodes
    ]
    assert owned.clockwise(0).tolist() == [9, 10, 2, 3, 4]
    assert owned.clockwise(1).tolist() == [5, 6, 7, 8]
    assert owned.clockwise(2).tolist() == [11, 0, 1]

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.ring.partitioning import partition_starts, tasks_of
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring, partition_slots
from tests.ring.key_strategies import untimed
from tests.ring.test_placement import placements

A, B, C = map(NodeId, "abc")
MANY = 10_000


def runs_of(placement: Placement) -> list[range]:
    """The runs of slots with one owner, slot by slot."""
    slots = range(placement.ring.slots)
    starts = [s for s in slots if s == 0 or placement.owner(s) != placement.owner(s - 1)]
    return ranges_of(tuple(starts), placement)


def ranges_of(starts: tuple[int, ...], placement: Placement) -> list[range]:
    return [range(*bounds) for bounds in pairwise((*starts, placement.ring.slots))]


def placed(*owners: tuple[NodeId, int]) -> Placement:
    """A placement in which so many slots are of one node, and then so many of the next."""
    tokens, slots = [], 0
    for node, length in owners:
        tokens.append((slots, node))
        slots += length
    return Placement.alone(Ring(0, slots, tuple(tokens)))


@untimed
@given(placements(), st.integers(1, 60), st.integers(0, 60))
def test_partitions_cover_all_slots_in_order_and_their_number_is_within_bounds(
    placement: Placement, least: int, more: int
) -> None:
    starts = partition_starts(placement, least, least + more)

    assert starts[0] == 0 and all(ranges_of(starts, placement))
    assert min(least, placement.ring.slots) <= len(starts) <= least + more


@untimed
@given(placements(), st.integers(1, 60))
def test_a_partition_has_one_owner_unless_there_are_more_runs_than_allowed(
    placement: Placement, least: int
) -> None:
    for part in ranges_of(partition_starts(placement, least, MANY), placement):
        assert len({placement.owner(slot) for slot in part}) == 1


@untimed
@given(placements())
def test_every_run_of_an_owner_is_a_partition_if_that_makes_enough(placement: Placement) -> None:
    runs = runs_of(placement)

    for least in {1, len(runs)}:
        starts = partition_starts(placement, least, len(runs))
        assert ranges_of(starts, placement) == runs


@untimed
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 50))
def test_equal_arcs_are_cut_into_the_equal_ranges_of_all_slots(
    nodes: int, times: int, more: int
) -> None:
    slots = nodes * times + more
    ring = Ring.even([NodeId(str(number)) for number in range(nodes)], slots)

    starts = partition_starts(Placement.alone(ring), nodes * times, MANY)

    assert list(starts) == [part.start for part in partition_slots(slots, nodes * times)]


@untimed
@given(placements(), st.integers(1, 60))
def test_the_longest_runs_are_cut_further_each_into_equal_parts(
    placement: Placement, least: int
) -> None:
    parts = ranges_of(partition_starts(placement, least, MANY), placement)

    assert len(parts) == max(len(runs_of(placement)), min(least, placement.ring.slots))
    longest = max(map(len, parts))
    for run in runs_of(placement):
        mine = [len(part) for part in parts if part.start in run]
        assert max(mine) - min(mine) <= 1
        if len(mine) > 1:  # with a part less, it would have had the longest
            assert -(-len(run) // (len(mine) - 1)) >= longest


@untimed
@given(placements(), st.integers(1, 6))
def test_the_shortest_neighbours_are_joined_when_there_are_too_many_runs(
    placement: Placement, most: int
) -> None:
    runs = runs_of(placement)
    parts = ranges_of(partition_starts(placement, 1, most), placement)

    assert len(parts) == min(most, len(runs))
    assert {part.start for part in parts} <= {run.start for run in runs}
    joined = [len(part) for part in parts if part not in runs]
    left = [len(one) + len(other) for one, other in pairwise(parts)]
    assert not joined or not left or max(joined) <= min(left)


def test_long_runs_get_the_parts_that_short_ones_do_not() -> None:
    placement = placed((A, 70), (B, 10), (C, 20))

    assert partition_starts(placement, 5, MANY) == (0, 23, 46, 70, 80)


def test_scattered_slots_are_joined_with_their_neighbours() -> None:
    placement = placed((A, 50), (B, 1), (A, 2), (B, 1), (A, 30), (C, 40))

    assert partition_starts(placement, 1, 4) == (0, 50, 54, 84)
    assert partition_starts(placement, 4, 5) == (0, 50, 53, 54, 84)
    assert partition_starts(placement, 1, 1) == (0,)


def test_partitions_of_one_owner_share_a_task() -> None:
    placement = placed((A, 50), (B, 10), (A, 2), (B, 1), (A, 30), (C, 40))
    starts = partition_starts(placement, 1, MANY)

    assert tasks_of(placement, starts, 1) == (0, 1, 0, 1, 0, 2)
    assert tasks_of(placement, starts, 3) == (0, 1, 0, 1, 0, 2)


def test_with_few_owners_their_partitions_are_dealt_out_to_several_tasks() -> None:
    placement = placed((A, 50), (B, 10), (A, 2), (B, 1), (A, 30))
    starts = partition_starts(placement, 4, MANY)

    assert tasks_of(placement, starts, 4) == (0, 1, 2, 3, 0)


@untimed
@given(placements(), st.integers(1, 20))
def test_there_are_as_many_tasks_as_asked_for_or_partitions_allow(
    placement: Placement, least: int
) -> None:
    starts = partition_starts(placement, least, MANY)
    tasks = tasks_of(placement, starts, least)

    owners = [placement.owner(start) for start in starts]
    pairs = set(zip(tasks, owners, strict=True))
    assert sorted(task for task, _ in pairs) == list(range(max(tasks) + 1))  # one owner each
    most = -(-least // len(set(owners)))
    expected = {owner: min(most, owners.count(owner)) for owner in owners}
    assert Counter(owner for _, owner in pairs) == expected


def test_there_are_no_more_partitions_than_slots() -> None:
    assert partition_starts(placed((A, 3), (B, 1)), 100, 100) == (0, 1, 2, 3)


@pytest.mark.parametrize(("least", "most"), [(0, 1), (2, 1), (-1, -1)])
def test_impossible_bounds_are_refused(least: int, most: int) -> None:
    with pytest.raises(ConfigError, match="least must be"):
        partition_starts(placed((A, 4)), least, most)

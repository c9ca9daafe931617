"""Where nodes are started, and which of them are too many."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.elastic.pool_plan import (
    Executor,
    LaunchPlan,
    PoolMember,
    spread,
    superfluous,
)
from millstream.ring.ring import NodeId

NAMES = [str(number) for number in range(6)]


def executors(*names: str, host: str = "host") -> list[Executor]:
    return [Executor(name=name, host=host, cores=1) for name in names]


def member(name: str, executor: str, *, on: bool = False) -> PoolMember:
    return PoolMember(node=NodeId(name), executor=executor, standby=on)


# -- how many fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "per_core", "capacity"), [(4, 1.0, 4), (1, 3.0, 3), (2, 1.5, 3), (1, 4 / 3, 2)]
)
def test_an_executor_holds_nodes_by_its_cores(cores: int, per_core: float, capacity: int) -> None:
    assert Executor(name="1", host="host", cores=cores).capacity(per_core) == capacity


def test_an_executor_without_cores_holds_a_node() -> None:
    assert Executor(name="1", host="host", cores=0).capacity(1.0) == 1


def test_a_ratio_is_not_rounded_up_by_an_error_of_floating_point() -> None:
    assert 27 * (7 / 3) > 63
    assert Executor(name="1", host="host", cores=27).capacity(7 / 3) == 63


# -- launches --------------------------------------------------------------------------------


def test_nodes_start_where_the_fewest_are() -> None:
    launches = spread(3, executors("1", "2", "3"), {"1": 2, "2": 1}, dict.fromkeys("123", 9))

    assert launches == {"3": 2, "2": 1}


def test_a_replacement_starts_on_the_executor_that_lost_its_node() -> None:
    launches = spread(1, executors("1", "2"), {"1": 1}, {"1": 1, "2": 2}, preferred=["1"])

    assert launches == {"1": 1}


def test_a_replacement_starts_elsewhere_if_its_executor_died() -> None:
    launches = spread(1, executors("1", "2"), {"1": 1}, {"1": 1, "2": 2}, preferred=["7"])

    assert launches == {"2": 1}


def test_of_equal_executors_the_one_on_the_emptier_host_is_chosen() -> None:
    there = [*executors("1", "2", host="a"), *executors("3", host="b")]

    assert spread(1, there, {"2": 3}, dict.fromkeys("123", 1)) == {"3": 1}
    assert spread(2, there, {}, dict.fromkeys("123", 1)) == {"1": 1, "3": 1}


@given(
    st.integers(0, 30),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5)),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5)),
    st.lists(st.sampled_from(NAMES), max_size=5),
    st.lists(st.sampled_from(["a", "b"]), min_size=6, max_size=6),
)
def test_launches_fill_the_room_evenly(
    count: int,
    nodes: dict[str, int],
    room: dict[str, int],
    preferred: list[str],
    hosts: list[str],
) -> None:
    there = [
        Executor(name=name, host=host, cores=1) for name, host in zip(NAMES, hosts, strict=True)
    ]
    launches = Counter(spread(count, there, nodes, room, preferred))

    assert launches.total() == min(count, sum(room.values()))
    assert all(launches[name] <= room.get(name, 0) for name in launches)
    wished = Counter(preferred)
    for name in NAMES:
        if launches[name] > wished[name]:  # it was chosen at least once for being the emptiest
            before = nodes.get(name, 0) + launches[name] - 1
            for other in NAMES:
                if launches[other] < room.get(other, 0):
                    assert nodes.get(other, 0) + launches[other] >= before


def test_a_plan_is_claimed_until_the_executor_or_the_total_is_exhausted() -> None:
    plan = LaunchPlan(total=2, limits={"1": 1, "2": 5})

    assert plan.claimed_by("3") is None
    once = plan.claimed_by("1")
    assert once == LaunchPlan(total=1, limits={"1": 0, "2": 5})
    assert once.claimed_by("1") is None
    twice = once.claimed_by("2")
    assert twice is not None and twice.claimed_by("2") is None


# -- too many --------------------------------------------------------------------------------


def test_only_nodes_on_standby_are_superfluous() -> None:
    members = [member("a", "1"), member("b", "1"), member("c", "2"), member("idle", "2", on=True)]

    assert superfluous(members, target=2, standby=0) == ("idle",)
    assert superfluous(members, target=2, standby=1) == ()


def test_a_node_on_standby_that_will_be_needed_is_not_superfluous() -> None:
    members = [member("a", "1"), member("next", "2", on=True), member("spare", "2", on=True)]

    assert superfluous(members, target=2, standby=1) == ()
    assert len(superfluous(members, target=2, standby=0)) == 1


def test_nodes_of_emptier_executors_give_way_first() -> None:
    members = [member("a", "1"), member("b", "1", on=True), member("c", "2", on=True)]

    assert superfluous(members, target=1, standby=1) == ("c",)


def test_nodes_that_are_leaving_do_not_count() -> None:
    gone = PoolMember(node=NodeId("gone"), executor="1", standby=True, leaving=True)

    assert superfluous([member("a", "1"), gone], target=1, standby=0) == ()
    assert superfluous([gone, member("b", "1", on=True)], target=1, standby=0) == ()

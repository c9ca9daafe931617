from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring
from millstream.ring.zones import Domain, backups_of, interleave, shortage
from tests.ring.key_strategies import untimed

A, B, C, D, E = map(NodeId, "abcde")


def shared(one: Domain, other: Domain) -> int:
    """Say how much two nodes share as the definition says: the names, from the outside in."""
    if one.zone != other.zone:
        return 0
    if one.host != other.host:
        return 1
    return 2 if one.executor != other.executor else 3


def clashes(order: Sequence[NodeId], domains: dict[NodeId, Domain]) -> tuple[int, int, int]:
    """Count the neighbours around the circle that share a zone, a host, an executor."""
    pairs = zip(order, [*order[1:], order[0]], strict=True)
    counts = Counter(shared(domains[one], domains[other]) for one, other in pairs)
    return counts[1] + counts[2] + counts[3], counts[2] + counts[3], counts[3]


def placed(*places: str) -> dict[NodeId, Domain]:
    """Name nodes a, b, … for places like "z1/h1/e1"; what is left out is the same for all."""
    paths = [(place.split("/") + ["h", "e"][place.count("/") :]) for place in places]
    return {NodeId(chr(ord("a") + index)): Domain(*path) for index, path in enumerate(paths)}


def zones_of(sizes: Sequence[int]) -> dict[NodeId, Domain]:
    """Name nodes of as many zones, one zone after the other, each node on a host of its own."""
    return {
        NodeId(f"n{zone}-{index}"): Domain(f"z{zone}", f"h{zone}-{index}", "e")
        for zone, size in enumerate(sizes)
        for index in range(size)
    }


@st.composite
def domains_of_nodes(draw: st.DrawFn, max_size: int = 24) -> dict[NodeId, Domain]:
    """Nodes in any domains, few enough names that they often share."""
    names = st.sampled_from("123")
    domain = st.builds(Domain, names, names, names)
    found = draw(st.lists(domain, min_size=1, max_size=max_size))
    return {NodeId(f"n{index}"): place for index, place in enumerate(found)}


@untimed
@given(domains_of_nodes(), st.randoms(use_true_random=False))
def test_interleaving_loses_no_node_and_invents_none(
    domains: dict[NodeId, Domain], random: Random
) -> None:
    nodes = list(domains)
    random.shuffle(nodes)

    order = interleave(nodes, domains)

    assert Counter(order) == Counter(nodes)
    assert interleave(nodes, domains) == order


@untimed
@given(domains_of_nodes(max_size=6))
def test_no_other_order_has_fewer_neighbours_that_share(domains: dict[NodeId, Domain]) -> None:
    order = interleave(list(domains), domains)

    assert clashes(order, domains) == min(clashes(other, domains) for other in permutations(order))


@untimed
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_neighbours_share_a_zone_only_if_one_zone_has_more_than_half(sizes: list[int]) -> None:
    domains = zones_of(sizes)

    order = interleave(list(domains), domains)

    # Each node outside of the largest zone parts one pair within it.
    assert clashes(order, domains)[0] == max(0, 2 * max(sizes) - sum(sizes))


@untimed
@given(st.integers(2, 8), st.integers(1, 8))
def test_equal_zones_take_strict_turns(zones: int, size: int) -> None:
    domains = zones_of([size] * zones)

    order = interleave(list(domains), domains)

    assert [domains[node].zone for node in order] == [f"z{zone}" for zone in range(zones)] * size


@untimed
@given(domains_of_nodes())
def test_nodes_of_one_executor_keep_their_order(domains: dict[NodeId, Domain]) -> None:
    nodes = list(domains)

    order = interleave(nodes, domains)

    for place in set(domains.values()):
        assert [n for n in order if domains[n] == place] == [
            n for n in nodes if domains[n] == place
        ]


def test_a_large_zone_is_spread_evenly_and_does_not_clump() -> None:
    domains = zones_of([6, 2])

    order = interleave(list(domains), domains)

    zones = "".join(domains[node].zone[1:] for node in order)
    assert zones in "00010001" * 2


def test_what_must_share_a_zone_is_on_different_hosts() -> None:
    domains = placed("z1/h1", "z1/h1", "z1/h1", "z1/h2", "z1/h2", "z2/h3")

    order = interleave(list(domains), domains)

    # A careless order leaves two nodes of h1 at the seam; the one node of z2 has to part them.
    assert clashes(order, domains) == (4, 0, 0)


def test_members_of_a_zone_alternate_between_its_hosts() -> None:
    domains = placed("z1/h1", "z1/h1", "z1/h2", "z1/h2", "z2/h3", "z2/h3", "z2/h4", "z2/h4")

    order = interleave(list(domains), domains)

    assert order == list(map(NodeId, "aecgbfdh"))


def test_on_one_machine_neighbours_are_in_different_executors() -> None:
    domains = placed("z/h/1", "z/h/1", "z/h/2", "z/h/2")

    assert interleave([A, B, C, D], domains) == [A, C, B, D]


def test_no_nodes_are_in_order() -> None:
    assert interleave([], {}) == []


def test_the_same_names_in_other_zones_are_other_hosts() -> None:
    domains = placed("z1", "z1", "z2", "z2")

    assert clashes(interleave(list(domains), domains), domains) == (0, 0, 0)
    assert backups_of(Ring.even([A, B, C, D]), domains, 1)[A] == (C,)


@untimed
@given(domains_of_nodes(), st.integers(0, 4), st.data())
def test_backups_are_the_nearest_of_those_that_share_least(
    domains: dict[NodeId, Domain], replicas: int, data: st.DataObject
) -> None:
    ring = Ring.even(data.draw(st.permutations(list(domains))))

    backups = backups_of(ring, domains, replicas)

    assert list(backups) == list(ring.nodes)
    for node, chosen in backups.items():
        assert len(chosen) == min(replicas, len(domains) - 1)
        clockwise = ring.neighbours(node, len(ring.nodes))
        for index, backup in enumerate(chosen):
            holders = [node, *chosen[:index]]

            def worst(candidate: NodeId, holders: list[NodeId] = holders) -> int:
                return max(shared(domains[candidate], domains[holder]) for holder in holders)

            free = [other for other in clockwise if other not in holders]
            assert backup in free
            assert worst(backup) == min(map(worst, free))
            passed = free[: free.index(backup)]
            if worst(backup) == 0:
                assert all(worst(other) > 0 for other in passed)
            if index == 0:
                assert all(worst(other) > worst(backup) for other in passed)


@untimed
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 24))
def test_two_zones_survive_the_loss_of_either(one: int, other: int, more: int) -> None:
    domains = zones_of([one, other])
    ring = Ring.even(interleave(list(domains), domains), one + other + more)

    backups = backups_of(ring, domains, 1)

    for lost in ("z0", "z1"):
        live = {node for node in domains if domains[node].zone != lost}
        for slot in range(ring.slots):
            owner = ring.owner(slot)
            assert live & {owner, *backups[owner]}


@untimed
@given(st.integers(1, 6), st.integers(2, 6), st.data())
def test_in_equal_zones_the_backups_are_the_next_neighbours(
    size: int, zones: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(0, zones - 1))
    domains = zones_of([size] * zones)
    ring = Ring.even(interleave(list(domains), domains))

    backups = backups_of(ring, domains, replicas)

    # So the load of copies is even, and a leaving node's successor has what it takes over.
    assert all(backups[node] == ring.neighbours(node, replicas) for node in ring.nodes)


def test_a_second_backup_avoids_the_place_of_the_first() -> None:
    domains = placed("z1", "z2/h1", "z2/h1", "z2/h2", "z3")
    ring = Ring.even([A, B, C, D, E])

    assert backups_of(ring, domains, 2)[A] == (B, E)
    assert backups_of(ring, domains, 3)[A] == (B, E, D)


def test_sharing_with_one_is_better_than_sharing_with_two() -> None:
    domains = placed("z1/h1", "z1/h2", "z2/h3", "z1/h4", "z2/h5")
    ring = Ring.even([A, B, C, D, E])

    # After c and b, both d and e share a zone: d with a and b, e with c only.
    assert backups_of(ring, domains, 3)[A] == (C, B, E)


def test_a_node_with_several_arcs_has_one_set_of_backups() -> None:
    ring = Ring(0, 30, ((0, A), (5, B), (10, A), (15, C)))

    assert backups_of(ring, placed("z1", "z1", "z2"), 1) == {A: (C,), B: (C,), C: (A,)}


@pytest.mark.parametrize(
    ("places", "replicas"),
    [
        (["z1"], 0),
        ([], 0),
        (["z1", "z1"], 0),
        (["z1", "z2"], 1),
        (["z1", "z2", "z1", "z3"], 2),
    ],
)
def test_there_is_no_warning_with_enough_zones(places: list[str], replicas: int) -> None:
    assert shortage(placed(*places).values(), replicas) is None


@pytest.mark.parametrize(
    ("places", "replicas", "sentence"),
    [
        ([], 1, "replicas=1 needs 2 nodes, and there is no second: no slot has a copy"),
        (["z1"], 2, "replicas=2 needs 3 nodes, and there is no second: no slot has a copy"),
        (["z1", "z2"], 2, "replicas=2 needs 3 nodes, and there are 2: each slot has 1 copy"),
        (
            ["z1", "z2", "z3"],
            4,
            "replicas=4 needs 5 nodes, and there are 3: each slot has 2 copies",
        ),
        (
            ["z/h", "z/h"],
            2,
            "replicas=2 needs 3 nodes, and there are 2: each slot has 1 copy; all nodes are on one "
            "host: copies protect against the loss of processes only",
        ),
        (
            ["z/h/1", "z/h/2"],
            1,
            "all nodes are on one host: copies protect against the loss of executors or processes "
            "only",
        ),
        (
            ["z/h", "z/h"],
            1,
            "all nodes are on one host: copies protect against the loss of processes only",
        ),
        (
            ["z/h1", "z/h2"],
            1,
            "replicas=1 is best spread over 2 zones, but all nodes are in 1 zone: copies within a "
            "zone are on other hosts",
        ),
        (
            ["z1/h1", "z1/h2", "z2/h1"],
            2,
            "replicas=2 is best spread over 3 zones, but the nodes are in 2 zones: copies within a "
            "zone are on other hosts",
        ),
        (
            ["z1/h/1", "z1/h/2", "z2/h/1"],
            2,
            "replicas=2 is best spread over 3 zones, but the nodes are in 2 zones: with only 2 "
            "hosts, copies on the same host are in other executors",
        ),
        (
            ["z1/h/1", "z1/h/1", "z2/h/1"],
            2,
            "replicas=2 is best spread over 3 zones, but the nodes are in 2 zones: with only 2 "
            "hosts and 2 executors, copies in the same executor are merely in other processes",
        ),
    ],
)
def test_a_shortage_says_what_copies_fall_back_to(
    places: list[str], replicas: int, sentence: str
) -> None:
    assert shortage(placed(*places).values(), replicas) == sentence


@untimed
@given(domains_of_nodes(), st.integers(1, 4))
def test_backups_keep_what_a_shortage_promises(
    domains: dict[NodeId, Domain], replicas: int
) -> None:
    text = shortage(domains.values(), replicas) or ""

    backups = backups_of(Ring.even(list(domains)), domains, replicas)

    worst = 0
    for node, chosen in backups.items():
        holders = [domains[holder] for holder in (node, *chosen)]
        pairs = [shared(one, two) for i, one in enumerate(holders) for two in holders[:i]]
        worst = max([worst, *pairs])
    if not text:
        assert worst == 0
    elif "other hosts" in text:
        assert worst == 1
    elif "other executors" in text:
        assert worst == 2
    elif "merely in other processes" in text:
        assert worst == 3


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: interleave([A, B], placed("z")), "none for \\['b'\\]"),
        (lambda: backups_of(Ring.even([A, B]), placed("z"), 1), "none for \\['b'\\]"),
        (lambda: backups_of(Ring.even([A]), placed("z"), -1), "at least 0"),
        (lambda: shortage([], -1), "at least 0"),
    ],
)
def test_an_impossible_option_is_refused(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attempt()

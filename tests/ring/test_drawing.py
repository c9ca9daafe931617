from __future__ import annotations

import numpy as np
import pytest

from millstream.errors import ConfigError
from millstream.ring.drawing import draw
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.ring.zones import Domain


def node(name: str) -> NodeId:
    """Name a node like a UUID that begins with the given letter."""
    return NodeId(f"{name * 8}-{name * 4}-4000-8000-{name * 12}")


A, B, C, D = map(node, "abcd")


def everywhere(ring: Ring) -> Placement:
    """Feed each node's slots to its next neighbour."""
    alone = Placement.alone(ring)
    feeds = {ring.successor(owner): alone.owned(owner) for owner in ring.nodes}
    return Placement.of(ring, feeds)


def test_a_line_per_node_shows_where_it_is_what_it_owns_and_who_copies() -> None:
    domains = {
        A: Domain("east", "h1", "1"),
        B: Domain("west", "h2", "12"),
        C: Domain("east", "", "3"),
    }
    ring = Ring(7, 4096, ((0, A), (1024, B), (3072, C)))

    assert draw(everywhere(ring), domains, 16).splitlines() == [
        "ring version 7: 4096 slots, 3 nodes (# owns, + owns a few, - copies)",
        "aaaaaaaa  east/1   1024  |####........----| -> bbbbbbbb",
        "bbbbbbbb  west/12  2048  |----########....| -> cccccccc",
        "cccccccc  east/3   1024  |....--------####| -> aaaaaaaa",
    ]


def test_a_node_with_several_arcs_says_how_much_of_it_is_copied_where() -> None:
    ring = Ring(0, 32, ((4, A), (8, B), (16, A), (24, C)))
    fed = np.zeros(32, np.bool_)
    fed[4:8] = True

    lines = draw(Placement.of(ring, {B: fed, D: np.ones(32, np.bool_)}), {}, 8).splitlines()

    assert lines[1:] == [
        "aaaaaaaa  ?  12  |.#..##..| -> bbbbbbbb (4), dddddddd",
        "bbbbbbbb  ?   8  |.-##....| -> dddddddd",
        "cccccccc  ?  12  |#.....##| -> dddddddd",
        "dddddddd  ?   0  |--------|",
    ]


def test_a_node_of_a_single_slot_is_still_seen() -> None:
    ring = Ring(0, 4096, ((0, A), (4000, B), (4001, A)))

    line = draw(Placement.alone(ring), {}).splitlines()[2]

    assert line == "bbbbbbbb  ?     1  |" + "." * 62 + "+.|"


def test_a_node_alone_owns_the_whole_circle() -> None:
    lines = draw(Placement.alone(Ring.even([A])), {}).splitlines()

    assert lines == [
        "ring version 0: 4096 slots, 1 node (# owns, + owns a few, - copies)",
        "aaaaaaaa  ?  4096  |" + "#" * 64 + "|",
    ]


def test_ids_that_begin_alike_are_shown_longer() -> None:
    ring = Ring.even([NodeId("executor-10-of-20"), NodeId("executor-11-of-20")], 2)

    lines = draw(Placement.alone(ring), {}).splitlines()

    assert lines[1:] == ["executor-10  ?  1  |#.|", "executor-11  ?  1  |.#|"]


def test_an_id_that_begins_another_is_shown_whole() -> None:
    ring = Ring.even([NodeId("executor-1"), NodeId("executor-11")], 2)

    lines = draw(Placement.alone(ring), {}).splitlines()

    assert lines[1:] == ["executor-1   ?  1  |#.|", "executor-11  ?  1  |.#|"]


def test_of_many_copies_only_some_are_named() -> None:
    ring = Ring.even([node(name) for name in "abcdefg"], 7)
    fed = {owner: np.ones(7, np.bool_) for owner in ring.nodes}

    line = draw(Placement.of(ring, fed), {}).splitlines()[1]

    assert line.endswith("|#------| -> bbbbbbbb, cccccccc, dddddddd, eeeeeeee and 2 more")


@pytest.mark.parametrize("count", [1, 2, 17, 64])
@pytest.mark.parametrize("width", [1, 10, 64, 5000])
def test_every_node_has_a_line_without_trailing_spaces(count: int, width: int) -> None:
    nodes = [NodeId(f"{index:08x}-0000") for index in range(count)]
    domains = {node: Domain(f"zone {index % 3}", "h", "1") for index, node in enumerate(nodes)}

    lines = draw(everywhere(Ring.even(nodes)), domains, width).splitlines()

    assert [line[:8] for line in lines[1:]] == [node[:8] for node in nodes]
    assert all(line == line.rstrip() for line in lines)
    assert {len(line.split("|")[1]) for line in lines[1:]} == {min(width, 4096)}


def test_of_very_many_nodes_the_first_are_shown() -> None:
    nodes = [NodeId(f"{index:08x}-0000") for index in range(100)]

    lines = draw(everywhere(Ring.even(nodes)), {}).splitlines()

    assert lines[0].startswith("ring version 0: 4096 slots, 100 nodes")
    assert [line[:8] for line in lines[1:-1]] == [node[:8] for node in nodes[:64]]
    assert lines[-1] == "and 36 more nodes"


def test_a_circle_without_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="width"):
        draw(Placement.alone(Ring.even([A])), {}, 0)

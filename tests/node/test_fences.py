from __future__ import annotations

from typing import Any

import pytest

from millstream.node.held_units import Work
from millstream.node.machine import NodeMachine
from millstream.node.slot_store import UnknownJobError
from millstream.ring.ring import Ring
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.feed import FeedRefusedError
from tests.node.machines import (
    ALL,
    HIGH,
    HISTORY,
    JOB,
    LOW,
    ME,
    OTHER,
    Node,
    digest,
    end_of,
    placed,
)
from tests.work.running import SLOTS


@pytest.fixture
def node() -> Node:
    return Node()


def refused(node: Node, **options: Any) -> FeedRefusedError:
    with pytest.raises(FeedRefusedError) as caught:
        node.run(0, [("a", 1)], **options)
    node.seal(0)
    assert node.state() == {}
    return caught.value


def test_a_feed_of_an_older_incarnation_is_void(node: Node) -> None:
    node.assign(placed([ME]), incarnation=2)

    assert refused(node, incarnation=1).stale


def test_a_feed_of_a_newer_incarnation_waits_for_its_ring(node: Node) -> None:
    assert not refused(node, incarnation=2).stale


def test_a_ring_of_an_older_incarnation_is_refused(node: Node) -> None:
    node.assign(placed([ME]), incarnation=2)

    with pytest.raises(FeedRefusedError):
        node.assign(placed([OTHER], 9), incarnation=1)

    assert node.run(0, [("a", 1)], incarnation=2) == [("a", [1])]


def test_a_newer_incarnation_fences_the_older_whatever_its_ring_version() -> None:
    node = Node(placement=placed([ME], 7))
    node.commit(0, [("a", 1)], ring=7)
    node.run(1, [("a", 1)], ring=7, try_=3)

    node.assign(placed([ME]), incarnation=2)

    assert node.state() == {} and node.machine.committed == NOTHING_COMMITTED
    with pytest.raises(FeedRefusedError):
        node.run(1, [("a", 1)], ring=7, try_=3)
    assert node.receipts(1, 3).receipts == ()
    assert node.run(0, [("a", 2)], incarnation=2, ring=0) == [("a", [2])]
    node.seal(0)
    assert node.state() == {"a": [2]}


def test_slots_of_another_node_are_refused() -> None:
    halves = placed([ME, OTHER])

    for slots in (HIGH, range(7, 9)):
        assert not refused(Node(placement=halves), slots=slots).stale

    node = Node(placement=halves)
    node.machine.admit(node.feed(0, slots=LOW))


def test_slots_gained_after_the_senders_ring_are_refused() -> None:
    ring = Ring.even([ME, OTHER], SLOTS)
    node = Node(placement=placed(ring, me=HIGH))
    node.assign(placed(ring.moved(range(8, 10), ME), 1))

    for slots in (range(8, 10), range(0, 9)):
        with pytest.raises(FeedRefusedError) as caught:
            node.machine.admit(node.feed(0, slots=slots, ring=0))
        assert not caught.value.stale
    node.machine.admit(node.feed(0, slots=LOW, ring=0))
    node.machine.admit(node.feed(0, slots=range(8, 10), ring=1))


def test_slots_lost_and_gained_again_count_from_the_second_time() -> None:
    first = Ring.even([ME, OTHER], SLOTS)
    second = first.moved(range(0, 2), OTHER)
    node = Node(placement=placed(first))
    node.assign(placed(second, 1, me=range(0, 2)))
    node.assign(placed(second.moved(range(0, 2), ME), 2))

    for version in (0, 1):
        with pytest.raises(FeedRefusedError):
            node.machine.admit(node.feed(0, slots=range(0, 2), ring=version))
    node.machine.admit(node.feed(0, slots=range(0, 2), ring=2))


def test_an_older_ring_that_arrives_late_changes_nothing() -> None:
    node = Node(placement=placed([OTHER], 1))

    node.assign(placed([ME, OTHER], 0))

    with pytest.raises(FeedRefusedError):
        node.machine.admit(node.feed(0, slots=LOW, ring=5))
    assert node.machine.version == 1


def test_a_node_that_is_not_in_the_ring_owns_nothing() -> None:
    node = Node(placement=placed([OTHER]))

    assert not refused(node).stale


def test_a_node_without_a_ring_rejects_everything() -> None:
    node = Node()
    fresh = NodeMachine(ME, {JOB: HISTORY}, SLOTS, digest, lambda: 0.0)

    with pytest.raises(FeedRefusedError) as caught:
        fresh.admit(node.feed(0))

    assert not caught.value.stale and fresh.version == -1


def test_a_feed_whose_base_is_not_the_nodes_own_is_refused_until_it_is(node: Node) -> None:
    # The seal of epoch 0 implies nothing here: the units of it went to another try.
    node.run(0, [("a", 1)], try_=1)

    with pytest.raises(FeedRefusedError, match="is at epoch -1, not at 0") as caught:
        node.run(1, [("a", 2)], committed=Commit(0, 0))

    assert not caught.value.stale


def test_an_attempt_that_lost_its_slots_while_it_reduced_freezes_nothing() -> None:
    node = Node(placement=placed([ME], other=ALL))
    feed, blocks = node.feed(0), node.blocks([("a", 1)])
    work = node.machine.begin(feed, blocks, end_of(blocks))
    assert isinstance(work, Work)
    reduced, receipt = node.machine.reduce(work)
    node.assign(placed([OTHER], 1, me=ALL))

    with pytest.raises(FeedRefusedError) as caught:
        node.machine.freeze(work, reduced, receipt)

    assert not caught.value.stale
    found = node.receipts(0)
    assert (found.receipts, found.copies, found.reach, found.pending) == ((), (), ((0, -1),), False)


def test_an_unknown_job_is_refused(node: Node) -> None:
    with pytest.raises(UnknownJobError):
        node.run(0, [("a", 1)], job=99)

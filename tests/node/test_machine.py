from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import MillstreamError, Place
from millstream.flow.workflow import JobVertex
from millstream.node.machine import Block, NodeMachine, UnknownJob
from millstream.node.messages import (
    Assign,
    BrokenFeed,
    End,
    Feed,
    FeedRefused,
    NotDeterministic,
    Receipt,
)
from millstream.ring.keys import KeyTypeError
from millstream.ring.ring import NodeId, Ring
from millstream.state.blocks import Origin, slices, to_bytes
from millstream.state.records import decode_records
from millstream.work.failures import UserFunctionError
from tests.work.running import SLOTS, blocks_of_pairs, job_of

ME, OTHER = NodeId("me"), NodeId("other")
ALL = range(SLOTS)
JOB = 3


def history(key: str, values: list[Any], state: Any) -> Iterator[Any]:
    """Keeps all values in their order, so that order and double effects show."""
    if "bad" in values:
        raise ValueError("no good")
    state.setdefault("seen", []).extend(values)
    yield key, list(state["seen"])


HISTORY = job_of(history)


def digest(blocks: Sequence[Block]) -> str:
    found = hashlib.sha256()
    for block in blocks:
        found.update(repr(block.origin).encode() + block.data.to_pybytes())
    return found.hexdigest()


class Node:
    """A machine with its ring, and the feeds of one job."""

    def __init__(self, job: JobVertex = HISTORY, ring: Ring | None = None) -> None:
        self.job = job
        ticks = iter(range(1000))
        self.machine = NodeMachine(ME, {JOB: job}, SLOTS, digest, lambda: float(next(ticks)))
        self.machine.assign(Assign(1, ring or Ring.even([ME], SLOTS)))

    def feed(self, epoch: int, **options: Any) -> Feed:
        header = Feed(
            incarnation=1,
            job=JOB,
            epoch=epoch,
            try_=0,
            attempt=0,
            ring=0,
            slots=ALL,
            committed=epoch - 1,
            time=epoch,
            rows=7,
        )
        return replace(header, **options)

    def blocks(self, *tasks: Sequence[Any], slots: range = ALL) -> list[Block]:
        """One block for each map task that has rows in these slots."""
        return [
            Block(Origin(0, task, sequence), pa.py_buffer(to_bytes(rows)))
            for task, pairs in enumerate(tasks)
            for sequence, block in enumerate(blocks_of_pairs(self.job, pairs))
            for _, rows in slices(block, [slots.start, slots.stop])
        ]

    def finish(self, feed: Feed, blocks: Sequence[Block], end: End | None = None) -> list[Any]:
        if end is None:
            end = End(len(blocks), digest(sorted(blocks, key=lambda block: block.origin)))
        outputs = self.machine.finish(feed, blocks, end)
        return [record for batch in outputs for record in decode_records(batch)]

    def run(self, epoch: int, *tasks: Sequence[Any], **options: Any) -> list[Any]:
        feed = self.feed(epoch, **options)
        return self.finish(feed, self.blocks(*tasks, slots=feed.slots))

    def state(self) -> dict[Any, Any]:
        return {key: found["seen"] for key, found in self.machine.items(JOB)}


@pytest.fixture
def node() -> Node:
    return Node()


# -- the first attempt to finish -------------------------------------------------------------


def test_an_epoch_is_in_the_state_once_it_is_sealed_and_not_before(node: Node) -> None:
    outputs = node.run(0, [("a", 1)], [("a", 2), ("b", 3)])

    assert sorted(outputs) == [("a", [1, 2]), ("b", [3])]
    assert node.state() == {} and node.machine.committed == -1
    node.machine.seal(0)

    assert node.state() == {"a": [1, 2], "b": [3]} and node.machine.committed == 0


def test_later_attempts_get_the_outputs_of_the_first_and_change_nothing(node: Node) -> None:
    first = node.run(0, [("a", 1)], attempt=1)

    again = [node.run(0, [("a", 1)], attempt=attempt) for attempt in (2, 3)]
    node.machine.seal(0)

    assert again == [first, first]
    assert node.state() == {"a": [1]}
    assert len(node.machine.receipts(0, 0)) == 0


def test_a_later_attempt_does_not_run_the_users_function_again() -> None:
    class Once:
        """A reducer that is not deterministic: every call gives another output."""

        calls = 0

        def __call__(self, key: str, values: list[int], state: Any) -> tuple[str, int]:
            Once.calls += 1
            return key, Once.calls

    node = Node(job_of(Once()))

    first, second = (node.run(0, [("a", 1)], attempt=attempt) for attempt in (1, 2))

    assert first == second == [("a", 1)]


def test_blocks_that_arrive_in_another_order_give_the_same_outputs_and_state() -> None:
    tasks = [[("a", 1), ("b", 2)], [("a", 3), ("c", 4)], [("b", 5), ("a", 6)]]
    results = []
    for order in permutations(range(3)):
        node = Node()
        blocks = node.blocks(*tasks)
        outputs = node.finish(node.feed(0), [blocks[at] for at in order])
        node.machine.seal(0)
        results.append((outputs, node.state()))

    assert all(result == results[0] for result in results)
    assert results[0][1] == {"a": [1, 3, 6], "b": [2, 5], "c": [4]}


def test_another_input_for_the_same_unit_is_told_as_not_deterministic(node: Node) -> None:
    node.run(0, [("a", 1)])

    with pytest.raises(NotDeterministic) as caught:
        node.run(0, [("a", 2)], attempt=2)
    assert "job 'job'" in str(caught.value) and "slots 0 to 15 of epoch 0" in str(caught.value)
    node.machine.seal(0)

    assert node.state() == {"a": [1]}


def test_units_of_other_slots_and_jobs_are_their_own(node: Node) -> None:
    pairs = [(str(number), number) for number in range(40)]

    for slots in (range(0, 5), range(5, 16)):
        node.run(0, pairs, slots=slots)
    node.machine.seal(0)

    assert node.state() == {key: [value] for key, value in pairs}


# -- attempts that fail ----------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["blocks", "digest", "nothing came"])
def test_a_feed_whose_end_marker_is_wrong_applies_nothing(node: Node, wrong: str) -> None:
    blocks = node.blocks([("a", 1)], [("b", 2)])
    right = End(2, digest(blocks))
    if wrong == "blocks":
        feed_blocks, end = blocks, replace(right, blocks=3)
    elif wrong == "digest":
        feed_blocks, end = blocks, replace(right, digest="x")
    else:
        feed_blocks, end = blocks[:1], right

    with pytest.raises(BrokenFeed):
        node.finish(node.feed(0), feed_blocks, end)
    assert node.machine.receipts(0, 0) == ()
    node.machine.seal(0)

    assert node.state() == {}


def test_a_feed_that_never_ended_applies_nothing(node: Node) -> None:
    node.machine.admit(node.feed(0))

    node.machine.seal(0)

    assert node.state() == {} and node.machine.receipts(0, 0) == ()


def test_an_error_in_reduce_leaves_nothing_and_names_function_file_line_and_key(
    node: Node,
) -> None:
    node.run(0, [("a", 1), ("b", 1)])

    with pytest.raises(UserFunctionError) as caught:
        node.run(1, [("a", 2), ("b", "bad"), ("c", 2)])

    error = caught.value
    assert (error.function, error.key) == ("history", "'b' (str)")
    assert error.place == Place(__file__, history.__code__.co_firstlineno + 3)
    assert node.machine.receipts(1, 0) == ()
    assert node.state() == {"a": [1], "b": [1]}
    node.machine.seal(1)
    assert node.state() == {"a": [1], "b": [1]}


def test_after_a_failed_attempt_the_next_one_starts_from_the_committed_state(node: Node) -> None:
    node.run(0, [("a", 1)])
    with pytest.raises(UserFunctionError):
        node.run(1, [("a", 2), ("b", "bad")])

    outputs = node.run(1, [("a", 3)], attempt=2)
    node.machine.seal(1)

    assert outputs == [("a", [1, 3])]
    assert node.state() == {"a": [1, 3]}


# -- tries and epochs ------------------------------------------------------------------------


def test_a_newer_try_voids_the_older(node: Node) -> None:
    node.run(0, [("a", 1)], try_=0)

    assert node.run(0, [("b", 2)], try_=1) == [("b", [2])]
    assert node.machine.receipts(0, 0) == ()
    node.machine.seal(0)

    assert node.state() == {"b": [2]}


def test_a_newer_try_voids_every_unit_of_the_older(node: Node) -> None:
    low, high = range(0, 8), range(8, 16)
    pairs = [(str(number), number) for number in range(40)]
    for slots in (low, high):
        node.run(0, pairs, slots=slots)

    node.run(0, pairs, slots=low, try_=1)

    assert [receipt.slots for receipt in node.machine.receipts(0, 1)] == [low]


def test_an_attempt_of_an_older_try_is_refused_also_when_it_was_let_in_before(node: Node) -> None:
    old = node.feed(0, try_=0)
    node.machine.admit(old)
    node.run(0, [("b", 2)], try_=1)

    with pytest.raises(FeedRefused) as caught:
        node.finish(old, node.blocks([("a", 1)]))
    assert caught.value.stale
    node.machine.seal(0)

    assert node.state() == {"b": [2]}


def test_a_feed_of_the_next_epoch_seals_the_one_before(node: Node) -> None:
    node.run(0, [("a", 1)])

    outputs = node.run(1, [("a", 2)], committed=0)

    assert node.machine.committed == 0
    assert node.state() == {"a": [1]}
    assert outputs == [("a", [1, 2])]


def test_what_was_frozen_and_never_committed_is_not_sealed_by_a_newer_epoch(node: Node) -> None:
    node.run(0, [("a", 1)])

    # Not what a coordinator does; but if it did, the uncommitted epoch must leave nothing.
    node.run(1, [("b", 2)], committed=-1)
    node.machine.seal(1)

    assert node.state() == {"b": [2]}


def test_sealing_twice_and_sealing_late_change_nothing(node: Node) -> None:
    node.run(0, [("a", 1)])
    node.machine.seal(0)
    node.machine.seal(0)
    node.run(1, [("a", 2)])

    node.machine.seal(0)
    assert [receipt.epoch for receipt in node.machine.receipts(1, 0)] == [1]
    node.machine.seal(1)

    assert node.state() == {"a": [1, 2]}


def test_a_committed_epoch_is_not_fed_again(node: Node) -> None:
    node.run(0, [("a", 1)])
    node.machine.seal(0)

    for try_ in (0, 1):
        with pytest.raises(FeedRefused, match="epoch 0 is committed") as caught:
            node.run(0, [("a", 1)], try_=try_)
        assert caught.value.stale

    assert node.state() == {"a": [1]}


def test_time_in_the_state_is_that_of_the_epoch() -> None:
    node = Node(replace(HISTORY, ttl=timedelta(microseconds=10)))
    node.run(0, [("a", 1), ("b", 1)], time=100)
    node.run(1, [("a", 2)], time=105)
    node.run(2, [], time=111)
    node.machine.seal(2)

    assert node.state() == {"a": [1, 2]}


# -- fences ----------------------------------------------------------------------------------


def refused(node: Node, **options: Any) -> FeedRefused:
    with pytest.raises(FeedRefused) as caught:
        node.run(0, [("a", 1)], **options)
    node.machine.seal(0)
    assert node.state() == {}
    return caught.value


def test_a_feed_of_an_older_incarnation_is_void(node: Node) -> None:
    node.machine.assign(Assign(2, Ring.even([ME], SLOTS)))

    assert refused(node, incarnation=1).stale


def test_a_feed_of_a_newer_incarnation_waits_for_its_ring(node: Node) -> None:
    assert not refused(node, incarnation=2).stale


def test_a_ring_of_an_older_incarnation_is_refused(node: Node) -> None:
    node.machine.assign(Assign(2, Ring.even([ME], SLOTS)))

    with pytest.raises(FeedRefused):
        node.machine.assign(Assign(1, replace(Ring.even([OTHER], SLOTS), version=9)))

    assert node.run(0, [("a", 1)], incarnation=2) == [("a", [1])]


def test_a_newer_incarnation_fences_the_older_whatever_its_ring_version() -> None:
    node = Node(ring=replace(Ring.even([ME], SLOTS), version=7))
    node.run(0, [("a", 1)], ring=7, try_=3)

    node.machine.assign(Assign(2, Ring.even([ME], SLOTS)))

    with pytest.raises(FeedRefused):
        node.run(0, [("a", 1)], ring=7, try_=3)
    assert node.machine.receipts(0, 3) == ()
    assert node.run(0, [("a", 2)], incarnation=2, ring=0) == [("a", [2])]
    node.machine.seal(0)
    assert node.state() == {"a": [2]}


def test_slots_of_another_node_are_refused() -> None:
    ring = Ring.even([ME, OTHER], SLOTS)

    for slots in (range(8, 16), range(7, 9)):
        assert not refused(Node(ring=ring), slots=slots).stale

    node = Node(ring=ring)
    node.machine.admit(node.feed(0, slots=range(0, 8)))


def test_slots_gained_after_the_senders_ring_are_refused() -> None:
    first = Ring.even([ME, OTHER], SLOTS)
    second = first.moved(range(8, 10), ME)
    node = Node(ring=first)
    node.machine.assign(Assign(1, second))

    for slots in (range(8, 10), range(0, 9)):
        with pytest.raises(FeedRefused) as caught:
            node.machine.admit(node.feed(0, slots=slots, ring=0))
        assert not caught.value.stale
    node.machine.admit(node.feed(0, slots=range(0, 8), ring=0))
    node.machine.admit(node.feed(0, slots=range(8, 10), ring=1))


def test_slots_lost_and_gained_again_count_from_the_second_time() -> None:
    first = Ring.even([ME, OTHER], SLOTS)
    second = first.moved(range(0, 2), OTHER)
    third = second.moved(range(0, 2), ME)
    node = Node(ring=first)
    for ring in (second, third):
        node.machine.assign(Assign(1, ring))

    for version in (0, 1):
        with pytest.raises(FeedRefused):
            node.machine.admit(node.feed(0, slots=range(0, 2), ring=version))
    node.machine.admit(node.feed(0, slots=range(0, 2), ring=2))


def test_an_older_ring_that_arrives_late_changes_nothing() -> None:
    first = Ring.even([ME, OTHER], SLOTS)
    node = Node(ring=first.moved(range(8), OTHER))

    node.machine.assign(Assign(1, first))

    with pytest.raises(FeedRefused):
        node.machine.admit(node.feed(0, slots=range(0, 8), ring=5))


def test_a_node_that_is_not_in_the_ring_owns_nothing() -> None:
    node = Node(ring=Ring.even([OTHER], SLOTS))

    assert not refused(node).stale


def test_an_unknown_job_is_refused(node: Node) -> None:
    with pytest.raises(UnknownJob):
        node.run(0, [("a", 1)], job=99)
    with pytest.raises(UnknownJob):
        node.machine.get(99, "a")


# -- receipts --------------------------------------------------------------------------------


def test_receipts_say_what_was_frozen_and_counted(node: Node) -> None:
    node.run(0, [("a", 1), ("b", 2)], [("a", 3)], rows=3)

    [receipt] = node.machine.receipts(0, 0)

    assert receipt == Receipt(
        job=JOB,
        epoch=0,
        try_=0,
        slots=ALL,
        rows=3,
        keys=2,
        outputs=2,
        seconds=1.0,
        key_type=pa.string(),
        output=receipt.output,
    )
    assert receipt.output is not None and receipt.output.names == ["key", "value"]


def test_receipts_are_given_for_the_present_epoch_and_try_only(node: Node) -> None:
    node.run(0, [("a", 1)], try_=1)

    assert node.machine.receipts(0, 0) == ()
    assert node.machine.receipts(1, 1) == ()
    assert len(node.machine.receipts(0, 1)) == 1
    node.run(1, [("a", 2)])
    assert node.machine.receipts(0, 1) == ()


def test_a_unit_without_rows_has_a_receipt_too(node: Node) -> None:
    assert node.run(0) == []

    [receipt] = node.machine.receipts(0, 0)

    assert (receipt.slots, receipt.keys, receipt.key_type, receipt.output) == (ALL, 0, None, None)


def test_the_key_type_of_a_receipt_is_that_of_all_blocks(node: Node) -> None:
    node.run(0, [(None, 1)], [(5, 2)])

    [receipt] = node.machine.receipts(0, 0)

    assert receipt.key_type == pa.int64()


def test_blocks_with_keys_of_several_types_freeze_nothing(node: Node) -> None:
    with pytest.raises(MillstreamError, match="types double and int64"):
        node.run(0, [(1, 1)], [(1.0, 2)])

    assert node.machine.receipts(0, 0) == ()


# -- look-ups --------------------------------------------------------------------------------


def test_a_look_up_finds_committed_keys_in_canonical_form() -> None:
    node = Node()
    assert node.machine.get(JOB, "a") is None
    node.run(0, [(0.0, 1), (float("nan"), 2), (None, 3)])
    assert node.machine.get(JOB, 0.0) is None
    node.machine.seal(0)

    assert node.machine.get(JOB, -0.0) == {"seen": [1]}
    assert node.machine.get(JOB, float("nan")) == {"seen": [2]}
    assert node.machine.get(JOB, None) == {"seen": [3]}
    assert node.machine.get(JOB, 0) == {"seen": [1]}
    with pytest.raises(KeyTypeError):
        node.machine.get(JOB, "a")


def test_keys_that_were_all_none_at_first_are_found_when_others_follow(node: Node) -> None:
    node.run(0, [(None, 1)])
    node.run(1, [("a", 1)])
    node.run(2, [(None, 2)])
    node.machine.seal(2)

    assert node.machine.get(JOB, None) == {"seen": [1, 2]}
    assert node.machine.get(JOB, "a") == {"seen": [1]}


def test_items_of_a_tuple_key_that_were_none_at_first_are_found_later(node: Node) -> None:
    node.run(0, [((1, None), 1)])
    node.run(1, [((1, "a"), 2)])
    node.run(2, [((1, None), 3)])
    node.machine.seal(2)

    assert node.machine.get(JOB, (1, None)) == {"seen": [1, 3]}
    assert node.machine.get(JOB, (1, "a")) == {"seen": [2]}


def test_what_a_look_up_gave_can_be_changed_without_harm(node: Node) -> None:
    node.run(0, [("a", 1)])
    node.machine.seal(0)

    node.machine.get(JOB, "a")["seen"].append(9)

    assert node.state() == {"a": [1]}


def test_keys_are_counted_by_job(node: Node) -> None:
    node.run(0, [("a", 1), ("b", 1)])
    node.machine.seal(0)

    assert node.machine.state_keys() == {JOB: 2}


@pytest.mark.parametrize(
    "reduce",
    [ms.sum(), ms.combinable(zero=int, add=int.__add__, merge=int.__add__)],
    ids=["aggregate", "combinable"],
)
def test_every_form_is_applied_exactly_once_through_retries(reduce: Any) -> None:
    node = Node(job_of(reduce))
    for epoch in range(3):
        node.run(epoch, [("a", 1)], [("a", 10)], try_=0)
        node.run(epoch, [("a", 2)], [("a", 20)], try_=1)
        node.run(epoch, [("a", 2)], [("a", 20)], try_=1, attempt=2)
    node.machine.seal(2)
    node.machine.seal(2)

    assert dict(node.machine.items(JOB)) == {"a": 66}


@pytest.mark.parametrize(
    "error",
    [
        FeedRefused("slot 3 is not owned", False),
        FeedRefused("epoch 3 is committed", True),
        NotDeterministic("job", 3, "0 to 5"),
        BrokenFeed("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))


def test_a_node_without_keys_of_a_job_finds_none(node: Node) -> None:
    node.run(0, [])
    node.machine.seal(0)

    assert node.machine.get(JOB, "a") is None

    node.run(1, [(None, 1)], committed=0)
    node.machine.seal(1)
    assert node.machine.get(JOB, "a") is None
    assert node.machine.get(JOB, None) == {"seen": [1]}

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import MillstreamError, Place
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.feed import BrokenFeedError, End, FeedRefusedError, NotDeterministicError
from millstream.wire.membership import FencedError
from millstream.wire.receipts import Receipt
from millstream.wire.replication import SlotsNotHeldError
from millstream.work.failures import UserFunctionError
from tests.node.machines import (
    ALL,
    HIGH,
    HISTORY,
    JOB,
    LOW,
    MANY,
    Node,
    commit_of,
    digest,
    history,
    items_of,
)
from tests.work.running import job_of


@pytest.fixture
def node() -> Node:
    return Node()


# -- the first attempt to finish -------------------------------------------------------------


def test_an_epoch_is_in_the_state_once_it_is_sealed_and_not_before(node: Node) -> None:
    outputs = node.run(0, [("a", 1)], [("a", 2), ("b", 3)])

    assert sorted(outputs) == [("a", [1, 2]), ("b", [3])]
    assert node.state() == {} and node.machine.committed == NOTHING_COMMITTED
    node.seal(0)

    assert node.state() == {"a": [1, 2], "b": [3]} and node.machine.committed == Commit(0, 0)


def test_later_attempts_get_the_outputs_of_the_first_and_change_nothing(node: Node) -> None:
    first = node.run(0, [("a", 1)], attempt=1)

    again = [node.run(0, [("a", 1)], attempt=attempt) for attempt in (2, 3)]
    node.seal(0)

    assert again == [first, first]
    assert node.state() == {"a": [1]}
    assert len(node.receipts(0).receipts) == 0


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
        node.seal(0)
        results.append((outputs, node.state()))

    assert all(result == results[0] for result in results)
    assert results[0][1] == {"a": [1, 3, 6], "b": [2, 5], "c": [4]}


def test_different_input_for_the_same_unit_is_not_deterministic(node: Node) -> None:
    node.run(0, [("a", 1)])

    with pytest.raises(NotDeterministicError) as caught:
        node.run(0, [("a", 2)], attempt=2)
    assert "job 'job'" in str(caught.value) and "slots 0 to 15 of epoch 0" in str(caught.value)
    node.seal(0)

    assert node.state() == {"a": [1]}


def test_units_of_other_slots_and_jobs_are_their_own(node: Node) -> None:
    for slots in (range(0, 5), range(5, 16)):
        node.run(0, MANY, slots=slots)
    node.seal(0)

    assert node.state() == {key: [value] for key, value in MANY}


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

    with pytest.raises(BrokenFeedError):
        node.finish(node.feed(0), feed_blocks, end)
    assert node.receipts(0).receipts == ()
    node.seal(0)

    assert node.state() == {}


def test_a_feed_that_never_ended_applies_nothing(node: Node) -> None:
    node.machine.admit(node.feed(0))

    node.seal(0)

    assert node.state() == {} and node.receipts(0).receipts == ()


def test_an_error_in_reduce_leaves_nothing_and_names_function_file_line_and_key(
    node: Node,
) -> None:
    node.run(0, [("a", 1), ("b", 1)])

    with pytest.raises(UserFunctionError) as caught:
        node.run(1, [("a", 2), ("b", "bad"), ("c", 2)])

    error = caught.value
    assert (error.function, error.key) == ("history", "'b' (str)")
    code = history.__code__
    assert error.place == Place(code.co_filename, code.co_firstlineno + 3)
    assert node.receipts(1).receipts == ()
    assert node.state() == {"a": [1], "b": [1]}
    node.seal(1)
    assert node.state() == {"a": [1], "b": [1]}


def test_after_a_failed_attempt_the_next_one_starts_from_the_committed_state(node: Node) -> None:
    node.run(0, [("a", 1)])
    with pytest.raises(UserFunctionError):
        node.run(1, [("a", 2), ("b", "bad")])

    outputs = node.run(1, [("a", 3)], attempt=2)
    node.seal(1)

    assert outputs == [("a", [1, 3])]
    assert node.state() == {"a": [1, 3]}


# -- tries and epochs ------------------------------------------------------------------------


def test_a_newer_try_voids_the_older(node: Node) -> None:
    node.run(0, [("a", 1)], try_=0)

    assert node.run(0, [("b", 2)], try_=1) == [("b", [2])]
    assert node.receipts(0).receipts == ()
    node.seal(0, try_=1)

    assert node.state() == {"b": [2]}


def test_a_newer_try_voids_every_unit_of_the_older(node: Node) -> None:
    for slots in (LOW, HIGH):
        node.run(0, MANY, slots=slots)

    node.run(0, MANY, slots=LOW, try_=1)

    assert [receipt.slots for receipt in node.receipts(0, 1).receipts] == [LOW]


def test_only_the_try_that_was_committed_is_merged(node: Node) -> None:
    node.run(0, [("a", 1)], try_=1)

    node.seal(0, try_=0)

    assert node.state() == {} and node.machine.committed == Commit(0, 0)
    assert node.receipts(0, 1).receipts == ()


def test_an_attempt_of_an_older_try_is_refused_also_when_it_was_let_in_before(node: Node) -> None:
    old = node.feed(0, try_=0)
    node.machine.admit(old)
    node.run(0, [("b", 2)], try_=1)

    with pytest.raises(FeedRefusedError) as caught:
        node.finish(old, node.blocks([("a", 1)]))
    assert caught.value.stale
    node.seal(0, try_=1)

    assert node.state() == {"b": [2]}


def test_a_feed_of_the_next_epoch_seals_the_one_before(node: Node) -> None:
    node.run(0, [("a", 1)])

    outputs = node.run(1, [("a", 2)])

    assert node.machine.committed == Commit(0, 0)
    assert node.state() == {"a": [1]}
    assert outputs == [("a", [1, 2])]


def test_a_frozen_unit_of_an_uncommitted_try_is_not_sealed(node: Node) -> None:
    node.run(0, [("a", 1)])

    # Not what a coordinator does; but if it did, the uncommitted epoch must leave nothing.
    node.run(1, [("b", 2)], committed=NOTHING_COMMITTED)
    node.seal(1)

    assert node.state() == {}  # nor may epoch 1 count, with a gap before it


def test_sealing_twice_and_sealing_late_change_nothing(node: Node) -> None:
    node.run(0, [("a", 1)])
    node.seal(0)
    node.seal(0)
    node.run(1, [("a", 2)])

    node.seal(0)
    assert [receipt.epoch for receipt in node.receipts(1).receipts] == [1]
    node.seal(1)

    assert node.state() == {"a": [1, 2]}


def test_a_committed_epoch_is_not_fed_again(node: Node) -> None:
    node.run(0, [("a", 1)])
    node.seal(0)

    for try_ in (0, 1):
        with pytest.raises(FeedRefusedError, match="epoch 0 is committed") as caught:
            node.run(0, [("a", 1)], try_=try_)
        assert caught.value.stale

    assert node.state() == {"a": [1]}


def test_time_in_the_state_is_that_of_the_epoch() -> None:
    node = Node(replace(HISTORY, ttl=timedelta(microseconds=10)))
    node.run(0, [("a", 1), ("b", 1)], time=100)
    node.run(1, [("a", 2)], time=105)
    node.run(2, [], time=111)
    node.seal(2)

    assert node.state() == {"a": [1, 2]}


# -- receipts --------------------------------------------------------------------------------


def test_receipts_name_frozen_units_and_counts(node: Node) -> None:
    node.run(0, [("a", 1), ("b", 2)], [("a", 3)], rows=3)

    report = node.receipts(0)
    [receipt] = report.receipts

    assert (report.copies, report.reach, report.pending) == ((), ((0, -1),), False)
    assert receipt == Receipt(
        job=JOB,
        epoch=0,
        try_=0,
        slots=ALL,
        digest=f"0-{ALL.stop}:{digest(node.blocks([('a', 1), ('b', 2)], [('a', 3)]))}",
        rows=3,
        keys=2,
        outputs=2,
        seconds=1.0,
        key_type=pa.string(),
        output=receipt.output,
        key=receipt.key,
    )
    assert receipt.key in ("'a'", "'b'")
    assert receipt.output is not None and receipt.output.names == ["key", "value"]


def test_receipts_are_given_for_the_present_epoch_and_try_only(node: Node) -> None:
    node.run(0, [("a", 1)], try_=1)

    assert node.receipts(0).receipts == ()
    assert node.receipts(1, 1).receipts == ()
    assert len(node.receipts(0, 1).receipts) == 1
    node.run(1, [("a", 2)], committed=commit_of([node.machine], 0, 1))
    assert node.receipts(0, 1).receipts == ()


def test_a_unit_without_rows_has_a_receipt_too(node: Node) -> None:
    assert node.run(0) == []

    [receipt] = node.receipts(0).receipts

    assert (receipt.slots, receipt.keys, receipt.key_type, receipt.output) == (ALL, 0, None, None)


def test_the_key_type_of_a_receipt_is_that_of_all_blocks(node: Node) -> None:
    node.run(0, [(None, 1)], [(5, 2)])

    [receipt] = node.receipts(0).receipts

    assert receipt.key_type == pa.int64()


def test_blocks_with_keys_of_several_types_freeze_nothing(node: Node) -> None:
    with pytest.raises(MillstreamError, match=r"gave the key 1.0, which is float"):
        node.run(0, [(1, 1)], [(1.0, 2)])

    assert node.receipts(0).receipts == ()


@pytest.mark.parametrize(
    "reduce",
    [ms.sum(), ms.combinable(zero=int, add=int.__add__, merge=int.__add__)],
    ids=["aggregate", "combinable"],
)
def test_every_form_is_applied_exactly_once_through_retries(reduce: Any) -> None:
    node = Node(job_of(reduce))
    for epoch in range(3):
        newest = commit_of([node.machine], epoch - 1, 1)
        node.run(epoch, [("a", 1)], [("a", 10)], try_=0, committed=newest)
        for attempt in (1, 2):
            node.run(epoch, [("a", 2)], [("a", 20)], try_=1, attempt=attempt, committed=newest)
    node.seal(2, try_=1)
    node.seal(2, try_=1)

    assert items_of(node.store) == [("a", 66)]


@pytest.mark.parametrize(
    "error",
    [
        FeedRefusedError("slot 3 is not owned", False),
        FeedRefusedError("epoch 3 is committed", True),
        NotDeterministicError("job", 3, "0 to 5"),
        BrokenFeedError("x"),
        SlotsNotHeldError("x"),
        FencedError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))

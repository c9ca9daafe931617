"""Backups and takeover, as the machine sees them: unit copies, tuple logs, replays, deltas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from millstream.flow.vertices import JobVertex
from millstream.ring.ring import Ring
from millstream.wire.commit import Commit
from millstream.wire.feed import (
    BrokenFeedError,
    End,
    FeedRefusedError,
    NotDeterministicError,
    RecutError,
)
from millstream.wire.receipts import CopyReceipt
from tests.node.machines import (
    ALL,
    HIGH,
    HISTORY,
    JOB,
    LOW,
    MANY,
    ME,
    OTHER,
    THIRD,
    Node,
    commit_of,
    digest,
    looked_up,
    placed,
)
from tests.work.running import SLOTS, job_of

MINE = placed([ME], other=ALL)
TAKEN_OVER = placed([OTHER], 1)


def once(key: str, values: list[Any], state: Any) -> Iterator[Any]:
    """Takes every key in one epoch only."""
    if "seen" in state:
        raise ValueError("seen before")
    state["seen"] = values
    yield key, values


def pair() -> tuple[Node, Node]:
    """A primary and the backup of all its slots."""
    return Node(placement=MINE), Node(node=OTHER, placement=MINE)


def logging_pair() -> tuple[Node, Node]:
    """The same, with tuple logs."""
    return (
        Node(placement=MINE, durability="interval"),
        Node(node=OTHER, placement=MINE, durability="interval"),
    )


def bring(primary: Node, backup: Node) -> list[int]:
    """Make a background checkpoint; gives what the backup answers."""
    answers = []
    for due in primary.machine.deltas.due():
        answers.append(backup.machine.take_delta(primary.machine.deltas.request(due, due.slots)))
        primary.machine.store.replication.acknowledge(backup.machine.node, due.slots, answers[-1])
    return answers


# -- copies of units -------------------------------------------------------------------------


def test_a_copy_gives_the_backup_the_same_state_once_the_epoch_is_committed() -> None:
    primary, backup = pair()
    primary.run(0, MANY)
    primary.copy_to(backup)

    [receipt] = primary.receipts(0).receipts
    report = backup.receipts(0)
    assert report.receipts == () and report.copies == (CopyReceipt(JOB, ALL, receipt.digest),)
    assert backup.held() == {}
    for node in (primary, backup):
        node.seal(0)

    assert backup.held() == primary.held() == {key: [value] for key, value in MANY}
    assert backup.state() == {} and looked_up(backup.store, "1") is None


def test_a_unit_is_replicated_to_the_backups_of_its_slots_only() -> None:
    node = Node(placement=placed([ME], other=LOW, third=HIGH))

    for slots, expected in [(LOW, (OTHER,)), (HIGH, (THIRD,)), (ALL, (OTHER, THIRD))]:
        node.run(0, MANY, slots=slots, try_=len(expected))
        [unit] = node.units
        assert tuple(node.machine.backups_of(unit)) == expected


def test_a_duplicate_copy_counts_once() -> None:
    primary, backup = pair()
    for epoch in (0, 1):
        primary.run(epoch, [("a", epoch)])
        for _ in range(2):
            primary.copy_to(backup)
        assert len(backup.receipts(epoch).copies) == 1
    backup.seal(1)

    assert backup.held() == {"a": [0, 1]}


def test_a_copy_of_the_next_epoch_seals_the_one_before() -> None:
    primary, backup = pair()
    for epoch in (0, 1):
        primary.run(epoch, [("a", epoch)])
        primary.copy_to(backup)

    assert backup.held() == {"a": [0]} and backup.machine.committed == Commit(0, 0)


def test_a_newer_try_voids_the_copies_of_the_older() -> None:
    primary, backup = pair()
    primary.run(0, [("a", 1)], try_=0)
    primary.copy_to(backup)
    primary.run(0, [("a", 2)], try_=1)
    primary.copy_to(backup)

    assert backup.receipts(0, 0).copies == () and len(backup.receipts(0, 1).copies) == 1
    backup.seal(0, try_=1)

    assert backup.held() == {"a": [2]}


def test_a_copy_of_an_older_try_or_a_committed_epoch_is_void() -> None:
    primary, backup = pair()
    primary.run(0, [("a", 1)])
    copy = primary.machine.copy_of(primary.units[0])
    newer = replace(copy.receipt, try_=1)
    backup.machine.take_copy(replace(copy, receipt=newer))

    for _ in range(2):
        with pytest.raises(FeedRefusedError) as caught:
            backup.machine.take_copy(copy)
        assert caught.value.stale
        backup.seal(0, try_=1)


def test_a_node_that_owns_the_slots_takes_no_copy_of_the_owner_before_it() -> None:
    primary, backup = pair()
    primary.run(0, [("a", 1)])
    backup.assign(TAKEN_OVER)

    with pytest.raises(FeedRefusedError, match="since ring 1, after ring 0") as caught:
        primary.copy_to(backup)

    assert caught.value.stale
    assert backup.run(0, [("a", 2)]) == [("a", [2])]


def test_a_backup_that_has_a_copy_takes_over_with_it() -> None:
    primary, backup = pair()
    for epoch in (0, 1):
        primary.run(epoch, [("a", epoch)])
        primary.copy_to(backup)

    backup.assign(TAKEN_OVER)

    assert backup.receipts(1).receipts == primary.receipts(1).receipts
    assert backup.state() == {"a": [0]}
    backup.seal(1)
    assert backup.state() == {"a": [0, 1]} and looked_up(backup.store, "a") == {"seen": [0, 1]}


def test_after_a_takeover_a_feed_gets_its_outputs_though_the_unit_was_copied() -> None:
    primary, backup = pair()
    outputs = primary.run(0, MANY)
    primary.copy_to(backup)
    backup.assign(TAKEN_OVER)

    assert backup.run(0, MANY, attempt=2) == outputs
    assert backup.units == []  # what was frozen stays so
    assert backup.run(0, MANY, attempt=3) == outputs
    assert len(backup.receipts(0).receipts) == 1
    backup.seal(0)
    assert backup.state() == {key: [value] for key, value in MANY}


@pytest.mark.parametrize("slots", [ALL, range(2, 5)])
def test_a_feed_cut_differently_from_the_copy_is_rejected(slots: range) -> None:
    primary, heir = pair()
    primary.run(0, MANY, slots=LOW)
    primary.copy_to(heir)
    heir.assign(TAKEN_OVER)

    with pytest.raises(RecutError) as caught:
        heir.run(0, MANY, slots=slots)

    assert caught.value.job == "job" and heir.units == []
    heir.seal(0)
    assert heir.state().keys() <= {key for key, _ in MANY}


def test_units_cut_differently_by_a_takeover_are_not_committed() -> None:
    halves = placed([ME, OTHER], third=ALL)
    heir = Node(node=THIRD, placement=halves)
    whole = Node(placement=placed([ME], third=ALL))
    whole.run(0, MANY)
    whole.copy_to(heir)
    half = Node(placement=halves)
    half.run(0, MANY, slots=LOW)
    half.copy_to(heir)
    assert heir.receipts(0).receipts == ()
    heir.assign(placed([THIRD], 1))

    with pytest.raises(RecutError):
        heir.receipts(0)


def test_a_seal_merges_the_copy_that_the_commit_names_and_no_other() -> None:
    before = placed([ME], other=ALL, third=ALL)
    lost, heir, backup = (Node(node=node, placement=before) for node in (ME, OTHER, THIRD))
    lost.run(0, [("a", 1)])
    lost.copy_to(backup)  # and the heir misses it
    for node in (heir, backup):
        node.assign(placed([OTHER], 1, third=ALL))
    heir.run(0, [("a", 2)])
    heir.copy_to(backup)
    assert len(backup.receipts(0).copies) == 2

    commit = commit_of([heir.machine], 0)
    for node in (heir, backup):
        node.machine.seal(commit)

    assert backup.held() == heir.held() == {"a": [2]}


def test_a_copy_that_the_commit_does_not_name_leaves_its_slots_out_of_sync() -> None:
    before = placed([ME], other=ALL, third=ALL)
    lost, heir, backup = (Node(node=node, placement=before) for node in (ME, OTHER, THIRD))
    lost.run(0, [("a", 1)])
    lost.copy_to(backup)
    for node in (heir, backup):
        node.assign(placed([OTHER], 1, third=ALL))
    heir.run(0, [("a", 2)])  # and the backup misses the copy
    commit = commit_of([heir.machine], 0)
    for node in (heir, backup):
        node.machine.seal(commit)
    assert backup.held() == {} and backup.receipts(1).reach == ((0, -1),)

    for snapshot in heir.machine.snapshots(ALL):
        backup.machine.install(snapshot)

    assert backup.held() == {"a": [2]} and backup.receipts(1).reach == ((0, 0),)


def test_a_commit_may_name_a_unit_for_a_part_of_its_slots() -> None:
    primary, backup = pair()
    primary.run(0, MANY)
    primary.copy_to(backup)
    [unit] = commit_of([primary.machine], 0).units

    backup.machine.seal(Commit.of(0, 0, [unit._replace(stop=LOW.stop)]))

    assert backup.receipts(1).reach == ((0, 0), (HIGH.start, -1))
    assert 0 < len(backup.held()) < len(MANY)


def test_an_owner_with_two_versions_of_a_unit_raises() -> None:
    before = placed([ME], other=ALL, third=ALL)
    lost, heir, last = (Node(node=node, placement=before) for node in (ME, OTHER, THIRD))
    lost.run(0, [("a", 1)])
    lost.copy_to(last)
    for node in (heir, last):
        node.assign(placed([OTHER], 1, third=ALL))
    heir.run(0, [("a", 2)])
    heir.copy_to(last)
    last.assign(placed([THIRD], 2))

    with pytest.raises(NotDeterministicError):
        last.receipts(0)


def test_receipts_are_for_owned_slots_and_copy_receipts_for_the_others() -> None:
    primary, backup = pair()
    primary.run(0, MANY)
    primary.copy_to(backup)
    ring = Ring.even([ME], SLOTS).moved(range(2, 5), OTHER)
    for node in (primary, backup):
        node.assign(placed(ring, 1, other=ALL, me=ALL))

    report = backup.receipts(0)

    assert [receipt.slots for receipt in report.receipts] == [range(2, 5)]
    assert [copy.slots for copy in report.copies] == [range(0, 2), range(5, SLOTS)]
    assert [r.slots for r in primary.receipts(0).receipts] == [range(0, 2), range(5, SLOTS)]


def test_units_are_sent_again_to_a_peer_that_should_have_them_in_this_try_only() -> None:
    node = Node(placement=placed([ME], other=LOW))
    for slots in (LOW, HIGH):
        node.run(0, MANY, slots=slots, try_=1)

    assert [unit.slots for unit in node.machine.units_for(OTHER, 0, 1)] == [LOW]
    assert node.machine.units_for(THIRD, 0, 1) == []
    assert node.machine.units_for(OTHER, 0, 0) == node.machine.units_for(OTHER, 1, 1) == []


# -- tuple logs ------------------------------------------------------------------------------


def test_a_log_has_no_effect_until_it_is_replayed_by_a_new_owner() -> None:
    _, backup = logging_pair()
    for epoch in range(3):
        backup.log(epoch, [("a", epoch), ("b", epoch)])
    report = backup.receipts(2)
    assert report.receipts == () and len(report.copies) == 1
    assert report.reach == ((0, 1),) and not report.pending
    assert backup.held() == {}

    backup.assign(TAKEN_OVER)
    assert backup.receipts(2).pending and backup.receipts(2).receipts == ()
    assert backup.replay() == 3

    assert backup.state() == {"a": [0, 1], "b": [0, 1]}
    report = backup.receipts(2)
    assert [receipt.slots for receipt in report.receipts] == [ALL] and not report.pending
    backup.seal(2)
    assert backup.state() == {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_the_outputs_of_a_replay_are_those_that_the_lost_owner_gave() -> None:
    primary, backup = logging_pair()
    outputs = primary.run(0, MANY)
    backup.log(0, MANY)
    backup.assign(TAKEN_OVER)
    backup.replay()

    assert backup.run(0, MANY, attempt=7) == outputs and backup.units == []


def test_logs_are_replayed_unit_by_unit_in_the_order_of_epochs() -> None:
    _, backup = logging_pair()
    for epoch in range(2):
        for slots in (HIGH, LOW):
            backup.log(epoch, MANY, slots=slots)
    backup.seal(1)
    backup.assign(TAKEN_OVER)

    assert backup.replay() == 4

    assert backup.state() == {key: [value, value] for key, value in MANY}
    assert backup.store.holdings.through.tolist() == [1] * SLOTS


def test_logs_that_a_slot_has_passed_are_not_replayed_though_others_need_them() -> None:
    primary, backup = logging_pair()
    for epoch in range(2):
        primary.commit(epoch, MANY)
        for slots in (LOW, HIGH):
            backup.log(epoch, MANY, slots=slots)
        backup.seal(epoch)
    [due] = primary.machine.deltas.due()
    backup.machine.take_delta(primary.machine.deltas.request(due, LOW))
    backup.assign(TAKEN_OVER)

    assert backup.replay() == 2

    assert backup.state() == primary.state()


def logging_pair_with_a_delta_of_low_slots(job: JobVertex = HISTORY) -> tuple[Node, Node]:
    """A primary that was lost in the midst of a checkpoint: of high slots the backup has logs."""
    primary, backup = (Node(job, MINE, node, "interval") for node in (ME, OTHER))
    primary.commit(0, MANY)
    backup.log(0, MANY)
    backup.seal(0)
    [due] = primary.machine.deltas.due()
    backup.machine.take_delta(primary.machine.deltas.request(due, LOW))
    return primary, backup


def test_a_log_is_not_replayed_over_slots_that_have_passed_it() -> None:
    primary, backup = logging_pair_with_a_delta_of_low_slots(job_of(once))

    backup.assign(TAKEN_OVER)
    assert backup.replay() == 1

    assert backup.state() == primary.state() == {key: [value] for key, value in MANY}


def test_a_log_of_a_unit_that_a_takeover_divided_is_replayed_when_all_of_its_slots_are_due() -> (
    None
):
    _, backup = logging_pair_with_a_delta_of_low_slots()
    backup.log(1, MANY)
    backup.assign(placed([OTHER, THIRD], 1, other=HIGH))

    assert backup.replay() == 0  # the high slots are those of a third node, and an epoch behind
    assert backup.receipts(1).receipts == () and not backup.receipts(1).pending

    backup.assign(placed([OTHER], 2))
    assert backup.replay() == 2
    backup.seal(1)
    assert backup.state() == {key: [value, value] for key, value in MANY}


def test_a_committed_log_that_a_takeover_divided_is_replayed_by_every_heir_for_its_own_slots() -> (
    None
):
    _, backup = logging_pair_with_a_delta_of_low_slots()
    backup.log(1, MANY)
    backup.seal(1)

    backup.assign(placed([OTHER, THIRD], 1, other=HIGH))
    assert backup.replay() == 1
    assert backup.store.holdings.through.tolist() == [1] * len(LOW) + [-1] * len(HIGH)

    backup.assign(placed([OTHER], 2))
    assert backup.replay() == 2
    assert backup.state() == {key: [value, value] for key, value in MANY}


def test_a_broken_log_is_rejected() -> None:
    _, backup = logging_pair()
    blocks = backup.blocks([("a", 1)], [("b", 2)])

    with pytest.raises(BrokenFeedError):
        backup.machine.take_log(backup.feed(0, copy=True), blocks[:1], End(2, digest(blocks)))

    assert backup.receipts(0).copies == ()


def test_a_log_from_the_owner_before_is_void_for_the_owner() -> None:
    _, backup = logging_pair()
    backup.assign(TAKEN_OVER)

    with pytest.raises(FeedRefusedError) as caught:
        backup.log(0, [("a", 1)], ring=0)

    assert caught.value.stale


def test_the_bytes_of_logs_are_counted_until_a_delta_covers_them() -> None:
    primary, backup = logging_pair()
    assert backup.machine.log_bytes == 0
    sizes = []
    for epoch in range(2):
        primary.run(epoch, MANY)
        backup.log(epoch, MANY)
        sizes.append(backup.machine.log_bytes)
    assert sizes[1] == 2 * sizes[0] > 0
    for node in (primary, backup):
        node.seal(1)
    assert backup.machine.log_bytes == sizes[1]

    assert bring(primary, backup) == [1]

    assert backup.machine.log_bytes == 0


# -- deltas ----------------------------------------------------------------------------------


def test_a_delta_advances_a_backup_to_the_committed_epoch() -> None:
    primary, backup = logging_pair()
    for epoch in range(3):
        primary.commit(epoch, [("a", epoch), (str(epoch), epoch)])

    assert bring(primary, backup) == [2]

    assert backup.held() == primary.state()
    assert backup.receipts(2).reach == ((0, 2),)
    assert bring(primary, backup) == []  # nothing is due


def test_a_delta_after_logs_gives_the_same_as_the_logs() -> None:
    primary, backup = logging_pair()
    for epoch in range(3):
        primary.run(epoch, [("a", epoch)])
        backup.log(epoch, [("a", epoch)])
    bring(primary, backup)  # through epoch 1: epoch 2 is under way
    for node in (primary, backup):
        node.seal(2)
    assert backup.held() == {"a": [0, 1]}

    backup.assign(TAKEN_OVER)
    assert backup.replay() == 1

    assert backup.state() == primary.state() == {"a": [0, 1, 2]}


def test_a_delta_that_would_leave_a_gap_is_rejected_with_the_epoch_of_the_backup() -> None:
    primary, backup = logging_pair()
    primary.commit(0, [("a", 0)])
    [due] = primary.machine.deltas.due()
    missed = primary.machine.deltas.request(due, due.slots)
    primary.machine.store.replication.acknowledge(OTHER, ALL, 0)
    primary.commit(1, [("a", 1)])
    [due] = primary.machine.deltas.due()
    assert due.since == 0

    assert backup.machine.take_delta(primary.machine.deltas.request(due, due.slots)) == -1
    assert backup.held() == {}
    assert backup.machine.take_delta(missed) == 0
    assert backup.machine.take_delta(primary.machine.deltas.request(due, due.slots)) == 1

    assert backup.held() == {"a": [0, 1]}


def test_a_duplicate_delta_changes_nothing() -> None:
    primary, backup = logging_pair()
    primary.commit(0, [("a", 0)])
    [due] = primary.machine.deltas.due()
    first = primary.machine.deltas.request(due, due.slots)
    primary.commit(1, [("a", 1)])
    bring(primary, backup)

    assert backup.machine.take_delta(first) == 1

    assert backup.held() == {"a": [0, 1]}


def test_a_delta_from_the_owner_before_is_void_for_the_owner() -> None:
    primary, backup = logging_pair()
    primary.commit(0, [("a", 0)])
    [due] = primary.machine.deltas.due()
    backup.assign(TAKEN_OVER)

    with pytest.raises(FeedRefusedError) as caught:
        backup.machine.take_delta(primary.machine.deltas.request(due, due.slots))

    assert caught.value.stale and backup.held() == {}


def test_a_delta_covers_only_what_the_new_owner_has_replayed() -> None:
    before, after = placed([OTHER], me=ALL, third=ALL), placed([ME], 1, third=ALL)
    heir, backup = (
        Node(node=node, placement=before, durability="interval") for node in (ME, THIRD)
    )
    for node in (heir, backup):
        for epoch in (0, 1):
            node.log(epoch, [("a", epoch)])
            node.seal(epoch)
        node.assign(after)

    bring(heir, backup)  # the heir has not replayed anything yet
    heir.replay()
    bring(heir, backup)
    backup.assign(placed([THIRD], 2))
    backup.replay()

    assert backup.state() == heir.state() == {"a": [0, 1]}


def test_a_delta_promises_no_epochs_from_before_its_owner_came_to_own_a_slot() -> None:
    halves = placed([ME, OTHER], me=HIGH, third=ALL)
    heir, lost, backup = (
        Node(node=node, placement=halves, durability="interval") for node in (ME, OTHER, THIRD)
    )
    heir.run(0, MANY, slots=LOW)
    lost.run(0, MANY, slots=HIGH)
    heir.log(0, MANY, slots=HIGH)
    for slots in (LOW, HIGH):
        backup.log(0, MANY, slots=slots)
    for node in (heir, lost, backup):
        node.seal(0)
    [high] = lost.machine.deltas.due()
    heir.machine.take_delta(lost.machine.deltas.request(high, HIGH))  # and the backup misses it
    for node in (heir, backup):
        node.assign(placed([ME], 1, third=ALL))
    heir.run(1, [])
    backup.log(1, [])
    for node in (heir, backup):
        node.seal(1)

    bring(heir, backup)
    backup.assign(placed([THIRD], 2))
    backup.replay()

    assert backup.state() == heir.state() == {key: [value] for key, value in MANY}


def test_keys_of_a_delta_can_be_read_after_a_takeover() -> None:
    primary, backup = logging_pair()
    primary.commit(0, [("a", 0)])
    bring(primary, backup)

    backup.assign(TAKEN_OVER)

    assert backup.state() == {"a": [0]}
    assert looked_up(backup.store, "a") == {"seen": [0]}


# -- snapshots -------------------------------------------------------------------------------


def test_a_snapshot_makes_a_backup_of_a_node_that_had_nothing() -> None:
    primary, newcomer = pair()
    primary.commit(0, MANY)
    primary.commit(1, MANY)
    newcomer.assign(placed([ME], 1))
    newcomer.assign(placed([ME], 2, other=ALL), committed=Commit(1, 0))
    assert newcomer.receipts(1).reach == ((0, -2),)

    for snapshot in primary.machine.snapshots(ALL):
        newcomer.machine.install(snapshot)

    assert newcomer.held() == primary.state()
    assert newcomer.receipts(1).reach == ((0, 1),)
    newcomer.assign(placed([OTHER], 3))
    assert looked_up(newcomer.store, "7") == {"seen": [7, 7]}


def test_copies_that_came_before_the_snapshot_follow_it() -> None:
    primary, newcomer = pair()
    primary.commit(0, [("a", 0)])
    [snapshot] = primary.machine.snapshots(ALL)
    newcomer.assign(placed([ME], 1))
    for node in (primary, newcomer):
        node.assign(placed([ME], 2, other=ALL), committed=Commit(0, 0))
    primary.run(1, [("a", 1)])
    primary.copy_to(newcomer)
    newcomer.seal(1)
    assert newcomer.held() == {}

    newcomer.machine.install(snapshot)

    assert newcomer.held() == {"a": [0, 1]} and newcomer.receipts(1).reach == ((0, 1),)


def test_a_snapshot_of_another_incarnation_is_refused() -> None:
    primary, backup = pair()
    [snapshot] = primary.machine.snapshots(ALL)

    with pytest.raises(FeedRefusedError):
        backup.machine.install(replace(snapshot, incarnation=9))

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millstream.node.replication_log import Due, ReplicationLog, Retained
from millstream.ring.placement import Share
from millstream.ring.ring import NodeId
from tests.node.machines import HIGH, LOW, ME, OTHER, THIRD, mask_of

SLOTS = 16
EVERY = range(SLOTS)
LONE = [Share(ME, (OTHER,), EVERY)]
BOTH = [Share(ME, (OTHER, THIRD), EVERY)]


def checkpoints_of(*epochs: int, slots: range = EVERY) -> ReplicationLog:
    """What a node keeps that owned everything from the beginning, after some epochs."""
    checkpoints = ReplicationLog(SLOTS)
    for epoch in epochs:
        retain(checkpoints, epoch, slots)
    return checkpoints


def at(epoch: int) -> npt.NDArray[np.int64]:
    """An owner that has all of its slots through an epoch."""
    return np.full(SLOTS, epoch, dtype=np.int64)


def retain(checkpoints: ReplicationLog, epoch: int, slots: range = EVERY, job: int = 1) -> None:
    checkpoints.retain(Retained(epoch, job, slots, 10, f"fragment of {epoch}"))


def epochs_of(due: Due) -> list[int]:
    return [held.epoch for held in due.retained]


def test_a_backup_is_owed_everything_that_was_committed_since_the_beginning() -> None:
    [due] = checkpoints_of(0, 1, 2).due(LONE, at(2))

    assert (due.peers, due.slots, due.since, due.through) == ((OTHER,), EVERY, -1, 2)
    assert epochs_of(due) == [0, 1, 2] and due.keys == 30


def test_deltas_are_due_only_for_what_a_backup_has_not_acknowledged() -> None:
    checkpoints = checkpoints_of(0, 1, 2)
    checkpoints.acknowledge(OTHER, EVERY, 1)

    [due] = checkpoints.due(LONE, at(2))
    assert due.since == 1 and epochs_of(due) == [2]

    checkpoints.acknowledge(OTHER, EVERY, 2)
    assert list(checkpoints.due(LONE, at(2))) == []


def test_an_acknowledgement_never_takes_back_an_earlier_one() -> None:
    checkpoints = checkpoints_of(0, 1, 2)
    for through in (1, 0, -2):
        checkpoints.acknowledge(OTHER, EVERY, through)

    [due] = checkpoints.due(LONE, at(2))

    assert due.since == 1


def test_a_share_is_cut_where_a_backup_is_not_equally_far() -> None:
    checkpoints = checkpoints_of(0, 1)
    checkpoints.acknowledge(OTHER, LOW, 1)
    checkpoints.acknowledge(OTHER, range(8, 12), 0)

    found = [(due.slots, due.since, epochs_of(due)) for due in checkpoints.due(LONE, at(1))]

    assert found == [(range(8, 12), 0, [1]), (range(12, 16), -1, [0, 1])]


def test_no_more_is_promised_than_the_owner_has() -> None:
    # It replays the logs of the slots in the middle.
    through = at(1)
    through[4:8] = -1
    through[8:12] = 0
    checkpoints = checkpoints_of(0, 1)

    found = [(due.slots, due.through, epochs_of(due)) for due in checkpoints.due(LONE, through)]

    assert found == [
        (range(0, 4), 1, [0, 1]),
        (range(8, 12), 0, [0]),
        (range(12, 16), 1, [0, 1]),
    ]


def test_no_more_is_promised_than_is_retained_for_slots_gained_later() -> None:
    checkpoints = checkpoints_of(0, slots=LOW)
    checkpoints.begin(mask_of(HIGH), at(0))
    retain(checkpoints, 1)

    found = [(due.slots, due.since, epochs_of(due)) for due in checkpoints.due(LONE, at(1))]

    assert found == [(LOW, -1, [0, 1]), (HIGH, 0, [1])]


def test_backups_that_are_equally_far_get_the_same_delta_and_others_their_own() -> None:
    checkpoints = checkpoints_of(0, 1)
    [due] = checkpoints.due(BOTH, at(1))
    assert due.peers == (OTHER, THIRD)

    checkpoints.acknowledge(THIRD, EVERY, 0)

    found = {due.peers: epochs_of(due) for due in checkpoints.due(BOTH, at(1))}
    assert found == {(OTHER,): [0, 1], (THIRD,): [1]}


def test_a_share_is_owed_only_fragments_that_touch_its_slots() -> None:
    checkpoints = ReplicationLog(SLOTS)
    for epoch, slots in enumerate((LOW, HIGH, range(7, 9))):
        retain(checkpoints, epoch, slots)
    shares = [Share(ME, (OTHER,), LOW), Share(ME, (THIRD,), HIGH)]

    assert [epochs_of(due) for due in checkpoints.due(shares, at(2))] == [[0, 2], [1, 2]]


def test_slots_gained_later_are_owed_from_then_on() -> None:
    checkpoints = ReplicationLog(SLOTS)
    checkpoints.begin(mask_of(EVERY), at(4))
    retain(checkpoints, 5)

    [due] = checkpoints.due(LONE, at(5))

    assert (due.since, epochs_of(due)) == (4, [5])


def test_fragments_that_every_backup_has_are_evicted() -> None:
    checkpoints = checkpoints_of(0, 1, 2)
    checkpoints.acknowledge(OTHER, EVERY, 2)
    checkpoints.acknowledge(THIRD, EVERY, 0)

    checkpoints.evict(BOTH, at(2))

    newcomer = NodeId("newcomer")
    [due] = checkpoints.due([Share(ME, (newcomer,), EVERY)], at(2))
    assert (due.since, epochs_of(due)) == (0, [1, 2])  # evicted fragments cannot be sent


def test_without_backups_nothing_is_retained() -> None:
    checkpoints = checkpoints_of(0, 1)

    checkpoints.evict([Share(ME, (), EVERY)], at(1))

    assert list(checkpoints.due(LONE, at(1))) == []
    retain(checkpoints, 2)
    [due] = checkpoints.due(LONE, at(2))
    assert (due.since, epochs_of(due)) == (1, [2])


def test_acknowledgements_of_former_backups_are_dropped() -> None:
    checkpoints = checkpoints_of(0, 1)
    checkpoints.acknowledge(THIRD, EVERY, 1)
    checkpoints.evict(LONE, at(1))

    # It comes back with nothing.
    due = {due.peers: due.since for due in checkpoints.due(BOTH, at(1))}

    assert due == {(OTHER, THIRD): -1}


def test_a_new_incarnation_owes_nothing() -> None:
    checkpoints = checkpoints_of(0, 1)
    checkpoints.acknowledge(OTHER, EVERY, 1)

    checkpoints.clear()

    [due] = checkpoints.due(LONE, at(0))
    assert (due.since, due.retained) == (-1, ())

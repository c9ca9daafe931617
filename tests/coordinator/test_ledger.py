from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millstream.coordinator.ledger import (
    EpochOrderError,
    Ledger,
    MissingReceiptsError,
    TypeConflictError,
)
from millstream.ring.ring import NodeId
from millstream.wire.commit import NOTHING_COMMITTED, Commit, CommittedUnit, fingerprint
from millstream.wire.receipts import CopyReceipt, Receipt, Receipts
from tests.coordinator.receipts import (
    HIGH,
    JOBS,
    LOW,
    OWNED,
    PAIRS,
    SLOTS,
    UNKNOWN,
    WORDS,
    A,
    B,
    copy,
    give,
    ledger_of,
    receipt,
    receipts_of,
    roster_of,
)

# -- admission -------------------------------------------------------------------------------


def test_the_record_fixes_what_every_copy_must_agree_on() -> None:
    roster = roster_of(A, B)
    ledger = ledger_of(roster=roster)

    record = ledger.admit(0, 123)

    assert record is ledger.record
    assert (record.incarnation, record.epoch, record.try_) == (5, 0, 0)
    assert (record.committed, record.time, record.logs) == (NOTHING_COMMITTED, 123, False)
    assert record.placement is roster.placement and record.addresses[A] == "address a"
    assert record.at == (0, 0)


def test_the_record_names_whether_backups_are_fed() -> None:
    assert Ledger(1, {}, roster_of(A), dict, {}, logs=True).admit(0, 0).logs


@pytest.mark.parametrize("epoch", [-1, 0, 2, 7])
def test_epochs_are_admitted_in_order(epoch: int) -> None:
    ledger = Ledger(1, {}, roster_of(A), dict, {})
    ledger.admit(0, 0)
    ledger.commit(ledger.prepare())

    with pytest.raises(EpochOrderError) as caught:
        ledger.admit(epoch, 0)

    assert (caught.value.epoch, caught.value.committed) == (epoch, 0)
    assert ledger.admit(1, 0).epoch == 1


def test_a_retry_changes_only_the_try() -> None:
    ledger = ledger_of()
    first = ledger.admit(0, 123)

    second = ledger.retry()

    assert second == replace(first, try_=1)
    assert ledger.record is second


def test_a_retry_uses_the_placement_in_force() -> None:
    roster = roster_of(A, B, replicas=1)
    ledger = ledger_of(roster=roster)
    ledger.admit(0, 123)
    roster.remove([A])

    assert ledger.retry().placement is roster.placement


def test_a_shuffle_has_a_partition_for_every_owner_and_at_least_as_many_as_asked_for() -> None:
    assert [ledger_of(partitions=least).admit(0, 0).partitions for least in (1, 2, 3, 4, 9)] == [
        (0, 4),
        (0, 4),
        (0, 2, 4),
        (0, 2, 4, 6),
        tuple(range(SLOTS)),
    ]


def test_scattered_slots_make_at_most_two_partitions_for_every_owner() -> None:
    roster = roster_of(A, B, replicas=1)
    roster.move([0, 2], B)
    roster.enact(between_epochs=True)
    assert roster.placement.cuts == (1, 2, 3, 4)

    assert ledger_of(roster=roster).admit(0, 0).partitions == (0, 2, 3, 4)
    assert ledger_of(roster=roster, partitions=5).admit(0, 0).partitions == (0, 1, 2, 3, 4)


def test_partitions_stay_during_a_try_and_follow_the_placement_in_the_next() -> None:
    roster = roster_of(A, B, replicas=1)
    ledger = ledger_of(roster=roster)
    assert ledger.admit(0, 0).partitions == (0, 4)
    roster.remove([A])

    ledger.replace_placement()
    assert ledger.record is not None and ledger.record.partitions == (0, 4)

    assert ledger.retry().partitions == (0,)


def test_a_takeover_replaces_the_placement_of_the_epoch_under_way_and_nothing_else() -> None:
    roster = roster_of(A, B, replicas=1)
    ledger = ledger_of(roster=roster)
    ledger.replace_placement()  # no epoch is under way
    record = ledger.admit(0, 123)
    roster.remove([A])
    assert ledger.record is record

    ledger.replace_placement()

    assert ledger.record == replace(record, placement=roster.placement)
    assert record.placement is not roster.placement


# -- commit ----------------------------------------------------------------------------------


def test_an_epoch_commits_when_every_slot_of_every_job_has_a_receipt_of_its_owner() -> None:
    ledger = ledger_of(JOBS)
    ledger.admit(0, 0)
    for node, slots in OWNED.items():
        ledger.receive(node, receipts_of(*(receipt(slots, job) for job in JOBS)))

    assert ledger.missing() == {}
    ledger.commit(ledger.prepare())
    assert ledger.committed.epoch == 0
    assert (ledger.committed, ledger.record, *ledger.receipts) == (Commit(0, 0), None)
    assert ledger.admit(1, 0).committed == Commit(0, 0)


def test_a_commit_names_the_try() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    ledger.retry()
    give(ledger)

    ledger.commit(ledger.prepare())

    assert ledger.committed == Commit(0, 1)


def test_a_commit_names_the_units_of_present_owners() -> None:
    ledger = ledger_of(JOBS)
    ledger.admit(0, 0)
    ledger.receive(
        A, receipts_of(receipt(LOW, digest="x"), receipt(range(SLOTS), PAIRS, digest="v"))
    )
    ledger.receive(
        B,
        receipts_of(
            receipt(range(4, 6), digest="y"),
            receipt(range(6, 8), digest="z"),
            receipt(HIGH, PAIRS, digest="w"),
        ),
    )

    prepared = ledger.prepare()

    assert prepared.commit.units == (
        CommittedUnit(WORDS, 0, 4, fingerprint("x")),
        CommittedUnit(WORDS, 4, 6, fingerprint("y")),
        CommittedUnit(WORDS, 6, 8, fingerprint("z")),
        CommittedUnit(PAIRS, 0, 4, fingerprint("v")),
        CommittedUnit(PAIRS, 4, 8, fingerprint("w")),
    )
    ledger.commit(prepared)
    assert ledger.admit(1, 0).committed.units == prepared.commit.units


def test_the_units_of_a_commit_are_packed_once_and_not_with_every_message() -> None:
    unit = CommittedUnit(WORDS, 0, SLOTS, fingerprint("x"))
    commit = Commit.of(3, 1, [unit])

    travelled = pickle.loads(pickle.dumps(commit))

    assert travelled == commit and travelled.units == (unit,)
    assert b"CommittedUnit" not in pickle.dumps(commit)
    assert Commit(3, 1).units == ()


def test_receipts_from_before_a_change_of_the_ring_do_not_count() -> None:
    roster = roster_of(A, B, UNKNOWN, replicas=1)
    ledger = ledger_of(roster=roster)
    ledger.admit(0, 0)
    for node in (A, B, UNKNOWN):
        owned = range(*[int(at) for at in roster.placement.ring.slots_of(node)[[0, -1]] + [0, 1]])
        ledger.receive(node, receipts_of(receipt(owned)))
    ledger.prepare()
    roster.placement = roster.placement.at(roster.placement.version + 1)

    with pytest.raises(MissingReceiptsError, match="the ring in force"):
        ledger.prepare()


def test_old_receipts_of_a_node_that_holds_no_slots_do_not_hinder_a_commit() -> None:
    roster = roster_of(A, B, replicas=1)
    roster.add(UNKNOWN, roster.domains[A])
    ledger = ledger_of(roster=roster)
    ledger.admit(0, 0)
    ledger.receive(UNKNOWN, receipts_of())
    roster.remove([A])
    ledger.receive(B, receipts_of(receipt(LOW), receipt(HIGH)))

    assert UNKNOWN in roster.domains and UNKNOWN not in roster.holding
    assert len(ledger.prepare().receipts) == 2


def test_a_takeover_is_known_until_the_next_try() -> None:
    roster = roster_of(A, B, replicas=1)
    ledger = ledger_of(roster=roster)
    assert ledger.admit(0, 0).cuts == (HIGH.start,)
    roster.remove([A])
    ledger.replace_placement()
    assert ledger.taken_over and not ledger.recut

    assert ledger.retry().cuts == ()

    assert not ledger.taken_over


def missing_after(given: Mapping[NodeId, Receipts], jobs: dict[int, str] | None = None) -> Any:
    ledger = ledger_of(jobs)
    ledger.admit(0, 0)
    for node, found in given.items():
        ledger.receive(node, found)
    missing = ledger.missing()
    with pytest.raises(MissingReceiptsError) as caught:
        ledger.commit(ledger.prepare())
    assert ledger.committed == NOTHING_COMMITTED and ledger.record is not None
    assert caught.value.missing == {JOBS[job]: count for job, count in missing.items()}
    return missing


def test_no_receipts_no_commit() -> None:
    assert missing_after({}) == {WORDS: 8}
    assert missing_after({A: receipts_of(), B: receipts_of()}) == {WORDS: 8}


def test_a_receipt_for_some_slots_is_not_enough() -> None:
    assert missing_after({A: receipts_of(receipt(LOW))}) == {WORDS: 4}
    given = {A: receipts_of(receipt(LOW)), B: receipts_of(receipt(range(4, 7)))}
    assert missing_after(given) == {WORDS: 1}


def test_a_receipt_for_one_job_does_not_count_for_another() -> None:
    given = {A: receipts_of(receipt(LOW), receipt(LOW, PAIRS)), B: receipts_of(receipt(HIGH))}

    assert missing_after(given, jobs=JOBS) == {PAIRS: 4}


def test_only_the_word_of_the_present_owner_counts() -> None:
    assert missing_after({A: receipts_of(receipt(range(SLOTS)))}) == {WORDS: 4}
    assert missing_after({A: receipts_of(receipt(HIGH)), B: receipts_of(receipt(LOW))}) == {
        WORDS: 8
    }
    assert missing_after({UNKNOWN: receipts_of(receipt(range(SLOTS)))}) == {WORDS: 8}


def test_a_copy_is_no_receipt() -> None:
    copies = receipts_of(copies=(copy(range(SLOTS)),))

    assert missing_after({A: copies, B: copies}) == {WORDS: 8}


def test_the_word_of_a_former_owner_does_not_replace_that_of_the_present() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)

    for node in (A, B):
        ledger.receive(node, receipts_of(receipt(LOW), receipt(HIGH)))

    assert ledger.missing() == {}


def test_a_slot_that_changed_owner_needs_a_new_receipt() -> None:
    roster = roster_of(A, B, replicas=1)
    ledger = ledger_of(roster=roster)
    ledger.admit(0, 0)
    give(ledger)
    assert ledger.missing() == {}

    roster.remove([A])

    assert ledger.missing() == {WORDS: 4}
    ledger.receive(B, receipts_of(receipt(LOW), receipt(HIGH)))
    assert ledger.missing() == {}


@pytest.mark.parametrize(("epoch", "try_"), [(0, 0), (0, 2), (1, 1), (-1, 1)])
def test_receipts_of_another_epoch_or_try_do_not_count(epoch: int, try_: int) -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    ledger.retry()

    ledger.receive(A, receipts_of(receipt(LOW, epoch=epoch, try_=try_)))

    assert ledger.missing() == {WORDS: 8} and not ledger.receipts


def test_a_retry_voids_the_receipts_so_far() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger)

    ledger.retry()

    assert ledger.missing() == {WORDS: 8}


def test_receipts_before_any_epoch_do_not_count() -> None:
    ledger = ledger_of()
    ledger.receive(A, receipts_of(receipt(LOW)))

    ledger.admit(0, 0)

    assert ledger.missing() == {WORDS: 8}


def test_repeated_receipts_are_counted_once() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    for _ in range(2):
        ledger.receive(A, receipts_of(receipt(LOW, rows=3)))
        ledger.receive(B, receipts_of(receipt(LOW, rows=100), receipt(HIGH, rows=4)))

    assert sum(found.rows for found in ledger.receipts) == 7


def test_new_receipts_of_a_node_replace_the_old_ones() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger)

    ledger.receive(A, receipts_of())

    assert ledger.missing() == {WORDS: 4}


def test_with_more_partitions_than_nodes_receipts_add_up() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    found: dict[NodeId, list[Receipt]] = {A: [], B: []}

    for slot in range(SLOTS):
        assert ledger.missing() == {WORDS: SLOTS - slot}
        owner = A if slot in LOW else B
        found[owner].append(receipt(range(slot, slot + 1)))
        ledger.receive(owner, receipts_of(*found[owner]))

    assert ledger.missing() == {}


# -- copies ----------------------------------------------------------------------------------


def backed_up(*given: CopyReceipt, reach: int = -1, jobs: dict[int, str] | None = None) -> Ledger:
    """Both owners have frozen all, and B says which copies it has of what A froze."""
    jobs = jobs or {WORDS: "words"}
    ledger = ledger_of(jobs, roster_of(A, B, replicas=1))
    ledger.admit(0, 0)
    of_b = tuple(copy(HIGH, job) for job in jobs)
    ledger.receive(A, receipts_of(*(receipt(LOW, job) for job in jobs), copies=of_b))
    frozen = [receipt(HIGH, job) for job in jobs]
    ledger.receive(B, receipts_of(*frozen, copies=given, reach=reach))
    return ledger


def in_sync_after_commit(ledger: Ledger, node: NodeId) -> list[int]:
    ledger.commit(ledger.prepare())
    slots: list[int] = np.flatnonzero(ledger._roster.in_sync(node)).tolist()
    return slots


def test_a_backup_with_a_copy_of_what_was_frozen_is_in_sync_after_the_commit() -> None:
    ledger = backed_up(copy(LOW))

    assert ledger.lagging() == []
    assert in_sync_after_commit(ledger, B) == list(range(SLOTS))
    assert ledger._roster.copy_counts().tolist() == [2] * SLOTS


def test_a_backup_without_a_copy_lags_and_is_not_in_sync_after_the_commit() -> None:
    ledger = backed_up(copy(range(0, 3)))

    assert ledger.lagging() == [(A, B)]
    assert ledger.in_sync()[:, 1].tolist()[:4] == [True] * 3 + [False]
    assert in_sync_after_commit(ledger, B) == [0, 1, 2, *HIGH]


def test_a_copy_with_another_digest_does_not_count() -> None:
    ledger = backed_up(copy(LOW, digest="of a lost attempt"))

    assert ledger.lagging() == [(A, B)]
    assert in_sync_after_commit(ledger, B) == list(HIGH)


def test_a_backup_needs_a_copy_of_every_job() -> None:
    ledger = backed_up(copy(LOW, WORDS), copy(range(1, 4), PAIRS), jobs=JOBS)

    assert in_sync_after_commit(ledger, B) == [1, 2, 3, *HIGH]


def test_a_backup_whose_state_has_a_gap_is_not_in_sync_whatever_copies_it_has() -> None:
    ledger = backed_up(copy(LOW), reach=-2)

    assert in_sync_after_commit(ledger, B) == list(HIGH)  # its own are its own


def test_a_backup_that_was_not_in_sync_before_does_not_lag() -> None:
    # Nothing that owners send again could help it: it waits for a snapshot.
    ledger = backed_up()
    assert in_sync_after_commit(ledger, B) == list(HIGH)
    ledger.admit(1, 0)
    ledger.receive(A, receipts_of(receipt(LOW, epoch=1), copies=(copy(HIGH),), reach=0))
    ledger.receive(B, receipts_of(receipt(HIGH, epoch=1), reach=-1))

    assert ledger.lagging() == []


@pytest.mark.parametrize(
    "error",
    [
        EpochOrderError(3, 1),
        TypeConflictError("words", "keys", "x"),
        MissingReceiptsError(1, {"words": 3}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))

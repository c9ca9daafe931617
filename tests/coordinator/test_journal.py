"""The journal: manifests written, and what is known of the store after a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from millstream.checkpoints.chain import Chain, CommitUnknownError, SupersededError
from millstream.checkpoints.epoch_contents import Contents, EpochIncompleteError, contents_of
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import DeltaRecord
from millstream.checkpoints.records import DATA
from millstream.coordinator.journal import CheckpointResult, Journal
from millstream.stores.store import StoreUnavailableError
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.epoch_record import JobTypes
from millstream.wire.receipts import Receipt, StoredRecord
from tests.checkpoints.memory_store import MemoryStore
from tests.coordinator.journals import (
    COUNT,
    LEFT,
    RIGHT,
    SUM,
    base,
    claimed,
    commit,
    delta,
    journal_of,
    record,
    staged,
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def epochs(journal: Journal) -> list[int]:
    return [found.epoch for found in journal.lineage.manifests]


# -- committing --------------------------------------------------------------------------------


def test_before_the_first_commit_there_is_nothing(store: MemoryStore) -> None:
    journal = journal_of(store)

    assert (journal.incarnation, journal.published) == (1, -1)
    assert journal.committed == NOTHING_COMMITTED and journal.unpublished == []
    assert journal.types() == {}
    with pytest.raises(EpochIncompleteError):
        journal.restore_plan()


def test_a_manifest_describes_an_epoch_completely(store: MemoryStore) -> None:
    journal = journal_of(store)
    types = {COUNT: JobTypes(pa.string(), pa.schema([("n", pa.int64())])), SUM: JobTypes()}
    journal.commit(record(0, try_=2), [delta(0)], [], types, [staged(0)])

    found = Chain(store).read().newest
    assert found is not None and found == journal.lineage.newest
    assert (found.epoch, found.try_, found.parent, found.time) == (0, 2, -1, 1000)
    assert found.deltas == (delta(0),) and found.staged == (staged(0),)
    assert found.published == -1 and found.incarnation == 1
    count, total = found.workflow.jobs
    assert (count.id, count.key_type) == ("count@1", pa.string()) and total.key_type is None
    assert journal.committed == Commit(0, 2)


def test_each_manifest_builds_on_the_last_also_over_several_epochs(store: MemoryStore) -> None:
    journal = journal_of(store)
    commit(journal, 0)
    journal.commit(record(4), [delta(4, since=0)], [], {}, [staged(e) for e in range(1, 5)])

    found = Chain(store).read()
    assert [(one.parent, one.epoch) for one in found.manifests] == [(-1, 0), (0, 4)]
    assert [one.epoch for one in journal.unpublished] == [0, 1, 2, 3, 4]


def test_bases_are_named_while_they_count_and_not_before_they_do(store: MemoryStore) -> None:
    journal = journal_of(store)
    commit(journal, 0)
    early, wide = base(0, LEFT), base(1, RIGHT, reaches=2)
    commit(journal, 1, early, wide)
    assert named(journal) == {early.key}
    commit(journal, 2, wide)
    assert named(journal) == {early.key, wide.key}
    commit(journal, 3, base(2))
    assert named(journal) == {base(2).key}


def named(journal: Journal) -> set[str]:
    assert journal.lineage.newest is not None
    return {found.key for found in journal.lineage.newest.bases}


def test_a_superseded_journal_does_not_change(store: MemoryStore) -> None:
    journal = journal_of(store)
    commit(journal, 0)
    claimed(store)

    with pytest.raises(SupersededError):
        commit(journal, 1)
    assert journal.committed == Commit(0, 0) and epochs(journal) == [0]
    with pytest.raises(SupersededError):
        journal.require_claim()


def test_a_commit_with_unknown_outcome_does_not_count(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_of(store)

    def away(key: str, value: bytes) -> bool:
        raise StoreUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "put_if_absent", away)
        with pytest.raises(CommitUnknownError):
            commit(journal, 0)
    assert journal.committed == NOTHING_COMMITTED
    commit(journal, 0)


def test_receipts_become_deltas_unless_the_unit_is_empty(store: MemoryStore) -> None:
    journal = journal_of(store)
    plain = Receipt(SUM, 4, 0, LEFT, "digest", 1)
    receipts = [
        replace(plain, stored=StoredRecord("data/x", 12)),
        replace(plain, stored=StoredRecord("", 0)),
        plain,
        replace(plain, job=COUNT, slots=RIGHT, stored=StoredRecord("data/y", 3)),
    ]

    assert journal.deltas_of(receipts) == [
        DeltaRecord("data/x", "sum@1", LEFT, 3, 4, 12),
        DeltaRecord("data/y", "count@1", RIGHT, 3, 4, 3),
    ]


def test_an_error_of_on_checkpoint_does_not_fail_the_commit(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[CheckpointResult] = []

    def on_result(result: CheckpointResult) -> None:
        results.append(result)
        raise ValueError("no good")

    journal = journal_of(store, on_result=on_result)
    commit(journal, 0)
    commit(journal, 1)
    assert not results  # not while locks are held

    journal.report_results()
    assert [(one.epoch, one.parent, one.records, one.bytes) for one in results] == [
        (0, -1, 1, 10),
        (1, 0, 1, 10),
    ]
    assert "on_checkpoint failed" in caplog.text and journal.committed.epoch == 1


# -- after a restart -----------------------------------------------------------------------------


def test_outputs_that_may_be_unpublished_are_known_after_a_restart(store: MemoryStore) -> None:
    journal = journal_of(store)
    commit(journal, 0)
    journal.published = 0
    commit(journal, 1)
    journal.published = 1  # and this is nowhere written yet

    again = journal_of(store)
    assert again.published == 0 and again.unpublished == [staged(1)]
    again.published = 1
    assert again.unpublished == []
    commit(again, 2)
    assert journal_of(store).unpublished == [staged(2, incarnation=2)]


def test_unpublished_outputs_survive_garbage_collection(store: MemoryStore) -> None:
    journal = journal_of(store, retain=1)
    for epoch in range(4):
        commit(journal, epoch, *([base(epoch - 1)] if epoch else []))
    journal.collect_garbage()

    assert [one.epoch for one in journal_of(store).unpublished] == [0, 1, 2, 3]


def test_after_a_rewind_only_earlier_epochs_count(store: MemoryStore) -> None:
    journal = journal_of(store)
    for epoch in range(4):
        commit(journal, epoch)
        journal.published = epoch

    again = journal_of(store, after=1)
    assert again.committed == Commit(1, 0) and again.published == 0
    assert again.unpublished == [staged(1)]


def test_types_follow_the_ids_of_jobs(store: MemoryStore) -> None:
    journal = journal_of(store)
    output = pa.schema([("n", pa.int64())])
    commit(journal, 0, types={COUNT: JobTypes(pa.string(), output), SUM: JobTypes(pa.int64())})
    lineage = claimed(store)
    assert lineage.newest is not None
    count, total = lineage.newest.workflow.jobs
    workflow = replace(
        lineage.newest.workflow,
        jobs=(replace(count, name="words"), replace(total, id="sum@2")),
    )

    again = Journal(store, lineage, workflow, {"words": 8, "sum": 9}, 3)
    assert again.types() == {8: JobTypes(pa.string(), output)}
    assert again.restore_plan().jobs == {"count@1": 8, "sum@2": 9}
    assert again.restore_plan().key_types == {8: pa.string()}


def test_a_restore_plan_names_the_records_of_the_newest_commit(store: MemoryStore) -> None:
    journal = journal_of(store)
    for epoch in range(3):
        commit(journal, epoch, *([base(1)] if epoch == 2 else []))

    found = journal_of(store).restore_plan()
    assert (found.incarnation, found.committed) == (2, Commit(2, 0))
    assert found.bases == (base(1),) and found.deltas == (delta(2),)


def test_a_restore_plan_is_of_one_epoch_if_another_is_committed_meanwhile(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_of(store)
    commit(journal, 0)

    def meanwhile(lineage: Lineage, epoch: int) -> Contents:
        found = contents_of(lineage, epoch)
        commit(journal, 1)
        return found

    monkeypatch.setattr("millstream.coordinator.journal.contents_of", meanwhile)
    found = journal.restore_plan()
    assert found.committed.epoch == max(one.through for one in found.deltas) == 0


# -- garbage -------------------------------------------------------------------------------------


def filled(store: MemoryStore, retain: int = 2, number: int = 6, **options: int) -> Journal:
    """Epochs with a base each."""
    journal = journal_of(store, retain=retain, **options)
    for epoch in range(number):
        commit(journal, epoch, *([base(epoch - 1)] if epoch else []))
        journal.published = epoch
    return journal


@pytest.mark.parametrize("retain", [1, 2])
def test_garbage_of_retained_epochs_is_deleted_while_epochs_are_committed(
    store: MemoryStore, retain: int
) -> None:
    journal = filled(store, retain)
    journal.collect_garbage()

    assert [one.epoch for one in Chain(store).read().manifests] == list(range(6 - retain, 6))
    assert {key.split("/")[1] for key in store.scan("data/")} == {
        f"{epoch:012d}" for epoch in range(5 - retain, 6)
    }
    commit(journal, 6, base(5))
    journal.collect_garbage()
    assert epochs(journal)[-1] == 6 and Chain(store).read().epoch == 6
    assert set(journal.restore_plan().deltas) == {delta(6)}
    missing = [key for key in contents_keys(journal) if key not in store.scan("data/")]
    assert missing == []
    assert journal_of(store).restore_plan().deltas == journal.restore_plan().deltas


def contents_keys(journal: Journal) -> list[str]:
    found = journal.restore_plan()
    return [*(one.key for one in found.bases), *(one.key for one in found.deltas)]


def test_garbage_is_collected_every_few_epochs(store: MemoryStore) -> None:
    journal = journal_of(store, retain=1, garbage_every=3)
    due = []
    for epoch in range(6):
        commit(journal, epoch, *([base(epoch - 1)] if epoch else []))
        due.append(journal.is_garbage_due)
        if journal.is_garbage_due:
            journal.collect_garbage()
    assert due == [False, False, True, False, False, True]
    assert not journal_of(store, garbage_every=3).is_garbage_due


def test_garbage_collection_ignores_an_unavailable_store(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = filled(store, garbage_every=1)

    def unavailable(prefix: str = "") -> list[str]:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(store, "scan", unavailable)
    with caplog.at_level(logging.WARNING, "millstream"):
        journal.collect_garbage()
    assert "garbage collection failed" in caplog.text and not journal._is_collecting


def test_a_superseded_driver_deletes_nothing_that_its_successor_may_need(
    store: MemoryStore,
) -> None:
    journal = filled(store, retain=1)
    again = journal_of(store, after=1)

    journal.collect_garbage()

    assert [key for key in contents_keys(again) if key not in store.scan("data/")] == []
    assert journal_of(store).committed.epoch == 1


@dataclass
class _Meanwhile(MemoryStore):
    """Lets something happen while records are listed, and once more while links are."""

    then: Callable[[], object] | None = None

    def scan(self, prefix: str = "") -> list[str]:
        found = super().scan(prefix)
        then, self.then = self.then, None
        if then is not None:
            then()
            self.then = then if prefix == DATA else None
        return found


def test_garbage_is_collected_despite_concurrent_commits() -> None:
    store = _Meanwhile()
    journal = filled(store, retain=2)
    store.then = lambda: commit(journal, journal.committed.epoch + 1)

    journal.collect_garbage()

    assert journal.committed.epoch == 7
    assert epochs(journal_of(store)) == [4, 5, 6, 7]
    assert [key for key in contents_keys(journal) if key not in store.scan(DATA)] == []


def test_a_commit_of_this_driver_is_not_taken_for_a_claim(
    store: MemoryStore,
) -> None:
    journal = filled(store, retain=2)
    newest = journal.lineage.newest
    assert newest is not None
    Chain(store).commit(journal.lineage, replace(newest, epoch=6, parent=5))

    journal.collect_garbage()

    assert epochs(journal_of(store)) == [4, 5, 6]


def test_a_rewind_during_garbage_collection_finds_all_records() -> None:
    store = _Meanwhile()
    journal = filled(store, retain=1)
    commit(journal, 6, base(5))
    rewound: list[Journal] = []

    def rewind() -> None:
        if not rewound:
            rewound.append(journal_of(store, after=1))

    store.then = rewind

    journal.collect_garbage()

    [again] = rewound
    assert [key for key in contents_keys(again) if key not in store.scan(DATA)] == []
    assert journal_of(store).committed.epoch == 1

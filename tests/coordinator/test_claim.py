"""How a run takes hold of its checkpoint: from which epoch it goes on, and against whom."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from millstream.checkpoints.chain import Chain, SupersededError, key_of
from millstream.checkpoints.epoch_contents import EpochIncompleteError
from millstream.checkpoints.evolution import Changes, WorkflowChangedError, changes
from millstream.checkpoints.garbage import garbage, remove
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import (
    BaseRecord,
    DeltaRecord,
    JobMetadata,
    Manifest,
    WorkflowMetadata,
    encode,
)
from millstream.checkpoints.records import DATA, base_key, delta_key
from millstream.coordinator.claim import (
    CheckpointDamagedError,
    Claimed,
    WithdrawalRefusedError,
    claim,
)
from millstream.errors import MillstreamError
from millstream.stores.framing import frame
from millstream.stores.store import CorruptRecordError, Store
from tests.checkpoints.memory_store import MemoryStore
from tests.checkpoints.turns import Turns

SLOTS = 4
ALL = range(SLOTS)
NOTE = WorkflowMetadata("flow", SLOTS, (JobMetadata("count", "stateful", "a function"),), ("in",))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def take(
    store: Store, workflow: WorkflowMetadata = NOTE, meant: Changes | None = None, **o: Any
) -> Claimed:
    options = {"restore_epoch": None, "recovery": "eager", "can_withdraw": True, **o}
    return claim(store, "memory://", workflow, meant or Changes(), **options)


def commit(store: Store, claimed: Claimed, lineage: Lineage | None = None) -> Lineage:
    """Commit the next epoch, with its record."""
    lineage = lineage or claimed.lineage
    epoch, number = lineage.epoch + 1, lineage.incarnation
    id_ = claimed.workflow.jobs[0].id
    key = delta_key(epoch, number, 0, id_, ALL, "node")
    store.put({key: b"delta"})
    newest = lineage.newest
    return Chain(store).commit(
        lineage,
        Manifest(
            position=0,
            incarnation=number,
            epoch=epoch,
            try_=0,
            parent=epoch - 1,
            time=0,
            workflow=claimed.workflow,
            deltas=(DeltaRecord(key, id_, ALL, epoch - 1, epoch, 5),),
            bases=() if newest is None else newest.bases,
            staged=(),
            published=epoch - 1,
        ),
    )


def run_of(store: Store, epochs: int, **options: Any) -> tuple[Claimed, Lineage]:
    """A run that commits some epochs."""
    claimed = take(store, **options)
    lineage = claimed.lineage
    for _ in range(epochs):
        lineage = commit(store, claimed, lineage)
    return claimed, lineage


def delta_of(store: Store, epoch: int) -> str:
    [key] = store.scan(f"data/{epoch:012d}/")
    return key


# -- where a run begins ----------------------------------------------------------------------


def test_an_empty_store_is_begun(store: MemoryStore) -> None:
    claimed = take(store)

    assert (claimed.after, claimed.by, claimed.withdrawn) == (-1, None, False)
    assert claimed.lineage.incarnation == 1
    assert [job.id for job in claimed.workflow.jobs] == ["count@1"]
    found = claimed.lineage.claim
    assert found is not None and (found.host, found.pid) == (socket.gethostname(), os.getpid())


def test_a_run_resumes_from_the_newest_epoch(store: MemoryStore) -> None:
    run_of(store, 3)
    claimed = take(store)

    assert (claimed.after, claimed.by, claimed.withdrawn) == (2, 1, False)
    assert claimed.lineage.incarnation == 2 and claimed.lineage.epoch == 2
    assert claimed.workflow.jobs[0].id == "count@1"


def test_a_run_that_committed_nothing_leaves_no_trace_but_its_number(store: MemoryStore) -> None:
    run_of(store, 2)
    take(store)
    claimed = take(store)

    assert (claimed.after, claimed.by, claimed.lineage.incarnation) == (1, 1, 3)


def test_a_claim_names_the_incarnation_that_committed_the_epoch(store: MemoryStore) -> None:
    run_of(store, 2)
    run_of(store, 1)

    assert take(store, restore_epoch=1).by == 1 and take(store).by == 1


def test_a_workflow_that_changed_claims_nothing(store: MemoryStore) -> None:
    run_of(store, 1)
    links = store.scan("chain/")

    with pytest.raises(WorkflowChangedError):
        take(store, replace(NOTE, slots=8))
    assert store.scan("chain/") == links


def test_changes_given_at_the_first_start_are_recorded(store: MemoryStore) -> None:
    meant = changes(added=["count"])
    claimed = take(store, meant=meant)
    commit(store, claimed)

    assert take(store, meant=meant).workflow.jobs[0].id == "count@1"


# -- damage ----------------------------------------------------------------------------------


def flip(store: MemoryStore, key: str) -> None:
    store.flip(key)


def drop(store: MemoryStore, key: str) -> None:
    store.delete([key])


@pytest.mark.parametrize("spoil", [flip, drop])
def test_a_damaged_record_makes_a_run_resume_from_the_newest_complete_epoch(
    store: MemoryStore, spoil: Callable[[MemoryStore, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    run_of(store, 4)
    spoil(store, delta_of(store, 2))

    with caplog.at_level(logging.WARNING, "millstream"):
        claimed = take(store)

    assert (claimed.after, claimed.withdrawn, claimed.by) == (1, True, 1)
    assert claimed.lineage.epoch == 1
    assert "newest epoch 3 cannot be restored" in caplog.text
    assert delta_of(store, 0) and "resuming from epoch 1" in caplog.text


def test_lazy_recovery_checks_that_records_exist_without_reading_them(
    store: MemoryStore,
) -> None:
    run_of(store, 3)
    flip(store, delta_of(store, 2))
    assert take(store, recovery="lazy").after == 2

    drop(store, delta_of(store, 2))
    assert take(store, recovery="lazy").after == 1


def test_a_lost_manifest_in_the_middle_makes_a_run_go_back_before_it(store: MemoryStore) -> None:
    run_of(store, 4)
    drop(store, key_of(3))

    claimed = take(store)
    assert (claimed.after, claimed.withdrawn) == (1, True)


def test_a_base_bridges_a_lost_manifest(store: MemoryStore) -> None:
    claimed, lineage = run_of(store, 2)
    newest = lineage.newest
    assert newest is not None
    key = base_key(1, 1, ALL, "node", 1)
    store.put({key: b"base"})
    based = replace(lineage, manifests=(replace(newest, bases=(BaseRecord(key, ALL, 1, 1, 4),)),))
    commit(store, claimed, based)
    drop(store, key_of(1))

    assert take(store).after == 2
    flip(store, key)
    with pytest.raises(CheckpointDamagedError):
        take(store)


@pytest.mark.parametrize("spoil", [flip, drop])
def test_a_rewind_is_refused_for_a_sink_that_cannot_withdraw(
    store: MemoryStore, spoil: Callable[[MemoryStore, str], None]
) -> None:
    run_of(store, 3)
    spoil(store, delta_of(store, 2))
    links = store.scan("chain/")

    with pytest.raises(
        WithdrawalRefusedError, match=r"epoch 2 is damaged .* restore_epoch=1"
    ) as caught:
        take(store, can_withdraw=False)
    assert (caught.value.newest, caught.value.after) == (2, 1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert store.scan("chain/") == links
    assert take(store, can_withdraw=False, restore_epoch=1).after == 1


def test_without_a_complete_epoch_nothing_is_claimed(store: MemoryStore) -> None:
    run_of(store, 3)
    flip(store, delta_of(store, 0))
    links = store.scan("chain/")

    with pytest.raises(
        CheckpointDamagedError, match=r"memory:// is complete: .*checkpoint verify"
    ) as caught:
        take(store)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert store.scan("chain/") == links


def test_a_damaged_last_link_may_have_committed_more(store: MemoryStore) -> None:
    run_of(store, 3)
    flip(store, key_of(3))

    with pytest.raises(
        WithdrawalRefusedError, match=r"epoch 2 is damaged .* epoch 1 is the newest"
    ):
        take(store, can_withdraw=False)
    claimed = take(store)
    assert (claimed.after, claimed.withdrawn) == (1, True)
    # From then on it says nothing any more.
    assert take(store, can_withdraw=False).withdrawn is False


def test_an_epoch_that_a_claim_went_on_from_is_missed(store: MemoryStore) -> None:
    run_of(store, 3)
    take(store)
    flip(store, key_of(3))

    with pytest.raises(WithdrawalRefusedError):
        take(store, can_withdraw=False)


def test_the_number_of_a_claim_that_cannot_be_read_is_not_used_again(store: MemoryStore) -> None:
    _, first = run_of(store, 1)
    unread = take(store)
    flip(store, key_of(first.position))

    assert take(store).lineage.incarnation > unread.lineage.incarnation


def test_a_chain_without_a_readable_manifest_is_not_restarted(store: MemoryStore) -> None:
    run_of(store, 2)
    for position in (1, 2):
        flip(store, key_of(position))

    with pytest.raises(CheckpointDamagedError):
        take(store)


def test_a_chain_of_a_newer_version_is_not_restarted(store: MemoryStore) -> None:
    store.put_if_absent(key_of(0), b'{"format":99,"kind":"claim"}')

    with pytest.raises(CheckpointDamagedError, match="has format 99"):
        take(store)


# -- going back in time ------------------------------------------------------------------------


def test_a_run_rewinds_to_the_requested_epoch(store: MemoryStore) -> None:
    run_of(store, 4)
    claimed, lineage = run_of(store, 1, restore_epoch=1)

    assert (claimed.after, claimed.by, claimed.withdrawn) == (1, 1, True)
    assert [found.epoch for found in lineage.manifests] == [0, 1, 2]
    assert take(store).by == 2


@pytest.mark.parametrize("epoch", [4, 9])
def test_an_epoch_that_there_is_not_is_refused(store: MemoryStore, epoch: int) -> None:
    run_of(store, 4)

    with pytest.raises(EpochIncompleteError, match=f"epoch {epoch} .* from 0 to 3"):
        take(store, restore_epoch=epoch)


def test_a_requested_epoch_that_is_damaged_is_refused(store: MemoryStore) -> None:
    run_of(store, 4)
    flip(store, delta_of(store, 1))

    with pytest.raises(CorruptRecordError):
        take(store, restore_epoch=2)
    assert take(store, restore_epoch=0).after == 0


def test_a_discarded_epoch_cannot_be_requested(store: MemoryStore) -> None:
    run_of(store, 4)
    run_of(store, 1, restore_epoch=0)

    with pytest.raises(EpochIncompleteError):
        take(store, restore_epoch=3)


class GoneError(MillstreamError):
    """Spark's logs do not reach an epoch."""


def logged_since(oldest: int) -> Callable[[Lineage, int], None]:
    """As if Spark's offset log began with an epoch."""

    def require(seen: Lineage, epoch: int) -> None:
        if epoch < oldest:
            raise GoneError(epoch)

    return require


def test_an_epoch_of_which_spark_has_no_notes_is_refused_before_anything_is_taken_back(
    store: MemoryStore,
) -> None:
    run_of(store, 12)
    links = store.scan("chain/")

    with pytest.raises(GoneError):
        take(store, restore_epoch=4, require_logs=logged_since(8))
    assert store.scan("chain/") == links
    assert take(store, require_logs=logged_since(8)).after == 11


def test_a_fresh_checkpoint_needs_no_notes(store: MemoryStore) -> None:
    assert take(store, require_logs=logged_since(0)).after == -1


def test_notes_that_go_while_another_driver_commits_are_looked_for_again(
    store: MemoryStore,
) -> None:
    claimed, lineage = run_of(store, 2)
    asked = []

    def require(seen: Lineage, epoch: int) -> None:
        asked.append(epoch)
        if len(asked) == 1:
            commit(store, claimed, lineage)
            raise GoneError(epoch)

    assert take(store, require_logs=require).after == 2
    assert asked == [1, 2]


# -- rewinds during garbage collection -----------------------------------------------------------

FLEETING = replace(NOTE, jobs=(replace(NOTE.jobs[0], durable=False),))


@dataclass
class _Overtaken(MemoryStore):
    """Lets something happen right after a link was put."""

    then: Callable[[], None] | None = None

    def put_if_absent(self, key: str, value: bytes) -> bool:
        won = super().put_if_absent(key, value)
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return won


def test_a_claim_notices_that_its_epoch_was_deleted(store: MemoryStore) -> None:
    _, lineage = run_of(store, 12, workflow=FLEETING)
    decided = garbage(lineage, store.scan(DATA), 3)
    assert take(store, FLEETING, restore_epoch=4).after == 4
    remove(store, decided)
    links = store.scan("chain/")

    for wanted in (None, 4):
        with pytest.raises(
            CheckpointDamagedError, match=r"epoch 4, from which incarnation 2 resumes, is missing"
        ):
            take(store, FLEETING, restore_epoch=wanted, can_withdraw=False)
    assert store.scan("chain/") == links


def test_an_epoch_deleted_during_the_claim_is_not_resumed_from() -> None:
    store = _Overtaken()
    _, lineage = run_of(store, 12, workflow=FLEETING)
    decided = garbage(lineage, store.scan(DATA), 3)
    store.then = lambda: remove(store, decided)

    with pytest.raises(EpochIncompleteError, match="from 9 to 11"):
        take(store, FLEETING, restore_epoch=4)
    claimed = take(store, FLEETING)
    assert (claimed.after, claimed.withdrawn) == (11, False)


@pytest.mark.parametrize("recovery", ["eager", "lazy"])
def test_records_that_were_deleted_while_it_was_claimed_are_missed_too(recovery: str) -> None:
    store = _Overtaken()
    run_of(store, 4)
    links = store.scan("chain/")
    store.then = lambda: store.delete([delta_of(store, 0)])

    with pytest.raises(CorruptRecordError, match="the record is missing"):
        take(store, restore_epoch=2, recovery=recovery)
    assert store.scan("chain/") == links


# -- several at once -----------------------------------------------------------------------------


def schedules(first: str, second: str, longest: int) -> Iterable[list[str]]:
    """One makes so many calls to the store, then the other; then both finish."""
    for begun in range(longest):
        for other in range(1, longest):
            yield [first] * begun + [second] * other


def interleave(
    store: Store, schedule: list[str], programs: Mapping[str, Callable[[Store], None]]
) -> None:
    turns = Turns(store, programs)
    for name in schedule:
        if name in turns.waiting:
            turns.take(name)
    turns.finish()


@pytest.mark.parametrize("recovery", ["eager", "lazy"])
def test_of_two_claimants_interleaved_anyhow_the_later_one_holds_it(recovery: str) -> None:
    for schedule in schedules("a", "b", 8):
        store = MemoryStore()
        run_of(store, 2)
        held: list[Claimed] = []

        def start(shared: Store, held: list[Claimed] = held) -> None:
            held.append(take(shared, recovery=recovery))

        interleave(store, schedule, {"a": start, "b": start})

        first, last = sorted(held, key=lambda one: one.lineage.position)
        assert first.lineage.incarnation < last.lineage.incarnation
        assert {one.after for one in held} == {1}
        with pytest.raises(SupersededError):
            commit(store, first)
        commit(store, last)


@dataclass
class Driver:
    """A run that commits until it is refused, and records the answers."""

    claimed: Claimed
    lineage: Lineage

    def drive(self, store: Store) -> None:
        try:
            for _ in range(3):
                self.lineage = commit(store, self.claimed, self.lineage)
        except SupersededError:
            return


def test_a_concurrent_commit_is_seen_by_the_claim_or_refused() -> None:
    for schedule in schedules("claimant", "driver", 10):
        store = MemoryStore()
        driver = Driver(*run_of(store, 2))
        held: list[Claimed] = []

        def start(shared: Store, held: list[Claimed] = held) -> None:
            held.append(take(shared))

        interleave(store, schedule, {"driver": driver.drive, "claimant": start})

        [claimed] = held
        assert claimed.after == driver.lineage.epoch
        with pytest.raises(SupersededError):
            commit(store, driver.claimed, driver.lineage)
        commit(store, claimed)


# -- while another driver still runs -----------------------------------------------------------


@pytest.mark.parametrize("recovery", ["eager", "lazy"])
@pytest.mark.parametrize("can_withdraw", [True, False])
@pytest.mark.parametrize("epochs", [1, 2])
def test_concurrent_garbage_collection_is_not_taken_for_damage(
    recovery: str, can_withdraw: bool, epochs: int
) -> None:
    store = _Meanwhile()
    claimed, lineage = run_of(store, epochs)
    first, next_ = delta_of(store, 0), lineage.position

    def go_on() -> None:
        newest = commit(store, claimed, lineage)
        held = base_key(newest.epoch, newest.incarnation, ALL, "node", 1)
        store.put({held: b"base"})
        manifest = newest.newest
        assert manifest is not None
        store.delete([first])
        store.held[key_of(next_)] = frame(
            key_of(next_),
            encode(
                replace(manifest, bases=(BaseRecord(held, ALL, manifest.epoch, manifest.epoch, 4),))
            ),
        )

    store.then = go_on
    taken = take(store, recovery=recovery, can_withdraw=can_withdraw)

    assert (taken.after, taken.withdrawn) == (lineage.epoch + 1, False)


@dataclass
class _Meanwhile(MemoryStore):
    """Lets something happen right after the chain was read."""

    then: Callable[[], None] | None = None

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(keys)
        found = super().get(wanted)
        if self.then is not None and wanted and wanted[0].startswith("chain/"):
            then, self.then = self.then, None
            then()
        return found

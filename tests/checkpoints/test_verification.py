from __future__ import annotations

import pytest

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.garbage import garbage, remove
from millstream.checkpoints.manifest import Manifest
from millstream.checkpoints.records import DATA, delta_key
from millstream.checkpoints.stored_state import NotInCheckpointError
from millstream.checkpoints.verification import HalfWritten, check, check_epoch
from tests.checkpoints.memory_store import MemoryStore
from tests.checkpoints.written import Writer
from tests.work.running import SLOTS

PAIRS = [(f"key{number}", 1) for number in range(40)]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def run(store: MemoryStore) -> Writer:
    """Five epochs; the state through 1 is a base that counts from epoch 2 on."""
    run = Writer(store)
    for epoch in range(5):
        run.commit(PAIRS)
        if epoch == 1:
            run.base()
    return run


def link(position: int) -> str:
    return f"chain/{position:012d}"


def statuses(store: MemoryStore) -> list[str]:
    return [epoch.status for epoch in check(store).epochs]


def manifest(run: Writer, epoch: int) -> Manifest:
    found = run.lineage.manifest(epoch)
    assert found is not None
    return found


def test_an_intact_checkpoint_has_no_findings(run: Writer, store: MemoryStore) -> None:
    found = check(store)

    assert found.ok and found.newest_complete == 4
    assert [epoch.status for epoch in found.epochs] == ["complete"] * 5
    assert (found.chain, found.records, found.elsewhere, found.half_written) == ((), (), (), ())


def test_a_damaged_record_spoils_the_epochs_that_need_it(run: Writer, store: MemoryStore) -> None:
    key = manifest(run, 3).deltas[0].key
    store.flip(key)

    found = check(store)

    assert not found.ok and found.newest_complete == 2
    assert [damage.key for damage in found.records] == [key]
    assert found.records[0].place == "memory" and "checksum" in found.records[0].why
    assert statuses(store) == ["complete", "complete", "complete", "damaged", "damaged"]
    assert found.elsewhere == ()


def test_a_missing_record_is_damage(run: Writer, store: MemoryStore) -> None:
    store.delete([manifest(run, 0).deltas[0].key])

    assert statuses(store) == ["damaged", "damaged", "complete", "complete", "complete"]
    assert not check(store).ok


@pytest.mark.parametrize("value", [b"", b"something else"])
def test_a_record_that_is_not_what_was_promised_is_damage(
    run: Writer, store: MemoryStore, value: bytes
) -> None:
    store.put({run.bases[0].key: value})

    assert statuses(store) == ["complete", "complete", "damaged", "damaged", "damaged"]


def test_a_base_of_the_right_length_must_be_one(run: Writer, store: MemoryStore) -> None:
    store.put({run.bases[0].key: b"\x00" * run.bases[0].bytes})

    assert "not a base record" in check(store).records[0].why


@pytest.mark.parametrize("harm", ["flip", "delete"])
def test_a_damaged_or_missing_manifest_breaks_what_follows(
    run: Writer, store: MemoryStore, harm: str
) -> None:
    store.flip(link(4)) if harm == "flip" else store.delete([link(4)])

    found = check(store)

    assert not found.ok and found.newest_complete == 2
    assert [damage.key for damage in found.chain] == [link(4)]
    assert [(epoch.epoch, epoch.status) for epoch in found.epochs] == [
        (0, "complete"),
        (1, "complete"),
        (2, "complete"),
        (4, "damaged"),
    ]
    assert "manifest of epoch 3" in found.epochs[-1].problems[0]


def test_a_damaged_newest_manifest_is_damage(run: Writer, store: MemoryStore) -> None:
    store.flip(link(5))

    assert not check(store).ok
    assert check(store).newest_complete == 3


def test_a_half_written_epoch_is_reported_and_harmless(run: Writer, store: MemoryStore) -> None:
    store.put({delta_key(5, 1, 0, "1.count", range(SLOTS), node): b"x" for node in "ab"})
    store.put({delta_key(3, 1, 7, "1.count", range(SLOTS), "a"): b"of a try that was voided"})

    found = check(store)

    assert found.half_written == (HalfWritten(5, 1, 2),)
    assert found.ok and found.leftovers == 1


def test_withdrawn_epochs_leave_harmless_records(run: Writer, store: MemoryStore) -> None:
    run.claim(after=2)
    store.flip(store.scan(DATA)[-1])

    found = check(store)

    assert found.ok and found.newest_complete == 2
    assert found.leftovers == 4
    assert len(found.elsewhere) == 1
    assert found.half_written == ()


def test_epochs_that_were_dropped_to_make_room_are_no_damage(store: MemoryStore) -> None:
    """They stay in the chain as long as younger ones build upon them."""
    run = Writer(store)
    run.commit(PAIRS)
    run.commit(PAIRS)
    late = run.base()
    run.bases = ()
    run.commit(PAIRS)
    run.bases = (late,)
    run.commit(PAIRS)

    remove(store, garbage(Chain(store).read(), store.scan(DATA), retain=1))

    found = check(store)
    assert [(epoch.epoch, epoch.status) for epoch in found.epochs] == [
        (2, "dropped"),
        (3, "complete"),
    ]
    assert found.ok


def test_with_nothing_complete_nothing_counts_as_dropped(run: Writer, store: MemoryStore) -> None:
    remove(store, garbage(Chain(store).read(), store.scan(DATA), retain=1))
    store.delete([run.bases[0].key])

    assert not check(store).ok
    assert check(store).newest_complete is None


def test_damage_of_an_old_epoch_is_not_mistaken_for_garbage_collection(
    run: Writer, store: MemoryStore
) -> None:
    remove(store, garbage(Chain(store).read(), store.scan(DATA), retain=4))
    store.flip(manifest(run, 0).deltas[0].key)

    assert not check(store).ok


def test_one_epoch_can_be_checked_alone(run: Writer, store: MemoryStore) -> None:
    store.flip(manifest(run, 3).deltas[0].key)

    assert check_epoch(store, run.lineage, 2).ok
    assert not check_epoch(store, run.lineage, 4).ok
    with pytest.raises(NotInCheckpointError, match="no epoch 9"):
        check_epoch(store, run.lineage, 9)


def test_an_empty_checkpoint_has_no_findings(store: MemoryStore) -> None:
    assert check(store).ok
    assert check(store).newest_complete is None

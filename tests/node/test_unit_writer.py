"""Nodes and the store: units before receipts, base records, interval checkpoints, restores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from millstream.checkpoints.manifest import BaseRecord, DeltaRecord
from millstream.checkpoints.records import unpack
from millstream.errors import MillstreamError
from millstream.node import key_batches
from millstream.node.durability.base_writer import BaseOptions
from millstream.node.durability.restore import SlotRestore
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.stores.store import CorruptRecordError, StoreUnavailableError
from millstream.wire.commit import Commit, Seal
from millstream.wire.persistence import IsRestored, NotReadyError, Persist, Persisted, RestorePlan
from millstream.wire.replication import ReplicateNow
from tests.checkpoints.memory_store import MemoryStore
from tests.node.machines import ALL, JOB, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import ID, Scene

SEEN = {key: [value] for key, value in MANY}


class FailingStore(MemoryStore):
    """A store that a test can make fail."""

    def __init__(self) -> None:
        super().__init__()
        self.problem: MillstreamError | None = None
        self.puts = 0

    def put(self, items: Mapping[str, bytes]) -> None:
        self.puts += 1
        if self.problem is not None:
            raise self.problem
        super().put(items)


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


def scene_of(
    world: World, store: FailingStore, placement: Placement | None = None, **more: Any
) -> Scene:
    return Scene(world, placement or placed([ME], other=ALL), store=store, **more)


def deltas_of(scene: Scene, node: NodeId, epoch: int) -> list[DeltaRecord]:
    """What a manifest would name."""
    return [
        DeltaRecord(r.stored.key, ID, r.slots, epoch - 1, epoch, r.stored.bytes)
        for r in scene.receipts(node, epoch).receipts
        if r.stored is not None and r.stored.key
    ]


def commit(scene: Scene, epoch: int, pairs: list[Any], nodes: tuple[NodeId, ...] = (ME,)) -> Any:
    """Run an epoch; return the deltas of its owners."""
    scene.feed(epoch, pairs)
    deltas = [delta for node in nodes for delta in deltas_of(scene, node, epoch)]
    scene.committed = scene.commit_of(epoch)
    for node in scene.machines:
        scene.call(node, Seal(scene.committed))
    return deltas


def plan(epoch: int, deltas: list[DeltaRecord], bases: tuple[BaseRecord, ...] = ()) -> RestorePlan:
    newest = tuple(sorted(bases, key=lambda base: base.through, reverse=True))
    return RestorePlan(2, Commit(epoch, 0), {ID: JOB}, {JOB: pa.string()}, newest, tuple(deltas))


def restarted(
    world: World, store: FailingStore, placement: Placement, restore: RestorePlan
) -> Scene:
    """The nodes of another start, with nothing but the store."""
    scene = Scene(world, placement, store=store)
    scene.plan, scene.committed, scene.incarnation = restore, restore.committed, 2
    for node in scene.machines:
        scene.call(node, scene.assignment())
    scene.rest(1.0)
    return scene


def state_of_all(scene: Scene) -> dict[Any, Any]:
    """What all owners have."""
    found: dict[Any, Any] = {}
    for node, machine in scene.machines.items():
        for share in scene.placement.shares(ALL):
            if share.owner == node:
                items = machine.store.items(JOB, share.slots)
                found.update({key: entries["seen"] for key, entries in items})
    return found


# -- units ---------------------------------------------------------------------------------------


def test_a_receipt_names_the_stored_record(world: World, store: FailingStore) -> None:
    scene = scene_of(world, store)
    scene.feed(0, MANY)

    [receipt] = scene.receipts(ME, 0).receipts
    assert receipt.stored is not None and store.get([receipt.stored.key])
    assert receipt.stored.bytes == len(store.get([receipt.stored.key])[receipt.stored.key])
    assert not scene.receipts(ME, 0).pending


def test_a_unit_without_changes_has_a_receipt_and_no_record(
    world: World, store: FailingStore
) -> None:
    scene = scene_of(world, store)
    scene.feed(0, [])

    [receipt] = scene.receipts(ME, 0).receipts
    assert receipt.stored is not None and receipt.stored.key == "" and store.puts == 0


def test_an_error_of_the_store_fails_the_epoch(world: World, store: FailingStore) -> None:
    scene = scene_of(world, store)
    store.problem = StoreUnavailableError("no answer")
    scene.feed(0, MANY)

    with pytest.raises(StoreUnavailableError, match="no answer"):
        for _ in range(2):
            assert scene.receipts(ME, 0).receipts == ()


def test_a_node_that_takes_over_during_an_epoch_stores_its_copy(
    world: World, store: FailingStore
) -> None:
    scene = scene_of(world, store)
    scene.feed(0, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)
    scene.call(OTHER, scene.assignment())

    [receipt] = scene.receipts(OTHER, 0).receipts
    assert receipt.stored is not None and ".other." in receipt.stored.key
    assert store.get([receipt.stored.key])


def test_a_job_that_is_not_durable_is_replicated_and_not_stored(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(world, store)
    for machine in scene.machines.values():
        monkeypatch.setattr(machine, "_jobs", {JOB: replace(machine._jobs[JOB], durable=False)})
    scene.feed(0, MANY)

    [receipt] = scene.receipts(ME, 0).receipts
    assert receipt.stored is None and store.puts == 0
    assert len(scene.receipts(OTHER, 0).copies) == 1


# -- restoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placement", [placed([THIRD]), placed([OTHER, ME]), placed([ME, OTHER, THIRD])]
)
def test_an_epoch_is_restored_from_deltas_on_any_nodes(
    world: World, store: FailingStore, placement: Placement
) -> None:
    scene = scene_of(world, store)
    deltas = commit(scene, 0, MANY) + commit(scene, 1, [("a", 1)]) + commit(scene, 2, [("a", 2)])

    with World(6) as other:
        again = restarted(other, store, placement, plan(2, deltas))
        assert state_of_all(again) == {**SEEN, "a": [1, 2]}
        assert all(again.call(node, IsRestored()) for node in again.machines)


def test_epochs_follow_a_restore(world: World, store: FailingStore) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)

    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(0, deltas))
        commit(again, 1, [("1", "more")], (THIRD,))
        assert state_of_all(again)["1"] == [1, "more"]


def test_a_feed_before_the_restore_waits_for_its_slots(world: World, store: FailingStore) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)

    with World(6) as other:
        again = Scene(other, placed([THIRD]), store=store)
        again.plan, again.committed, again.incarnation = plan(0, deltas), Commit(0, 0), 2
        machine = again.machines[THIRD]
        machine.assign(again.assignment())  # as if the restore had not been started
        assert machine.unrestored().all()
        assert again.feed(1, [("1", "more")]) == [("1", [1, "more"])]


def test_a_feed_waits_until_the_restore_of_its_slots_has_finished(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)

    with World(6) as other:
        again = Scene(other, placed([THIRD]), store=store)
        again.plan, again.committed, again.incarnation = plan(0, deltas), Commit(0, 0), 2
        load, net = SlotRestore._load_deltas, again.services[THIRD]._net

        def slowly(restore: SlotRestore, deltas: list[DeltaRecord], wanted: SlotMask) -> None:
            load(restore, deltas, wanted)
            net.sleep(5.0)

        monkeypatch.setattr(SlotRestore, "_load_deltas", slowly)
        monkeypatch.setattr("millstream.node.durability.restore._PARTS", 1)
        again.call(THIRD, again.assignment())
        again.rest(1.0)
        commit(again, 1, [("1", "more")], (THIRD,))
        again.rest(200.0)

        assert state_of_all(again)["1"] == [1, "more"]
        assert set(again.machines[THIRD].store.holdings.through.tolist()) == {1}


def test_a_missing_record_fails_the_restore(world: World, store: FailingStore) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)
    store.delete([deltas[0].key])

    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(0, deltas))
        with pytest.raises(CorruptRecordError, match="missing"):
            again.call(THIRD, IsRestored())


# -- bases ---------------------------------------------------------------------------------------


def test_a_base_replaces_the_deltas_before_it(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_batches, "_KEYS_AT_ONCE", 10)
    scene = scene_of(world, store, bases=BaseOptions(epochs=2, record=200))
    older = [*commit(scene, 0, MANY), *commit(scene, 1, [("a", 1)])]
    scene.rest(1.0)
    later = commit(scene, 2, [("a", 2), ("1", "x")])

    bases = scene.receipts(ME, 2).bases
    assert len(bases) > 1 and {base.through for base in bases} == {1}
    assert sorted(slot for base in bases for slot in base.slots) == list(ALL)
    store.delete([delta.key for delta in older])
    with World(6) as other:
        again = restarted(other, store, placed([OTHER, THIRD]), plan(2, later, bases))
        assert state_of_all(again) == {**SEEN, "a": [1, 2], "1": [1, "x"]}


def test_the_newer_of_two_bases_counts(world: World, store: FailingStore) -> None:
    scene = scene_of(world, store, bases=BaseOptions(epochs=1))
    commit(scene, 0, MANY)
    scene.rest(1.0)
    old = scene.receipts(ME, 0).bases
    commit(scene, 1, [("1", "x")])
    scene.rest(1.0)
    new = scene.receipts(ME, 1).bases

    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(1, [], (*old, *new)))
        assert state_of_all(again)["1"] == [1, "x"]


def test_a_base_is_written_when_deltas_are_large(world: World, store: FailingStore) -> None:
    scene = scene_of(world, store, bases=BaseOptions(least=100, epochs=1_000))
    commit(scene, 0, [("a", 1)])
    scene.rest(1.0)
    assert scene.receipts(ME, 0).bases == ()
    commit(scene, 1, [("b", "y" * 200)])
    scene.rest(1.0)
    [base] = scene.receipts(ME, 1).bases
    assert [part.job for part in unpack(store.get([base.key])[base.key])] == [ID]


# -- interval checkpoints ------------------------------------------------------------------------


def persisted(scene: Scene, node: NodeId, since: int) -> Persisted:
    return scene.call(node, Persist(1, since, scene.committed))


def test_an_interval_checkpoint_covers_the_epochs_since_the_last(
    world: World, store: FailingStore
) -> None:
    scene = scene_of(world, store, durability="interval")
    for epoch, pairs in enumerate([MANY, [("a", 1)], [("a", 2)]]):
        scene.commit(epoch, pairs)
    first = persisted(scene, ME, -1)
    scene.commit(3, [("a", 3)])
    second = persisted(scene, ME, 2)

    assert {(p.since, p.through) for p in first.deltas} == {(-1, 2)} and first.slots == (ALL,)
    assert {(p.since, p.through) for p in second.deltas} == {(2, 3)}
    assert sum(p.bytes for p in second.deltas) < sum(p.bytes for p in first.deltas)
    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(3, [*first.deltas, *second.deltas]))
        assert state_of_all(again) == {**SEEN, "a": [1, 2, 3]}


def test_a_checkpoint_without_a_manifest_is_covered_by_the_next(
    world: World, store: FailingStore
) -> None:
    scene = scene_of(world, store, durability="interval")
    scene.commit(0, [("a", 1)])
    persisted(scene, ME, -1)  # no manifest came of it
    scene.commit(1, [("a", 2)])
    second = persisted(scene, ME, -1)

    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(1, list(second.deltas)))
        assert state_of_all(again) == {"a": [1, 2]}


def test_a_repeated_request_to_persist_writes_nothing(world: World, store: FailingStore) -> None:
    scene = scene_of(world, store, durability="interval")
    scene.commit(0, MANY)
    first = persisted(scene, ME, -1)
    written = store.puts

    assert persisted(scene, ME, -1) == first
    assert store.puts == written


def test_reassigned_slots_are_written_as_a_base_first(world: World, store: FailingStore) -> None:
    scene = scene_of(world, store, durability="interval")
    scene.commit(0, MANY)
    scene.commit(1, [("1", "x")])
    checkpoint(scene)  # the backup has it all now, and no history of it
    scene.placement = placed([OTHER], 1)
    for node in (ME, OTHER):
        scene.call(node, scene.assignment())

    with pytest.raises(NotReadyError, match="reassigned slots"):
        persisted(scene, OTHER, -1)
    scene.commit(2, [("1", "y")])
    second = persisted(scene, OTHER, -1)
    assert [base.through for base in second.bases] == [1]
    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(2, list(second.deltas), second.bases))
        assert state_of_all(again) == {**SEEN, "1": [1, "x", "y"]}


def test_fragments_are_retained_until_a_manifest_covers_them(
    world: World, store: FailingStore
) -> None:
    scene = scene_of(world, store, durability="interval")
    retained = scene.machines[ME].store.replication.changes
    scene.commit(0, MANY)
    persisted(scene, ME, -1)
    checkpoint(scene)
    assert retained(JOB, ALL, -1, 0)  # backup and store have them, but no manifest does
    scene.commit(1, [("a", 1)])
    persisted(scene, ME, 0)
    checkpoint(scene)
    assert not retained(JOB, ALL, -1, 0) and retained(JOB, ALL, 0, 1)


def checkpoint(scene: Scene) -> None:
    """Bring the backups up to date."""
    scene.call(ME, ReplicateNow())
    scene.rest(1.0)

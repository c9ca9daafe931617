"""Nodes and the store: units before receipts, bases, checkpoints by order, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from millstream.checkpoints.manifest import BaseRecord, DeltaRecord
from millstream.checkpoints.records import unpack
from millstream.errors import MillstreamError
from millstream.node.durability import unit_writer as keeping_module
from millstream.node.durability.restore import SlotRestore
from millstream.node.durability.unit_writer import BaseOptions
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.stores.store import CorruptRecordError, StoreUnavailableError
from millstream.wire.messages import Commit, NotReadyError, Persist, Persisted, Restore
from tests.checkpoints.memory_store import MemoryStore
from tests.node.machines import ALL, JOB, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import ID, Scene

SEEN = {key: [value] for key, value in MANY}


class Shelf(MemoryStore):
    """A store that a test can hold up, or make fail."""

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
def store() -> Shelf:
    return Shelf()


def scene_of(world: World, store: Shelf, placement: Placement | None = None, **more: Any) -> Scene:
    return Scene(world, placement or placed([ME], other=ALL), store=store, **more)


def deltas_of(scene: Scene, node: NodeId, epoch: int) -> list[DeltaRecord]:
    """What a manifest would name."""
    return [
        DeltaRecord(r.kept.key, ID, r.slots, epoch - 1, epoch, r.kept.bytes)
        for r in scene.receipts(node, epoch).receipts
        if r.kept is not None and r.kept.key
    ]


def commit(scene: Scene, epoch: int, pairs: list[Any], nodes: tuple[NodeId, ...] = (ME,)) -> Any:
    """Run an epoch; gives the pieces of its owners."""
    scene.feed(epoch, pairs)
    deltas = [delta for node in nodes for delta in deltas_of(scene, node, epoch)]
    scene.committed = scene.commit_of(epoch)
    for node in scene.machines:
        scene.call(node, "seal", scene.committed)
    return deltas


def order(epoch: int, deltas: list[DeltaRecord], bases: tuple[BaseRecord, ...] = ()) -> Restore:
    newest = tuple(sorted(bases, key=lambda base: base.through, reverse=True))
    return Restore(2, Commit(epoch, 0), {ID: JOB}, {JOB: pa.string()}, newest, tuple(deltas))


def reborn(world: World, store: Shelf, placement: Placement, restore: Restore) -> Scene:
    """The nodes of another start, of which nothing but the store is known."""
    scene = Scene(world, placement, store=store)
    scene.order, scene.committed, scene.incarnation = restore, restore.committed, 2
    for node in scene.machines:
        scene.call(node, "assign", scene.assignment())
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


def test_a_receipt_names_what_is_durable(world: World, store: Shelf) -> None:
    scene = scene_of(world, store)
    scene.feed(0, MANY)

    [receipt] = scene.receipts(ME, 0).receipts
    assert receipt.kept is not None and store.get([receipt.kept.key])
    assert receipt.kept.bytes == len(store.get([receipt.kept.key])[receipt.kept.key])
    assert not scene.receipts(ME, 0).pending


def test_without_changes_there_is_nothing_to_keep_and_a_receipt_all_the_same(
    world: World, store: Shelf
) -> None:
    scene = scene_of(world, store)
    scene.feed(0, [])

    [receipt] = scene.receipts(ME, 0).receipts
    assert receipt.kept is not None and receipt.kept.key == "" and store.puts == 0


def test_a_store_that_fails_ends_the_epoch_with_its_error(world: World, store: Shelf) -> None:
    scene = scene_of(world, store)
    store.problem = StoreUnavailableError("gone fishing")
    scene.feed(0, MANY)

    with pytest.raises(StoreUnavailableError, match="gone fishing"):
        for _ in range(2):
            assert scene.receipts(ME, 0).receipts == ()


def test_who_takes_over_in_mid_epoch_keeps_its_copy_itself(world: World, store: Shelf) -> None:
    scene = scene_of(world, store)
    scene.feed(0, MANY)
    world.crash(ME)
    scene.placement = placed([OTHER], 1)
    scene.call(OTHER, "assign", scene.assignment())

    [receipt] = scene.receipts(OTHER, 0).receipts
    assert receipt.kept is not None and ".other." in receipt.kept.key
    assert store.get([receipt.kept.key])


def test_a_job_that_is_not_durable_is_copied_and_not_kept(
    world: World, store: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(world, store)
    for machine in scene.machines.values():
        monkeypatch.setattr(machine, "_jobs", {JOB: replace(machine._jobs[JOB], durable=False)})
    scene.feed(0, MANY)

    [receipt] = scene.receipts(ME, 0).receipts
    assert receipt.kept is None and store.puts == 0
    assert len(scene.receipts(OTHER, 0).copies) == 1


# -- restoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placement", [placed([THIRD]), placed([OTHER, ME]), placed([ME, OTHER, THIRD])]
)
def test_pieces_bring_an_epoch_back_on_any_nodes(
    world: World, store: Shelf, placement: Placement
) -> None:
    scene = scene_of(world, store)
    deltas = commit(scene, 0, MANY) + commit(scene, 1, [("a", 1)]) + commit(scene, 2, [("a", 2)])

    with World(6) as other:
        again = reborn(other, store, placement, order(2, deltas))
        assert state_of_all(again) == {**SEEN, "a": [1, 2]}
        assert all(again.call(node, "restored", None) for node in again.machines)


def test_what_was_restored_goes_on(world: World, store: Shelf) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)

    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(0, deltas))
        commit(again, 1, [("1", "more")], (THIRD,))
        assert state_of_all(again)["1"] == [1, "more"]


def test_a_feed_that_comes_before_the_state_waits_for_its_slots(world: World, store: Shelf) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)

    with World(6) as other:
        again = Scene(other, placed([THIRD]), store=store)
        again.order, again.committed, again.incarnation = order(0, deltas), Commit(0, 0), 2
        machine = again.machines[THIRD]
        machine.assign(again.assignment())  # as if the order to restore had been lost
        assert machine.lacking().all()
        assert again.feed(1, [("1", "more")]) == [("1", [1, "more"])]


def test_a_feed_waits_until_whoever_brings_its_slots_back_is_done(
    world: World, store: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)

    with World(6) as other:
        again = Scene(other, placed([THIRD]), store=store)
        again.order, again.committed, again.incarnation = order(0, deltas), Commit(0, 0), 2
        take, net = SlotRestore._take_deltas, again.services[THIRD]._net

        def slowly(restoring: SlotRestore, found: list[DeltaRecord], wanted: SlotMask) -> None:
            take(restoring, found, wanted)
            net.sleep(5.0)

        monkeypatch.setattr(SlotRestore, "_take_deltas", slowly)
        monkeypatch.setattr("millstream.node.durability.restore._PARTS", 1)
        again.call(THIRD, "assign", again.assignment())
        again.rest(1.0)
        commit(again, 1, [("1", "more")], (THIRD,))
        again.rest(200.0)

        assert state_of_all(again)["1"] == [1, "more"]
        assert set(again.machines[THIRD].store.holdings.through.tolist()) == {1}


def test_a_record_that_is_gone_or_damaged_is_told(world: World, store: Shelf) -> None:
    deltas = commit(scene_of(world, store), 0, MANY)
    store.delete([deltas[0].key])

    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(0, deltas))
        with pytest.raises(CorruptRecordError, match="missing"):
            again.call(THIRD, "restored", None)


# -- bases ---------------------------------------------------------------------------------------


def test_a_base_stands_for_the_pieces_before_it(
    world: World, store: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping_module, "_KEYS_AT_ONCE", 10)
    scene = scene_of(world, store, bases=BaseOptions(epochs=2, record=200))
    older = [*commit(scene, 0, MANY), *commit(scene, 1, [("a", 1)])]
    scene.rest(1.0)
    later = commit(scene, 2, [("a", 2), ("1", "x")])

    bases = scene.receipts(ME, 2).bases
    assert len(bases) > 1 and {base.through for base in bases} == {1}
    assert sorted(slot for base in bases for slot in base.slots) == list(ALL)
    store.delete([delta.key for delta in older])
    with World(6) as other:
        again = reborn(other, store, placed([OTHER, THIRD]), order(2, later, bases))
        assert state_of_all(again) == {**SEEN, "a": [1, 2], "1": [1, "x"]}


def test_of_two_bases_the_newer_counts(world: World, store: Shelf) -> None:
    scene = scene_of(world, store, bases=BaseOptions(epochs=1))
    commit(scene, 0, MANY)
    scene.rest(1.0)
    old = scene.receipts(ME, 0).bases
    commit(scene, 1, [("1", "x")])
    scene.rest(1.0)
    new = scene.receipts(ME, 1).bases

    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(1, [], (*old, *new)))
        assert state_of_all(again)["1"] == [1, "x"]


def test_a_heavy_row_of_pieces_calls_for_a_base(world: World, store: Shelf) -> None:
    scene = scene_of(world, store, bases=BaseOptions(least=100, epochs=1_000))
    commit(scene, 0, [("a", 1)])
    scene.rest(1.0)
    assert scene.receipts(ME, 0).bases == ()
    commit(scene, 1, [("b", "y" * 200)])
    scene.rest(1.0)
    [base] = scene.receipts(ME, 1).bases
    assert [part.job for part in unpack(store.get([base.key])[base.key])] == [ID]


# -- by order ------------------------------------------------------------------------------------


def persisted(scene: Scene, node: NodeId, since: int) -> Persisted:
    found: Persisted = scene.call(node, "persist", Persist(1, since, scene.committed))
    return found


def test_an_order_covers_the_epochs_since_the_last(world: World, store: Shelf) -> None:
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
        again = reborn(other, store, placed([THIRD]), order(3, [*first.deltas, *second.deltas]))
        assert state_of_all(again) == {**SEEN, "a": [1, 2, 3]}


def test_what_an_order_wrote_in_vain_is_covered_by_the_next(world: World, store: Shelf) -> None:
    scene = scene_of(world, store, durability="interval")
    scene.commit(0, [("a", 1)])
    persisted(scene, ME, -1)  # no manifest came of it
    scene.commit(1, [("a", 2)])
    second = persisted(scene, ME, -1)

    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(1, list(second.deltas)))
        assert state_of_all(again) == {"a": [1, 2]}


def test_an_order_that_is_given_again_is_not_followed_again(world: World, store: Shelf) -> None:
    scene = scene_of(world, store, durability="interval")
    scene.commit(0, MANY)
    first = persisted(scene, ME, -1)
    written = store.puts

    assert persisted(scene, ME, -1) == first
    assert store.puts == written


def test_slots_that_changed_hands_go_as_a_base_first(world: World, store: Shelf) -> None:
    scene = scene_of(world, store, durability="interval")
    scene.commit(0, MANY)
    scene.commit(1, [("1", "x")])
    checkpoint(scene)  # the backup has it all now, and no history of it
    scene.placement = placed([OTHER], 1)
    for node in (ME, OTHER):
        scene.call(node, "assign", scene.assignment())

    with pytest.raises(NotReadyError, match="changed hands"):
        persisted(scene, OTHER, -1)
    scene.commit(2, [("1", "y")])
    second = persisted(scene, OTHER, -1)
    assert [base.through for base in second.bases] == [1]
    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(2, list(second.deltas), second.bases))
        assert state_of_all(again) == {**SEEN, "1": [1, "x", "y"]}


def test_fragments_are_retained_until_the_store_has_them_for_good(
    world: World, store: Shelf
) -> None:
    scene = scene_of(world, store, durability="interval")
    retained = scene.machines[ME].store.checkpoints.changes
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
    scene.call(ME, "checkpoint")
    scene.rest(1.0)

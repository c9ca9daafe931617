"""Slots are restored from base records and deltas."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.checkpoints.manifest import DeltaRecord
from millstream.checkpoints.records import compressed
from millstream.errors import MillstreamError
from millstream.node.durability.restore import SlotRestore
from millstream.node.typed_errors import BackgroundTaskError
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.sim import World
from millstream.state.pickling import dumps
from millstream.stores.store import CorruptRecordError, StoreUnavailableError
from millstream.wire.commit import Commit
from millstream.wire.persistence import IsRestored
from tests.node.durability.durable_scenes import (
    SEEN,
    FailingStore,
    commit,
    halves,
    plan,
    restarted,
    scene_of,
    state_of_all,
)
from tests.node.machines import ALL, HIGH, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import Scene


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


def test_an_untyped_error_of_a_restore_is_reported(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world, placed([ME]), store=store)

    def fetch_plan() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(scene.services[ME]._operations, "_fetch_plan", fetch_plan)
    monkeypatch.setattr(scene.machines[ME], "unrestored", lambda: np.ones(len(ALL), dtype=bool))
    scene.placement = placed([ME], 1)
    scene.call(ME, scene.assignment())
    scene.rest(1.0)

    with pytest.raises(BackgroundTaskError, match="no more"):
        scene.call(ME, IsRestored())


def test_unreadable_records_fail_the_restore(world: World, store: FailingStore) -> None:
    deltas = commit(Scene(world, placed([ME]), store=store), 0, MANY)
    [delta] = deltas
    store.put({delta.key: compressed(dumps("not a fragment"))})

    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(0, deltas))
        with pytest.raises(MillstreamError, match="could not be restored"):
            again.call(THIRD, IsRestored())


def test_a_restore_is_retried_while_the_store_is_unavailable(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = commit(Scene(world, placed([ME]), store=store), 0, MANY)
    get = store.get

    def unavailable(keys: object) -> dict[str, bytes]:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(store, "get", unavailable)
    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(0, deltas))
        with pytest.raises(StoreUnavailableError):
            again.call(THIRD, IsRestored())
        monkeypatch.setattr(store, "get", get)
        again.rest(1.0)  # no feed needs the slots meanwhile

        assert again.call(THIRD, IsRestored())
        assert state_of_all(again) == SEEN


def test_slots_that_are_reassigned_during_a_restore_are_skipped(
    world: World, store: FailingStore
) -> None:
    deltas = commit(Scene(world, placed([ME]), store=store), 0, MANY)

    with World(6) as other:
        again = Scene(other, placed([THIRD]), store=store)
        again.plan, again.committed, again.incarnation = plan(0, deltas), Commit(0, 0), 2
        machine = again.machines[THIRD]
        machine.assign(again.assignment())
        service = again.services[THIRD]
        restore = SlotRestore(machine, store, again.plan, service._locks, service._net)
        again.placement = halves(THIRD, OTHER, 1)
        machine.assign(again.assignment())

        other.run(restore.all, "third", other.now + 10)

        assert restore.is_finished
        assert not machine.unrestored().any() and not machine.store.holdings.owned[HIGH.start]

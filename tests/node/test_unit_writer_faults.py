"""Nodes and the store with faults: objects that cannot be stored, slots that are reassigned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from millstream.checkpoints.records import compressed
from millstream.errors import MillstreamError
from millstream.node.durability.base_writer import BaseOptions
from millstream.node.durability.restore import SlotRestore
from millstream.node.durability.write_queue import Entry, StoreWriteError, WriteQueue
from millstream.node.service import BackgroundTaskError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.sim import World
from millstream.state.pickling import dumps
from millstream.stores.store import StoreFullError, StoreUnavailableError
from millstream.wire.commit import Commit
from millstream.wire.persistence import IsRestored, NotReadyError, Persist
from millstream.wire.receipts import StoredRecord
from millstream.wire.replication import ReplicateNow
from tests.checkpoints.memory_store import MemoryStore
from tests.node.machines import ALL, HIGH, JOB, LOW, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import Scene
from tests.node.test_unit_writer import (
    SEEN,
    FailingStore,
    commit,
    deltas_of,
    plan,
    restarted,
    state_of_all,
)


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


def halves(first: NodeId, second: NodeId, version: int = 0) -> Placement:
    """LOW and HIGH with owners of their own."""
    ring = Ring.even([first, second], len(ALL))
    return placed(ring.moved(np.array(LOW), first).moved(np.array(HIGH), second), version)


def write_bases(scene: Scene, node: NodeId) -> None:
    bases = scene.services[node]._bases
    assert bases is not None
    scene.run(bases.write_all, node)


# -- errors ----------------------------------------------------------------------------------------


def test_an_entry_that_cannot_be_serialised_fails_and_others_are_stored(
    world: World, store: FailingStore
) -> None:
    net = world.process("node")
    queue = WriteQueue(net, store)
    results: list[StoredRecord | MillstreamError | None] = []

    def bad() -> bytes:
        raise TypeError("cannot pickle a lock")

    def main() -> None:
        queue.enqueue(Entry("bad", "bad", bad, results.append))
        queue.enqueue(Entry("good", "good", lambda: b"good", results.append))
        with pytest.raises(StoreWriteError, match="cannot pickle a lock"):
            queue.write([Entry("bad", "bad", bad)])

    world.run(main, "node", world.now + 10)
    assert isinstance(results[0], StoreWriteError) and results[1] == StoredRecord("good", 4)


def test_an_untyped_error_of_a_store_is_reported(world: World) -> None:
    class UntypedErrors(MemoryStore):
        def put(self, items: object) -> None:
            raise RuntimeError("unexpected")

    queue = WriteQueue(world.process("node"), UntypedErrors())

    def main() -> None:
        with pytest.raises(StoreWriteError, match="RuntimeError: unexpected"):
            queue.write([Entry("a", "a", lambda: b"a")])

    world.run(main, "node", world.now + 10)


def test_a_failure_after_a_unit_is_stored_is_reported(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world, placed([ME]), store=store)

    def mark_stored(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(scene.machines[ME], "mark_stored", mark_stored)
    scene.feed(0, MANY)
    scene.rest(1.0)

    with pytest.raises(StoreWriteError, match="no more"):
        scene.receipts(ME, 0)


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


def test_state_that_cannot_be_serialised_ends_the_epoch_with_an_error(
    world: World, store: FailingStore
) -> None:
    scene = Scene(world, placed([ME]), store=store)  # a backup would have reported it
    machine = scene.machines[ME]
    machine.store.reducing[JOB].encode = _refuse  # type: ignore[method-assign]
    scene.feed(0, MANY)

    with pytest.raises(MillstreamError, match="no way to pickle"):
        for _ in range(3):
            scene.receipts(ME, 0)


def _refuse(fragment: Any) -> bytes:
    raise TypeError("no way to pickle this")


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
        again.rest(1.0)  # nobody feeds the slots meanwhile

        assert again.call(THIRD, IsRestored())
        assert state_of_all(again) == SEEN


# -- reassigned slots ----------------------------------------------------------------------------


def test_a_node_writes_no_bases_of_slots_that_are_not_restored(
    world: World, store: FailingStore
) -> None:
    scene = Scene(world, halves(ME, OTHER), store=store, bases=BaseOptions(epochs=1_000))
    for slots in (LOW, HIGH):
        scene.feed(0, MANY, slots=slots)
    deltas = [delta for node in (ME, OTHER) for delta in deltas_of(scene, node, 0)]
    scene.committed = scene.commit_of(0)
    world.crash(OTHER)
    scene.placement = placed([ME], 1)
    machine = scene.machines[ME]
    machine.assign(scene.assignment())  # and the slots are not restored yet
    assert machine.unrestored()[HIGH.start :].all()

    write_bases(scene, ME)

    [found] = scene.receipts(ME, 1).bases
    assert found.slots == LOW and found.through == 0
    scene.plan = plan(0, deltas)
    scene.call(ME, scene.assignment())
    scene.feed(1, [])
    assert state_of_all(scene) == SEEN


@pytest.mark.parametrize(
    "problem", [StoreFullError("no space"), StoreUnavailableError("no answer")]
)
def test_bases_that_the_store_rejects_are_retried(
    world: World, store: FailingStore, problem: MillstreamError
) -> None:
    scene = Scene(world, placed([ME]), store=store, bases=BaseOptions(epochs=1_000))
    commit(scene, 0, MANY)
    store.problem = problem
    write_bases(scene, ME)
    assert scene.receipts(ME, 0).bases == ()  # and no error
    store.problem = None
    write_bases(scene, ME)

    assert [base.slots for base in scene.receipts(ME, 0).bases] == [ALL]


def test_a_slot_that_is_reassigned_while_bases_are_written_is_skipped(
    world: World, store: FailingStore
) -> None:
    scene = Scene(world, placed([ME], other=ALL), store=store, bases=BaseOptions(epochs=1_000))
    commit(scene, 0, MANY)
    machine = scene.machines[ME]
    held = machine.store.holdings
    real = machine.snapshots

    def snapshots(slots: range) -> Any:
        machine.snapshots = real  # type: ignore[method-assign]
        scene.placement = placed([OTHER], 1)
        machine.assign(scene.assignment())
        return real(slots)

    machine.snapshots = snapshots  # type: ignore[method-assign]
    write_bases(scene, ME)

    assert not held.owned.any() and machine.bases == []
    scene.receipts(ME, 1)


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


# -- interval checkpoints --------------------------------------------------------------------------


def test_a_base_newer_than_the_checkpoint_does_not_replace_missing_deltas(
    world: World, store: FailingStore
) -> None:
    scene = Scene(world, placed([ME], other=ALL), store=store, durability="interval")
    scene.commit(0, MANY)
    scene.commit(1, [("1", "x")])
    scene.call(ME, ReplicateNow())
    scene.rest(1.0)
    scene.placement = placed([OTHER], 1)
    for node in (ME, OTHER):
        scene.call(node, scene.assignment())
    scene.commit(2, [("1", "y")])
    late = Persist(1, -1, scene.committed)
    scene.commit(3, [("1", "z")])
    # A base of epoch 3, which the manifest of epoch 2 cannot name.
    write_bases(scene, OTHER)

    with pytest.raises(NotReadyError, match="reassigned slots"):
        scene.call(OTHER, late)
    found = scene.call(OTHER, Persist(1, -1, scene.committed))
    assert all(base.reaches <= 3 for base in found.bases)
    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(3, list(found.deltas), found.bases))
        assert state_of_all(again) == {**SEEN, "1": [1, "x", "y", "z"]}

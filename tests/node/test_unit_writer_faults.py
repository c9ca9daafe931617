"""Nodes and the store, when something comes between: odd objects, slots that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from millstream.checkpoints.records import compressed
from millstream.errors import MillstreamError
from millstream.node.durability.restore import SlotRestore
from millstream.node.durability.unit_writer import BaseOptions
from millstream.node.durability.write_queue import Entry, StoreWriteError, WriteQueue
from millstream.node.service import BackgroundTaskError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.sim import World
from millstream.state.pickling import dumps
from millstream.stores.store import StoreFullError, StoreUnavailableError
from millstream.wire.messages import Commit, Kept, NotReadyError, Persist, Persisted
from tests.checkpoints.memory_store import MemoryStore
from tests.node.machines import ALL, HIGH, JOB, LOW, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import Scene
from tests.node.test_unit_writer import SEEN, Shelf, commit, deltas_of, order, reborn, state_of_all


@pytest.fixture
def world() -> Iterator[World]:
    with World(5) as running:
        yield running


@pytest.fixture
def store() -> Shelf:
    return Shelf()


def halves(first: NodeId, second: NodeId, version: int = 0) -> Placement:
    """LOW and HIGH with owners of their own."""
    ring = Ring.even([first, second], len(ALL))
    return placed(ring.moved(np.array(LOW), first).moved(np.array(HIGH), second), version)


def write_bases(scene: Scene, node: NodeId) -> None:
    keeping = scene.services[node]._writer
    assert keeping is not None
    scene.run(keeping.write_bases, node)


# -- objects that cannot be kept -----------------------------------------------------------------


def test_what_cannot_be_serialised_is_told_and_the_rest_is_kept(world: World, store: Shelf) -> None:
    net = world.process("node")
    keeper = WriteQueue(net, store)
    told: list[Kept | MillstreamError | None] = []

    def bad() -> bytes:
        raise TypeError("cannot pickle a lock")

    def main() -> None:
        keeper.keep(Entry("bad", "bad", bad, told.append))
        keeper.keep(Entry("good", "good", lambda: b"good", told.append))
        with pytest.raises(StoreWriteError, match="cannot pickle a lock"):
            keeper.keep_all([Entry("bad", "bad", bad)])

    world.run(main, "node", world.now + 10)
    assert isinstance(told[0], StoreWriteError) and told[1] == Kept("good", 4)


def test_a_store_with_an_error_of_its_own_kind_is_told(world: World) -> None:
    class Odd(MemoryStore):
        def put(self, items: object) -> None:
            raise RuntimeError("out of cheese")

    keeper = WriteQueue(world.process("node"), Odd())

    def main() -> None:
        with pytest.raises(StoreWriteError, match="RuntimeError: out of cheese"):
            keeper.keep_all([Entry("a", "a", lambda: b"a")])

    world.run(main, "node", world.now + 10)


def test_a_failure_after_the_store_has_a_unit_leaves_nobody_waiting(
    world: World, store: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world, placed([ME]), store=store)

    def kept(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(scene.machines[ME], "kept", kept)
    scene.feed(0, MANY)
    scene.rest(1.0)

    with pytest.raises(StoreWriteError, match="no more"):
        scene.receipts(ME, 0)


def test_a_restore_that_ends_with_any_error_is_told(
    world: World, store: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world, placed([ME]), store=store)

    def ask() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(scene.services[ME]._operations, "_ask", ask)
    monkeypatch.setattr(scene.machines[ME], "lacking", lambda: np.ones(len(ALL), dtype=bool))
    scene.placement = placed([ME], 1)
    scene.call(ME, "assign", scene.assignment())
    scene.rest(1.0)

    with pytest.raises(BackgroundTaskError, match="no more"):
        scene.call(ME, "restored")


def test_state_that_cannot_be_serialised_ends_the_epoch_with_an_error(
    world: World, store: Shelf
) -> None:
    scene = Scene(world, placed([ME]), store=store)  # without a backup, who would have told
    machine = scene.machines[ME]
    machine.store.reducing[JOB].encode = _refuse  # type: ignore[method-assign]
    scene.feed(0, MANY)

    with pytest.raises(MillstreamError, match="no way to pickle"):
        for _ in range(3):
            scene.receipts(ME, 0)


def _refuse(fragment: Any) -> bytes:
    raise TypeError("no way to pickle this")


def test_records_that_cannot_be_read_are_told_to_whoever_waits_for_them(
    world: World, store: Shelf
) -> None:
    deltas = commit(Scene(world, placed([ME]), store=store), 0, MANY)
    [delta] = deltas
    store.put({delta.key: compressed(dumps("not a fragment"))})

    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(0, deltas))
        with pytest.raises(MillstreamError, match="could not be brought back"):
            again.call(THIRD, "restored", None)


def test_slots_come_back_when_a_store_that_was_unavailable_is_back(
    world: World, store: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = commit(Scene(world, placed([ME]), store=store), 0, MANY)
    get = store.get

    def unavailable(keys: object) -> dict[str, bytes]:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(store, "get", unavailable)
    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(0, deltas))
        with pytest.raises(StoreUnavailableError):
            again.call(THIRD, "restored", None)
        monkeypatch.setattr(store, "get", get)
        again.rest(1.0)  # nobody feeds the slots meanwhile

        assert again.call(THIRD, "restored", None)
        assert state_of_all(again) == SEEN


# -- slots that come and go ----------------------------------------------------------------------


def test_a_node_that_has_yet_to_bring_slots_back_writes_bases_of_the_others(
    world: World, store: Shelf
) -> None:
    scene = Scene(world, halves(ME, OTHER), store=store, bases=BaseOptions(epochs=1_000))
    for slots in (LOW, HIGH):
        scene.feed(0, MANY, slots=slots)
    deltas = [delta for node in (ME, OTHER) for delta in deltas_of(scene, node, 0)]
    scene.committed = scene.commit_of(0)
    world.crash(OTHER)
    scene.placement = placed([ME], 1)
    machine = scene.machines[ME]
    machine.assign(scene.assignment())  # and the slots have not come yet
    assert machine.lacking()[HIGH.start :].all()

    write_bases(scene, ME)

    [found] = scene.receipts(ME, 1).bases
    assert found.slots == LOW and found.through == 0
    scene.order = order(0, deltas)
    scene.call(ME, "assign", scene.assignment())
    scene.feed(1, [])
    assert state_of_all(scene) == SEEN


@pytest.mark.parametrize(
    "problem", [StoreFullError("no space"), StoreUnavailableError("no answer")]
)
def test_bases_that_the_store_refuses_are_written_later(
    world: World, store: Shelf, problem: MillstreamError
) -> None:
    scene = Scene(world, placed([ME]), store=store, bases=BaseOptions(epochs=1_000))
    commit(scene, 0, MANY)
    store.problem = problem
    write_bases(scene, ME)
    assert scene.receipts(ME, 0).bases == ()  # and no error
    store.problem = None
    write_bases(scene, ME)

    assert [base.slots for base in scene.receipts(ME, 0).bases] == [ALL]


def test_a_slot_that_goes_while_bases_are_written_does_not_end_the_run(
    world: World, store: Shelf
) -> None:
    scene = Scene(world, placed([ME], other=ALL), store=store, bases=BaseOptions(epochs=1_000))
    commit(scene, 0, MANY)
    machine = scene.machines[ME]
    held = machine.store.holdings
    real = machine.view

    def view(slots: range) -> Any:
        machine.view = real  # type: ignore[method-assign]
        scene.placement = placed([OTHER], 1)
        machine.assign(scene.assignment())
        return real(slots)

    machine.view = view  # type: ignore[method-assign]
    write_bases(scene, ME)

    assert not held.owned.any() and machine.bases == []
    scene.receipts(ME, 1)


def test_slots_that_go_while_they_come_back_are_not_waited_for(world: World, store: Shelf) -> None:
    deltas = commit(Scene(world, placed([ME]), store=store), 0, MANY)

    with World(6) as other:
        again = Scene(other, placed([THIRD]), store=store)
        again.order, again.committed, again.incarnation = order(0, deltas), Commit(0, 0), 2
        machine = again.machines[THIRD]
        machine.assign(again.assignment())
        service = again.services[THIRD]
        restoring = SlotRestore(machine, store, again.order, service._locks, service._net)
        again.placement = halves(THIRD, OTHER, 1)
        machine.assign(again.assignment())

        other.run(restoring.all, "third", other.now + 10)

        assert restoring.is_over
        assert not machine.lacking().any() and not machine.store.holdings.owned[HIGH.start]


# -- by order --------------------------------------------------------------------------------------


def test_a_base_that_goes_beyond_an_order_does_not_stand_for_what_is_missing(
    world: World, store: Shelf
) -> None:
    scene = Scene(world, placed([ME], other=ALL), store=store, durability="interval")
    scene.commit(0, MANY)
    scene.commit(1, [("1", "x")])
    scene.call(ME, "checkpoint")
    scene.rest(1.0)
    scene.placement = placed([OTHER], 1)
    for node in (ME, OTHER):
        scene.call(node, "assign", scene.assignment())
    scene.commit(2, [("1", "y")])
    late = Persist(1, -1, scene.committed)
    scene.commit(3, [("1", "z")])
    # A base of epoch 3, which the manifest of epoch 2 cannot name.
    write_bases(scene, OTHER)

    with pytest.raises(NotReadyError, match="changed hands"):
        scene.call(OTHER, "persist", late)
    found: Persisted = scene.call(OTHER, "persist", Persist(1, -1, scene.committed))
    assert all(base.reaches <= 3 for base in found.bases)
    with World(6) as other:
        again = reborn(other, store, placed([THIRD]), order(3, list(found.deltas), found.bases))
        assert state_of_all(again) == {**SEEN, "1": [1, "x", "y", "z"]}

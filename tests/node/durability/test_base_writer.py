"""Base records: when they are written, and what they replace."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.checkpoints.records import unpack
from millstream.errors import MillstreamError
from millstream.node import key_batches
from millstream.node.durability.base_writer import BaseOptions
from millstream.sim import World
from millstream.stores.store import StoreFullError, StoreUnavailableError
from tests.node.durability.durable_scenes import (
    SEEN,
    FailingStore,
    commit,
    deltas_of,
    halves,
    plan,
    restarted,
    scene_of,
    state_of_all,
    write_bases,
)
from tests.node.machines import ALL, HIGH, LOW, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import ID, Scene


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

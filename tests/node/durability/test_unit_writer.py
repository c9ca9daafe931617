"""Units are stored before their receipts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.errors import MillstreamError
from millstream.node.typed_errors import StoreWriteError
from millstream.sim import World
from millstream.stores.store import StoreUnavailableError
from tests.node.durability.durable_scenes import FailingStore, scene_of
from tests.node.machines import JOB, MANY, ME, OTHER, placed
from tests.node.scenes import Scene


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


def test_state_that_cannot_be_serialised_ends_the_epoch_with_an_error(
    world: World, store: FailingStore
) -> None:
    scene = Scene(world, placed([ME]), store=store)  # a backup would have reported it
    machine = scene.machines[ME]
    machine.store.operators[JOB].state.encode = _refuse  # type: ignore[method-assign]
    scene.feed(0, MANY)

    with pytest.raises(MillstreamError, match="no way to pickle"):
        for _ in range(3):
            scene.receipts(ME, 0)


def _refuse(fragment: Any) -> bytes:
    raise TypeError("no way to pickle this")

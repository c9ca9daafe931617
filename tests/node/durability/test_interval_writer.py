"""Interval checkpoints: deltas of several epochs, on request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.wire.persistence import NotReadyError, Persist, Persisted
from millstream.wire.replication import ReplicateNow
from tests.node.durability.durable_scenes import (
    SEEN,
    FailingStore,
    plan,
    restarted,
    scene_of,
    state_of_all,
    write_bases,
)
from tests.node.machines import ALL, JOB, MANY, ME, OTHER, THIRD, placed
from tests.node.scenes import Scene


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


def test_a_base_that_is_replaced_while_deltas_are_written_is_still_named(
    world: World, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(world, store, durability="interval")
    scene.commit(0, MANY)
    scene.commit(1, [("1", "x")])
    checkpoint(scene)
    scene.placement = placed([OTHER], 1)
    for node in (ME, OTHER):
        scene.call(node, scene.assignment())
    with pytest.raises(NotReadyError, match="reassigned slots"):
        persisted(scene, OTHER, -1)
    scene.commit(2, [("1", "y")])
    put = store.put

    def put_while_bases_are_replaced(items: Mapping[str, bytes]) -> None:
        scene.machines[OTHER].bases = []  # by one of an epoch that this manifest cannot name
        put(items)

    monkeypatch.setattr(store, "put", put_while_bases_are_replaced)
    found = persisted(scene, OTHER, -1)

    assert [base.through for base in found.bases] == [1]
    with World(6) as other:
        again = restarted(other, store, placed([THIRD]), plan(2, list(found.deltas), found.bases))
        assert state_of_all(again) == {**SEEN, "1": [1, "x", "y"]}

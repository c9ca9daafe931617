"""Nodes with a store that tests can make fail, and their restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.checkpoints.manifest import BaseRecord, DeltaRecord
from millstream.errors import MillstreamError
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.sim import World
from millstream.wire.commit import Commit, Seal
from millstream.wire.persistence import RestorePlan
from tests.checkpoints.memory_store import MemoryStore
from tests.node.machines import ALL, HIGH, JOB, LOW, MANY, ME, items_of, placed
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
                items = items_of(machine.store, share.slots)
                found.update({key: entries["seen"] for key, entries in items})
    return found


def halves(first: NodeId, second: NodeId, version: int = 0) -> Placement:
    """LOW and HIGH with owners of their own."""
    ring = Ring.even([first, second], len(ALL))
    return placed(ring.moved(np.array(LOW), first).moved(np.array(HIGH), second), version)


def write_bases(scene: Scene, node: NodeId) -> None:
    bases = scene.services[node]._bases
    assert bases is not None
    scene.run(bases.write_all, node)

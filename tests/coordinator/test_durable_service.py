"""The coordinator of a run with a checkpoint; its nodes are stubs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from millstream.coordinator.interval_commits import Triggers
from millstream.coordinator.ledger import PreparedEpoch
from millstream.coordinator.scaling import Member
from millstream.coordinator.service import Coordinator
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.sim import World
from millstream.wire.epoch_record import JobTypes
from millstream.wire.membership import Ping
from millstream.wire.persistence import NotReadyError, Persist, Persisted
from millstream.wire.receipts import CollectReceipts, NodeReport, Receipts
from millstream.wire.request import Request
from tests.checkpoints.memory_store import MemoryStore
from tests.coordinator.journals import COUNT, JOBS, SLOTS, SUM, A, B, commit, delta, journal_of
from tests.coordinator.journals import record as record_of
from tests.coordinator.journals import staged as staged_of

T = TypeVar("T")
OUTPUT, OTHER = (pa.schema([(name, pa.int64())]) for name in ("n", "m"))


@pytest.fixture
def world() -> Iterator[World]:
    with World(4) as running:
        yield running


class Scene:
    """A coordinator, and two nodes of which each has a copy of what the other owns."""

    def __init__(self, world: World, *, logs: bool = True, **options: Any) -> None:
        self.world = world
        self.store = MemoryStore()
        self.published: list[int] = []
        self.orders: list[tuple[NodeId, Persist]] = []
        self.coordinator = Coordinator(world.process("driver"))
        for node in (A, B):
            world.process(node)
            world.serve(node, node, self._answer_of(node))
        self.options = {"logs": logs, "triggers": Triggers(seconds=1.0), **options}

    def _answer_of(self, node: NodeId) -> Callable[[Request[Any]], Any]:
        def answer(request: Request[Any]) -> Any:
            if isinstance(request, CollectReceipts):
                return Receipts((), (), ((0, -2),), False, NodeReport())
            if isinstance(request, Persist):
                return self._persist(node, request)
            return node if isinstance(request, Ping) else None

        return answer

    def _persist(self, node: NodeId, order: Persist) -> Persisted:
        self.orders.append((node, order))
        placement = self.coordinator.roster.placement
        runs = tuple(s.slots for s in placement.shares(range(SLOTS)) if s.owner == node)
        if not runs:
            raise NotReadyError("nothing is owned here")
        return Persisted((delta(order.committed.epoch, order.since),), (), runs)

    def run(self, main: Callable[[], T], seconds: float = 2000.0) -> T:
        def begun() -> T:
            self.coordinator.begin(
                [Member(node, node, Domain("zone", str(node), "executor")) for node in (A, B)],
                {at: name for name, at in JOBS.items()},
                self.options.pop("types", {}),
                SLOTS,
                replicas=1,
                on_lost=lambda: None,
                journal=self.options.pop("journal", None) or journal_of(self.store),
                publish=lambda one: self.published.append(one.epoch),
                **self.options,
            )
            return main()

        return self.world.run(begun, "driver", self.world.now + seconds)

    def hold(self, epoch: int) -> None:
        """An epoch is committed in memory."""
        prepared = PreparedEpoch(record_of(epoch), [], {}, [], np.zeros((0, 1), dtype=bool))
        assert not self.coordinator.commits.commit(prepared, staged_of(epoch))


def test_outputs_are_published_after_the_interval_without_another_epoch(
    world: World,
) -> None:
    scene = Scene(world)

    def main() -> None:
        scene.hold(0)
        scene.coordinator.net.sleep(10.0)

    scene.run(main)
    assert scene.published == [0]


def test_a_node_that_falls_silent_during_a_checkpoint_delays_it_until_declared_dead(
    world: World,
) -> None:
    scene = Scene(world)

    def main() -> float:
        world.pause(B)
        scene.hold(0)
        began = scene.coordinator.net.now()
        scene.coordinator.finish()
        return scene.coordinator.net.now() - began

    assert scene.run(main) < 100.0
    assert scene.published == [0] and scene.coordinator.roster.nodes == (A,)


@pytest.mark.parametrize("durable", [True, False])
def test_slots_without_a_copy_are_restored_only_if_all_their_state_is_stored(
    world: World, durable: bool
) -> None:
    scene = Scene(world, logs=False)
    commit(journal_of(scene.store, durable=durable), 0)

    def main() -> None:
        scene.coordinator.net.sleep(1.0)
        assert not scene.coordinator.roster.survives_without([B])  # no copies were made yet
        world.crash(B)
        scene.coordinator.net.sleep(30.0)

    scene.run(main)
    assert (scene.coordinator.state_lost is None) == durable
    assert (scene.coordinator.roster.nodes == (A,)) == durable


def test_types_are_as_declared_or_else_as_inferred_before(world: World) -> None:
    scene = Scene(world, logs=False)
    before = journal_of(scene.store)
    shown = {COUNT: JobTypes(pa.string(), OUTPUT), SUM: JobTypes(pa.int64(), OUTPUT)}
    commit(before, 0, types=shown)
    scene.options["types"] = {COUNT: JobTypes(None, OTHER), SUM: JobTypes()}

    def main() -> dict[int, JobTypes]:
        return dict(scene.coordinator.admit(1, 0).types)

    assert scene.run(main) == {
        COUNT: JobTypes(pa.string(), OTHER),
        SUM: JobTypes(pa.int64(), OUTPUT),
    }

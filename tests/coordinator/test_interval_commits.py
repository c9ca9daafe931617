"""Checkpoints at intervals: when, of which epochs, and what is published with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from millstream.checkpoints.chain import Chain, CommitUnknownError, SupersededError
from millstream.checkpoints.manifest import Staged
from millstream.coordinator.frozen_units import UnitCounts
from millstream.coordinator.interval_commits import IntervalCommits, Triggers
from millstream.coordinator.ledger import PreparedEpoch
from millstream.coordinator.roster import Roster
from millstream.coordinator.run_context import RunContext
from millstream.coordinator.wait_log import WaitLog
from millstream.node.durability.write_queue import EntryReplacedError
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.sim import World
from millstream.stores.store import StoreFullError, StoreUnavailableError
from millstream.wire.calls import UnreachableError
from millstream.wire.commit import Commit
from millstream.wire.persistence import NotReadyError, Persist, Persisted, RebasedError
from tests.checkpoints.memory_store import MemoryStore
from tests.coordinator.journals import (
    LEFT,
    RIGHT,
    SLOTS,
    A,
    B,
    base,
    claimed,
    delta,
    journal_of,
    record,
    staged,
)

T = TypeVar("T")


class Scene:
    """Epochs committed in memory, and two nodes that are stubs."""

    def __init__(self, world: World, **triggers: Any) -> None:
        self.world = world
        self.net = world.process("driver")
        self.store = MemoryStore()
        self.journal = journal_of(self.store)
        self.roster = Roster({n: Domain("zone", str(n), "executor") for n in (A, B)}, SLOTS, 1)
        self.waits, self.is_over = WaitLog(self.net), False
        self.orders: list[Persist] = []
        self.asked: list[list[NodeId]] = []
        self.answers: list[dict[NodeId, Any]] = []
        self.seconds = 0.0
        self.published: list[int] = []
        self.problem: Exception | None = None
        run = cast(RunContext, self)
        self.intervals = IntervalCommits(run, self.journal, Triggers(**triggers), self.publish)
        self.epoch = -1

    @property
    def rpc(self) -> Scene:
        return self

    def call_living(
        self, nodes: Iterable[NodeId], living: object, request: Persist, timeout: float
    ) -> dict[NodeId, Any]:
        self.orders.append(request)
        self.asked.append(list(nodes))
        self.net.sleep(self.seconds)
        made = (delta(request.committed.epoch, request.since),)
        usual = {A: Persisted(made, (), (LEFT,)), B: Persisted((), (), (RIGHT,))}
        answers = self.answers.pop(0) if self.answers else usual
        return {node: answers[node] for node in self.asked[-1] if node in answers}

    def publish(self, one: Staged) -> None:
        if self.problem is not None:
            raise self.problem
        covered = Chain(self.store).read().epoch
        assert one.epoch <= covered, "published before it was durable"
        self.published.append(one.epoch)

    def hold(self, changes: int = 1) -> None:
        self.epoch += 1
        counts = {0: UnitCounts(rows=changes, keys=changes)}
        nobody = np.zeros((0, 1), dtype=bool)
        prepared = PreparedEpoch(record(self.epoch), [], {}, [], nobody, counts=counts)
        assert not self.intervals.commit(prepared, staged(self.epoch))

    def run(self, main: Callable[[], T], seconds: float = 1000.0) -> T:
        return self.world.run(main, "driver", self.world.now + seconds)

    def consider(self, wait: float = 0.0) -> None:
        def main() -> None:
            self.intervals.after_commit()
            self.net.sleep(wait)

        self.run(main)

    @property
    def durable(self) -> list[tuple[int, int]]:
        """The manifests: which epochs each of them commits."""
        return [(one.parent, one.epoch) for one in Chain(self.store).read().manifests]


@pytest.fixture
def world() -> Iterator[World]:
    with World(3) as running:
        yield running


# -- when --------------------------------------------------------------------------------------


def test_without_epochs_there_is_nothing_to_do(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.consider(1.0)
    scene.run(scene.intervals.finish)

    assert scene.orders == [] and scene.durable == []


def test_a_checkpoint_is_due_after_the_interval(world: World) -> None:
    scene = Scene(world, seconds=2.0)
    scene.hold()
    scene.consider(1.0)
    assert scene.orders == []
    scene.hold()
    scene.consider(1.0)
    assert scene.durable == []
    scene.hold()
    scene.consider(0.5)
    assert scene.durable == [(-1, 2)]
    # From the last one on.
    scene.hold()
    scene.consider(1.0)
    assert len(scene.orders) == 1


@pytest.mark.parametrize(("changes", "needed"), [(5, 2), (10, 4)])
def test_a_checkpoint_is_due_after_so_many_changes(world: World, changes: int, needed: int) -> None:
    scene = Scene(world, seconds=1e9, changes=changes)
    for _ in range(needed):
        assert scene.orders == []
        scene.hold(3)
        scene.consider(0.5)
    assert scene.durable == [(-1, needed - 1)]


def test_a_checkpoint_is_due_after_so_many_epochs(world: World) -> None:
    scene = Scene(world, seconds=1e9, epochs=3)
    for _ in range(3):
        scene.hold()
        scene.consider(0.5)
    assert scene.durable == [(-1, 2)]


def test_changes_during_a_checkpoint_count_for_the_next(world: World) -> None:
    scene = Scene(world, seconds=1e9, changes=5, when_full="replace")
    scene.seconds = 1.0
    scene.hold(5)
    scene.consider(0.1)
    scene.hold(5)
    scene.consider(3.0)
    assert scene.durable == [(-1, 0)]
    scene.hold(0)
    scene.consider(3.0)
    assert scene.durable == [(-1, 0), (0, 2)]


def test_a_look_begins_a_checkpoint_that_is_due_without_another_epoch(world: World) -> None:
    scene = Scene(world, seconds=2.0)
    scene.hold()

    def main() -> None:
        scene.intervals.poll()
        assert scene.orders == []
        scene.net.sleep(2.0)
        scene.intervals.poll()
        scene.net.sleep(0.5)

    scene.run(main)
    assert scene.durable == [(-1, 0)] and scene.published == [0]


def test_a_look_neither_waits_nor_raises(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.seconds = 5.0
    scene.hold()

    def main() -> float:
        scene.intervals.poll()
        scene.net.sleep(0.1)
        began = scene.net.now()
        scene.intervals.poll()
        return scene.net.now() - began

    assert scene.run(main) < 1.0 and len(scene.orders) == 1
    scene.intervals.problem = StoreFullError("full")
    scene.run(scene.intervals.poll)


# -- of what -----------------------------------------------------------------------------------


def test_each_request_names_the_stored_epoch_and_the_commit(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    for _ in range(2):
        scene.hold()
        scene.hold()
        scene.consider(0.5)

    assert scene.orders == [Persist(1, -1, Commit(1, 0)), Persist(1, 1, Commit(3, 0))]
    assert scene.durable == [(-1, 1), (1, 3)]
    newest = scene.journal.lineage.newest
    assert newest is not None and newest.deltas == (delta(3, since=1),)
    assert newest.staged == (staged(2), staged(3)) and newest.published == 1


@pytest.mark.parametrize(
    "answer",
    [
        NotReadyError("wait"),
        EntryReplacedError("newer"),
        UnreachableError("b", "refused"),
        Persisted((), (), ()),
    ],
)
def test_without_all_slots_there_is_no_manifest_and_owners_are_called_again(
    world: World, answer: Any
) -> None:
    scene = Scene(world, seconds=0.0)
    scene.answers = [{A: Persisted((delta(0),), (), (LEFT,)), B: answer}] * 3
    scene.hold()
    scene.consider(2.0)

    assert scene.durable == [(-1, 0)] and scene.published == [0]
    assert scene.asked == [[A, B], [B], [B], [B]]  # who has done its part is left alone
    newest = scene.journal.lineage.newest
    assert newest is not None and newest.deltas == (delta(0),)


def test_a_replay_may_take_as_long_as_it_takes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(world, seconds=0.0)
    scene.answers = [
        {A: NotReadyError("node a is not at epoch 0 yet"), B: NotReadyError("later")}
    ] * 500
    scene.hold()
    scene.consider(400.0)
    assert scene.durable == []
    assert "a checkpoint has been waiting" in caplog.text and "not at epoch 0" in caplog.text

    scene.consider(200.0)
    assert scene.durable == [(-1, 0)] and scene.waits.long() == []


def test_a_node_that_dies_during_a_checkpoint_is_done_without(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.hold()
    scene.answers = [
        {A: Persisted((), (), (LEFT,)), B: UnreachableError("b", "refused")},
        {A: RebasedError("slots that changed hands are in the store now")},
        {A: Persisted((delta(1, since=-1),), (base(0, RIGHT),), (LEFT, RIGHT))},
    ]

    def main() -> None:
        scene.intervals.after_commit()
        scene.net.sleep(0.01)
        scene.hold()  # the run goes on meanwhile
        scene.roster.remove([B])
        scene.net.sleep(1.0)

    scene.run(main)
    assert scene.asked == [[A, B], [A], [A]]
    assert [order.committed.epoch for order in scene.orders] == [0, 0, 1]
    assert scene.durable == [(-1, 1)] and scene.published == [0, 1]
    newest = scene.journal.lineage.newest
    assert newest is not None and newest.bases == (base(0, RIGHT),)


def test_a_run_that_ends_gives_up_a_checkpoint_with_an_error(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.answers = [{A: NotReadyError("wait")}] * 1000
    scene.hold()
    world.at(50.0, lambda: setattr(scene, "is_over", True))
    with pytest.raises(NotReadyError, match="the run ended"):
        scene.run(scene.intervals.finish)
    assert scene.durable == [] and scene.published == []


# -- what goes wrong ---------------------------------------------------------------------------


def test_a_background_error_is_raised_with_the_next_epoch(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.answers = [{A: StoreFullError("no space")}]
    scene.hold()
    scene.consider(1.0)

    for ask in (scene.intervals.after_commit, scene.intervals.finish):
        with pytest.raises(StoreFullError, match="no space"):
            scene.run(ask)
    assert scene.durable == [] and scene.published == []


def test_a_superseded_driver_publishes_nothing(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.hold()
    claimed(scene.store)
    scene.consider(1.0)

    with pytest.raises(SupersededError):
        scene.run(scene.intervals.finish)
    assert scene.published == []


def test_after_a_publication_that_failed_there_is_none(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.hold()
    scene.problem = OSError("disk error")  # of a kind that is not ours
    scene.consider(1.0)
    scene.problem = None
    scene.hold()

    for ask in (scene.intervals.after_commit, scene.intervals.finish):
        with pytest.raises(OSError, match="disk error"):
            scene.run(ask)
    assert scene.published == []
    # The next start publishes it.
    assert journal_of(scene.store).unpublished == [staged(0)]


def test_after_a_manifest_whose_fate_is_unknown_none_is_tried(world: World) -> None:
    class LosesAnswers(MemoryStore):
        def put_if_absent(self, key: str, value: bytes) -> bool:
            super().put_if_absent(key, value)
            raise StoreUnavailableError("no answer")

    scene = Scene(world, seconds=0.0)
    scene.seconds = 1.0
    scene.journal._chain._store = LosesAnswers()
    scene.hold()
    scene.consider()

    with pytest.raises(CommitUnknownError):  # it waits behind the one under way
        scene.run(scene.intervals.finish)
    assert len(scene.orders) == 1


# -- when the store is slow --------------------------------------------------------------------


def waited(scene: Scene) -> float:
    """How long the second of two epochs waits, with a checkpoint under way."""
    scene.seconds = 5.0
    scene.hold()
    scene.consider(0.1)
    scene.hold()
    began = scene.world.now
    scene.consider()
    return scene.world.now - began


def test_with_block_an_epoch_waits_for_a_checkpoint_that_is_late(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    assert waited(scene) > 4.0 and scene.intervals.skipped == 1
    assert scene.durable == [(-1, 0)]


def test_with_replace_epochs_do_not_wait_and_the_next_checkpoint_covers_more(world: World) -> None:
    scene = Scene(world, seconds=0.0, when_full="replace")
    assert waited(scene) < 1.0 and scene.intervals.skipped == 1
    scene.consider(6.0)
    scene.hold()
    scene.consider(6.0)
    assert scene.durable == [(-1, 0), (0, 2)] and scene.published == [0, 1, 2]


def test_too_many_epochs_are_waited_for_in_any_case(world: World) -> None:
    scene = Scene(world, seconds=0.0, when_full="replace", epochs=2)
    scene.seconds = 5.0
    scene.hold()
    scene.consider(0.1)
    scene.hold()
    began = scene.world.now
    scene.consider()
    assert scene.world.now - began > 4.0


def test_finish_waits_for_the_checkpoint_under_way_and_writes_the_rest(world: World) -> None:
    scene = Scene(world, seconds=0.0)
    scene.seconds = 1.0
    scene.hold()
    scene.consider()
    scene.hold()
    scene.run(scene.intervals.finish)

    assert scene.durable[-1][1] == 1 and scene.published == [0, 1]
    assert scene.journal.published == 1 and journal_of(scene.store).published <= 1

"""The write queue on a simulated clock: order, bounds, batches, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from millstream.errors import MillstreamError
from millstream.node.durability.write_queue import (
    Entry,
    EntryReplacedError,
    WriteQueue,
    WriteQueueOptions,
)
from millstream.node.typed_errors import StoreWriteError
from millstream.sim import World
from millstream.sim.network import SimNet
from millstream.stores.store import StoreUnavailableError
from millstream.wire.receipts import StoredRecord
from tests.checkpoints.memory_store import MemoryStore
from tests.node.durability.durable_scenes import FailingStore

T = TypeVar("T")


class SlowStore(MemoryStore):
    """Takes a second for every batch, and remembers what came in which."""

    def __init__(self, net: SimNet) -> None:
        super().__init__()
        self.net = net
        self.batches: list[list[str]] = []
        self.problem: MillstreamError | None = None

    def put(self, items: Mapping[str, bytes]) -> None:
        self.net.sleep(1.0)
        self.batches.append(list(items))
        if self.problem is not None:
            raise self.problem
        super().put(items)


class Desk:
    """A write queue, its slow store, and a process that enqueues."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.net = world.process("node")
        self.store = SlowStore(self.net)
        self.queue = WriteQueue(self.net, self.store, WriteQueueOptions(**options))
        self.results: list[tuple[str, Any]] = []
        self.serialised: list[str] = []

    def entry(self, key: str, name: str | None = None) -> Entry:
        def serialise() -> bytes:
            self.serialised.append(key)
            return key.encode()

        return Entry(name or key, key, serialise, lambda result: self.results.append((key, result)))

    def enqueue(self, *entries: Entry) -> None:
        def main() -> None:
            for entry in entries:
                self.queue.enqueue(entry)

        self.run(main)
        self.rest()

    def run(self, main: Callable[[], T]) -> T:
        return self.world.run(main, "node", self.world.now + 1_000)

    def rest(self) -> None:
        self.run(lambda: self.net.sleep(100.0))


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


def test_entries_enqueued_during_a_write_form_one_batch(world: World) -> None:
    desk = Desk(world)

    def main() -> None:
        desk.queue.enqueue(desk.entry("a"))
        desk.net.sleep(0.1)
        for key in "bcd":
            desk.queue.enqueue(desk.entry(key))

    desk.run(main)
    desk.rest()

    assert desk.store.batches == [["a"], ["b", "c", "d"]]
    assert desk.results == [(key, StoredRecord(key, 1)) for key in "abcd"]
    counts = desk.queue.counts
    assert (counts.records, counts.bytes, counts.batches) == (4, 4, 2)


def test_callbacks_run_after_the_batch_is_stored(world: World) -> None:
    desk = Desk(world)

    def main() -> list[tuple[str, Any]]:
        desk.queue.enqueue(desk.entry("a"))
        desk.net.sleep(0.9)
        return list(desk.results)

    assert desk.run(main) == []
    desk.rest()
    assert desk.results == [("a", StoredRecord("a", 1))]


def test_a_full_queue_blocks(world: World) -> None:
    desk = Desk(world, entries=2, bytes=2)

    def main() -> float:
        for number in range(20):
            desk.queue.enqueue(desk.entry(f"k{number:02d}"))
        return world.now

    waited = desk.run(main)
    desk.rest()

    assert waited > 3.0 and desk.queue.counts.waited > 0 and desk.queue.counts.replaced == 0
    assert [key for key, _ in desk.results] == [f"k{number:02d}" for number in range(20)]
    assert sorted(desk.store.held) == [f"k{number:02d}" for number in range(20)]


def test_a_newer_entry_takes_the_place_of_an_older_one_that_waits(world: World) -> None:
    desk = Desk(world, entries=2, when_full="replace")
    queue = desk.queue

    def main() -> None:
        with queue._serialising:  # blocks serialisation
            queue.enqueue(desk.entry("old", name="slots"))
            queue.enqueue(desk.entry("other"))
            queue.enqueue(desk.entry("new", name="slots"))

    desk.run(main)
    desk.rest()

    assert desk.results[0] == ("old", None)
    assert desk.serialised == ["other", "new"] and sorted(desk.store.held) == ["new", "other"]
    assert queue.counts.replaced == 1


def test_while_there_is_room_nothing_is_replaced(world: World) -> None:
    desk = Desk(world, entries=3, when_full="replace")
    queue = desk.queue

    def main() -> None:
        with queue._serialising:
            for key in ("old", "new"):
                queue.enqueue(desk.entry(key, name="slots"))

    desk.run(main)
    desk.rest()

    assert sorted(desk.store.held) == ["new", "old"] and queue.counts.replaced == 0


def test_an_error_of_the_store_is_reported_to_all_entries_of_the_batch(world: World) -> None:
    desk = Desk(world)
    desk.store.problem = problem = StoreUnavailableError("no answer")

    desk.enqueue(desk.entry("a"), desk.entry("b"))
    desk.store.problem = None
    desk.enqueue(desk.entry("c"))

    assert desk.results == [("a", problem), ("b", problem), ("c", StoredRecord("c", 1))]


def test_an_entry_that_cannot_be_serialised_does_not_affect_others(world: World) -> None:
    desk = Desk(world)

    def broken() -> bytes:
        raise MillstreamError("no")

    bad = Entry("bad", "bad", broken, lambda result: desk.results.append(("bad", str(result))))
    desk.enqueue(bad, desk.entry("good"))

    assert sorted(map(str, (key for key, _ in desk.results))) == ["bad", "good"]
    assert list(desk.store.held) == ["good"]


def test_write_waits_for_all_entries_and_raises_an_error(world: World) -> None:
    desk = Desk(world)
    stored = desk.run(lambda: desk.queue.write([desk.entry("a"), desk.entry("b")]))
    assert stored == [StoredRecord("a", 1), StoredRecord("b", 1)] and sorted(desk.store.held) == [
        "a",
        "b",
    ]

    desk.store.problem = StoreUnavailableError("no answer")
    with pytest.raises(StoreUnavailableError):
        desk.run(lambda: desk.queue.write([desk.entry("c")]))


def test_write_raises_if_a_newer_entry_replaced_one(world: World) -> None:
    desk = Desk(world, entries=1, when_full="replace")
    queue = desk.queue

    def other() -> None:
        with pytest.raises(EntryReplacedError):
            queue.write([desk.entry("first", name="slots")])

    def both() -> None:
        with queue._serialising:
            desk.net.spawn(other, "first")
            desk.net.sleep(0.5)
            queue.enqueue(desk.entry("second", name="slots"))
        desk.net.sleep(5.0)

    desk.run(both)
    assert list(desk.store.held) == ["second"]


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

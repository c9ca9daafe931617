"""The safekeeper on a simulated clock: order, bounds, batches, and what it tells."""

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
from millstream.sim import World
from millstream.sim.network import SimNet
from millstream.stores.store import StoreUnavailableError
from millstream.wire.messages import Kept
from tests.checkpoints.memory_store import MemoryStore

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
    """A safekeeper, its slow store, and who puts things there."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.net = world.process("node")
        self.store = SlowStore(self.net)
        self.keeper = WriteQueue(self.net, self.store, WriteQueueOptions(**options))
        self.told: list[tuple[str, Any]] = []
        self.serialised: list[str] = []

    def entry(self, key: str, name: str | None = None) -> Entry:
        def serialise() -> bytes:
            self.serialised.append(key)
            return key.encode()

        return Entry(name or key, key, serialise, lambda result: self.told.append((key, result)))

    def keep(self, *entries: Entry) -> None:
        def main() -> None:
            for entry in entries:
                self.keeper.keep(entry)

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


def test_what_comes_while_the_store_writes_goes_out_as_one_batch(world: World) -> None:
    desk = Desk(world)

    def main() -> None:
        desk.keeper.keep(desk.entry("a"))
        desk.net.sleep(0.1)
        for key in "bcd":
            desk.keeper.keep(desk.entry(key))

    desk.run(main)
    desk.rest()

    assert desk.store.batches == [["a"], ["b", "c", "d"]]
    assert desk.told == [(key, Kept(key, 1)) for key in "abcd"]
    counts = desk.keeper.counts
    assert (counts.records, counts.bytes, counts.batches) == (4, 4, 2)


def test_nobody_is_told_before_the_store_has_it(world: World) -> None:
    desk = Desk(world)

    def main() -> list[tuple[str, Any]]:
        desk.keeper.keep(desk.entry("a"))
        desk.net.sleep(0.9)
        return list(desk.told)

    assert desk.run(main) == []
    desk.rest()
    assert desk.told == [("a", Kept("a", 1))]


def test_a_full_queue_makes_whoever_has_more_wait(world: World) -> None:
    desk = Desk(world, entries=2, bytes=2)

    def main() -> float:
        for number in range(20):
            desk.keeper.keep(desk.entry(f"k{number:02d}"))
        return world.now

    waited = desk.run(main)
    desk.rest()

    assert waited > 3.0 and desk.keeper.counts.waited > 0 and desk.keeper.counts.replaced == 0
    assert [key for key, _ in desk.told] == [f"k{number:02d}" for number in range(20)]
    assert sorted(desk.store.held) == [f"k{number:02d}" for number in range(20)]


def test_a_newer_entry_takes_the_place_of_an_older_one_that_waits(world: World) -> None:
    desk = Desk(world, entries=2, when_full="replace")
    keeper = desk.keeper

    def main() -> None:
        with keeper._serialising:  # nobody serialises: everything waits
            keeper.keep(desk.entry("old", name="slots"))
            keeper.keep(desk.entry("other"))
            keeper.keep(desk.entry("new", name="slots"))

    desk.run(main)
    desk.rest()

    assert desk.told[0] == ("old", None)
    assert desk.serialised == ["other", "new"] and sorted(desk.store.held) == ["new", "other"]
    assert keeper.counts.replaced == 1


def test_while_there_is_room_nothing_is_replaced(world: World) -> None:
    desk = Desk(world, entries=3, when_full="replace")
    keeper = desk.keeper

    def main() -> None:
        with keeper._serialising:
            for key in ("old", "new"):
                keeper.keep(desk.entry(key, name="slots"))

    desk.run(main)
    desk.rest()

    assert sorted(desk.store.held) == ["new", "old"] and keeper.counts.replaced == 0


def test_a_store_that_fails_is_told_to_everybody_in_the_batch(world: World) -> None:
    desk = Desk(world)
    desk.store.problem = problem = StoreUnavailableError("gone")

    desk.keep(desk.entry("a"), desk.entry("b"))
    desk.store.problem = None
    desk.keep(desk.entry("c"))

    assert desk.told == [("a", problem), ("b", problem), ("c", Kept("c", 1))]


def test_what_cannot_be_serialised_harms_no_other(world: World) -> None:
    desk = Desk(world)

    def broken() -> bytes:
        raise MillstreamError("no")

    bad = Entry("bad", "bad", broken, lambda result: desk.told.append(("bad", str(result))))
    desk.keep(bad, desk.entry("good"))

    assert sorted(map(str, (key for key, _ in desk.told))) == ["bad", "good"]
    assert list(desk.store.held) == ["good"]


def test_keeping_all_waits_for_all_and_raises_what_went_wrong(world: World) -> None:
    desk = Desk(world)
    kept = desk.run(lambda: desk.keeper.keep_all([desk.entry("a"), desk.entry("b")]))
    assert kept == [Kept("a", 1), Kept("b", 1)] and sorted(desk.store.held) == ["a", "b"]

    desk.store.problem = StoreUnavailableError("gone")
    with pytest.raises(StoreUnavailableError):
        desk.run(lambda: desk.keeper.keep_all([desk.entry("c")]))


def test_keeping_all_tells_that_something_newer_came_between(world: World) -> None:
    desk = Desk(world, entries=1, when_full="replace")
    keeper = desk.keeper

    def other() -> None:
        with pytest.raises(EntryReplacedError):
            keeper.keep_all([desk.entry("first", name="slots")])

    def both() -> None:
        with keeper._serialising:
            desk.net.spawn(other, "first")
            desk.net.sleep(0.5)
            keeper.keep(desk.entry("second", name="slots"))
        desk.net.sleep(5.0)

    desk.run(both)
    assert list(desk.store.held) == ["second"]

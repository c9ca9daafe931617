"""The simulated store keeps the protocol of stores, and is as unkind as that allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from millstream.sim.network import SimNet, World
from millstream.sim.store import SimStore, StoreView
from millstream.stores.store import Store, StoreFullError, StoreUnavailableError

ITEMS = {f"data/{number}": b"value" for number in range(6)}


def ask(world: World, work: Callable[[SimNet], object], until: float = 100.0) -> None:
    net = world.process("asker")
    world.run(lambda: work(net), "asker", until)


def test_values_are_there_for_everybody() -> None:
    with World(1) as world:
        store = SimStore(world)

        def work(net: SimNet) -> None:
            view: Store = store.view(net)
            view.put(ITEMS)
            assert view.put_if_absent("data/7", b"one")
            assert not view.put_if_absent("data/7", b"other")
            assert view.get(["data/1", "data/7", "data/8"]) == {
                "data/1": b"value",
                "data/7": b"one",
            }
            view.delete(["data/1", "data/8"])
            assert view.scan("data/")[:2] == ["data/0", "data/2"] and world.now > 0

        ask(world, work)
        assert store.get(["data/7"]) == {"data/7": b"one"}


@pytest.mark.parametrize("seed", range(5))
def test_one_of_several_writers_is_first(seed: int) -> None:
    with World(seed) as world:
        store = SimStore(world)

        def work(net: SimNet) -> list[bool | Exception]:
            nets = [net, *(world.process(f"other-{number}") for number in range(3))]
            told: list[bool] = []
            for number, writer in enumerate(nets):
                value = bytes([number])
                view = store.view(writer)

                def put(view: StoreView = view, value: bytes = value) -> None:
                    told.append(view.put_if_absent("chosen", value))

                writer.spawn(put, "put")
            net.sleep(10)
            assert sorted(told) == [False, False, False, True]
            return list(told)

        ask(world, work)


def test_without_space_some_items_are_refused_and_all_is_well_again_with_it() -> None:
    left = Counter[int]()
    for seed in range(20):
        with World(seed) as world:
            store = SimStore(world)

            def work(net: SimNet, store: SimStore = store) -> None:
                view = store.view(net)
                store.fill_up(5.0, "asker")
                with pytest.raises(StoreFullError):
                    view.put(ITEMS)
                left[len(view.scan("data/"))] += 1
                net.sleep(5.0)
                view.put(ITEMS)
                assert view.get(ITEMS) == ITEMS

            ask(world, work)
    assert set(left) <= set(range(6)) and len(left) > 2


def test_a_crash_leaves_complete_items_only() -> None:
    left = Counter[int]()
    for seed in range(40):
        with World(seed) as world:
            store = SimStore(world)

            def work(net: SimNet, world: World = world, store: SimStore = store) -> None:
                other = world.process("writer")
                other.spawn(lambda: store.view(other).put(ITEMS), "put")
                net.sleep(world.random.random() * 0.003)
                world.crash("writer")
                net.sleep(10)

            ask(world, work)
            left[len(store.scan())] += 1
            assert set(store.get(ITEMS).values()) <= {b"value"}

    assert left[len(ITEMS)] and len(left) > 2


def test_a_store_that_is_away_for_a_while_is_waited_for() -> None:
    with World(1) as world:
        store = SimStore(world)

        def work(net: SimNet) -> None:
            store.go_away(20.0)
            store.view(net).put(ITEMS)
            assert world.now >= 20.0

        ask(world, work)


def test_a_store_that_is_away_for_long_may_have_done_it_all_the_same() -> None:
    with World(1) as world:
        store = SimStore(world)

        def work(net: SimNet) -> None:
            store.go_away(50.0, "asker")
            with pytest.raises(StoreUnavailableError):
                store.view(net).put_if_absent("a", b"b")
            assert not store.scan()
            net.sleep(50.0)

        ask(world, work)
        assert store.scan() == ["a"]


def test_an_answer_may_be_lost_with_the_effect_there_or_not() -> None:
    there = Counter[bool]()
    for seed in range(20):
        with World(seed) as world:
            store = SimStore(world, lose=1.0)

            def work(net: SimNet, store: SimStore = store) -> None:
                with pytest.raises(StoreUnavailableError):
                    store.view(net).put_if_absent("a", b"b")

            ask(world, work)
            there[bool(store.scan())] += 1

    assert there[True] and there[False]

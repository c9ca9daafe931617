"""Several threads, several stores on one place, several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from threading import Barrier

from millstream.stores.store import Store
from tests.contract.backends import Backend
from tests.contract.children import add_links, children, keys_of, value_of, writer


def test_what_others_add_is_seen_without_reopening(backend: Backend) -> None:
    with children(backend.url, 1) as [child], closing(backend.open(writer())) as store:
        for turn in range(5):
            key = f"shared/{turn}"
            assert store.get([key]) == {}
            child.ask("put", {key: f"value {turn}"})
            assert store.get([key]) == {key: b"value %d" % turn}
            assert not store.put_if_absent(key, b"late")

            key = f"mine/{turn}"
            assert child.ask("get", [key]) == {}
            store.put({key: b"mine"})
            assert child.ask("scan", "mine/")[-1:] == [key]
            assert child.ask("get", [key]) == {key: "mine"}
        assert child.ask("put_if_absent", "shared/9", "first")
        assert store.scan("shared/") == [f"shared/{turn}" for turn in (0, 1, 2, 3, 4, 9)]


def test_what_others_replace_or_delete_is_seen_after_a_scan(backend: Backend) -> None:
    with children(backend.url, 1) as [child], closing(backend.open(writer())) as store:
        store.put({"a/1": b"old", "a/2": b"old", "a/3": b"old"})
        assert len(store.get(["a/1", "a/2", "a/3"])) == 3
        child.ask("scan", "")
        child.ask("put", {"a/1": "new"})
        child.ask("delete", ["a/2"])

        assert store.scan("a/") == ["a/1", "a/3"]
        assert store.get(["a/1", "a/2", "a/3"]) == {"a/1": b"new", "a/3": b"old"}


@contextmanager
def opened(backend: Backend, count: int) -> Iterator[list[Store]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(backend.open(writer()))) for _ in range(count)]


def test_of_racing_threads_exactly_one_wins(backend: Backend) -> None:
    rounds, threads = 40, 4
    barrier = Barrier(threads)

    def race(store: Store, name: bytes) -> list[bool]:
        won = []
        for turn in range(rounds):
            barrier.wait(60)
            won.append(store.put_if_absent(f"race/{turn}", name))
        return won

    names = [b"%d" % number for number in range(threads)]
    with opened(backend, 2) as stores, ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(race, stores * 2, names))
        found = stores[0].get(f"race/{turn}" for turn in range(rounds))
    for turn, won in enumerate(zip(*results, strict=True)):
        assert won.count(True) == 1
        assert found[f"race/{turn}"] == names[won.index(True)]


def test_of_racing_processes_exactly_one_wins(backend: Backend) -> None:
    with children(backend.url, 3) as racers:
        for turn in range(40):
            key = f"race/{turn}"
            for racer in racers:
                racer.tell("put_if_absent", key, racer.writer)
            won = [racer.hear() for racer in racers]
            assert won.count(True) == 1
            winner = racers[won.index(True)].writer
            assert [racer.ask("get", [key]) for racer in racers] == [{key: winner}] * 3


def chain_of(store: Store) -> list[tuple[str, str]]:
    keys = store.scan("chain/")
    assert keys == [f"chain/{number:06}" for number in range(len(keys))]
    values = store.get(keys)
    links = [values[key].decode().split() for key in keys]
    return [(name, number) for name, number in links]


def test_processes_that_add_to_a_chain_agree_on_one_order(backend: Backend) -> None:
    count = 15
    with children(backend.url, 2) as adders, closing(backend.open(writer())) as store:
        for adder in adders:
            adder.tell("add_links", count)
        add_links(store, "parent", count)
        for adder in adders:
            adder.hear()
        names = ["parent", *(adder.writer for adder in adders)]
        chain = chain_of(store)
    with closing(backend.open(writer())) as store:
        assert chain_of(store) == chain
    assert len(chain) == count * len(names)
    for name in names:
        assert [link for link in chain if link[0] == name] == [
            (name, str(number)) for number in range(count)
        ]


def test_threads_that_write_at_once_lose_nothing(backend: Backend) -> None:
    def write(store: Store, first: int) -> None:
        for batch in range(first, first + 10):
            store.put({key: value_of(key) for key in keys_of(batch)})
            assert store.get(keys_of(batch)) == {key: value_of(key) for key in keys_of(batch)}
            store.put({f"own/{first}": b"%d" % batch})

    with opened(backend, 2) as stores, ThreadPoolExecutor(4) as pool:
        list(pool.map(write, stores * 2, range(0, 40, 10)))
        names = stores[0].scan("own/")  # by now at the latest, what others replaced is noticed
        assert stores[0].get(names) == {
            f"own/{first}": b"%d" % (first + 9) for first in range(0, 40, 10)
        }
    check_batches(backend.open, range(40))


def test_processes_that_write_at_once_lose_nothing(backend: Backend) -> None:
    with children(backend.url, 3) as writers:
        for number, child in enumerate(writers):
            child.tell("put_batches", 10 * number, 10 * (number + 1))
        for child in writers:
            while child.hear() is not None:
                pass
    check_batches(backend.open, range(30))


def check_batches(open_again: Callable[[str], Store], batches: range) -> None:
    with closing(open_again(writer())) as store:
        for batch in batches:
            assert store.get(keys_of(batch)) == {key: value_of(key) for key in keys_of(batch)}
        assert store.scan("batch/") == sorted(key for batch in batches for key in keys_of(batch))
        assert not list(store.verify())

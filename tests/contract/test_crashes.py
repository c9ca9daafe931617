"""Writers, servers and machines that die lose nothing that was acknowledged."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

from millstream.stores.store import Store
from tests.contract.backends import Backend
from tests.contract.children import children, keys_of, value_of, writer


def test_a_killed_writer_leaves_all_it_acknowledged_and_nothing_torn(backend: Backend) -> None:
    chance = random.Random(backend.url)
    acknowledged: set[int] = set()
    seen = closing(backend.open(writer()))
    with seen as store, children(backend.url, 4) as victims:
        for number, victim in enumerate(victims):
            victim.tell("put_batches", 1000 * number, 1000 * (number + 1))
            acknowledged.update(victim.hear() for _ in range(3))
            time.sleep(chance.uniform(0, 0.03))  # so that the kill happens anywhere
            acknowledged.update(victim.kill())
            check(store, acknowledged)
        # Life goes on, beside what the dead have left.
        assert store.put_if_absent("after", b"them")
    with closing(backend.open(writer())) as store:
        check(store, acknowledged)
        assert not list(store.verify())


def check(store: Store, acknowledged: set[int]) -> None:
    keys = store.scan("batch/")
    assert {key for batch in acknowledged for key in keys_of(batch)} <= set(keys)
    found = store.get(keys)
    assert found == {key: value_of(key) for key in keys}


def test_a_killed_server_has_all_it_acknowledged(backend: Backend) -> None:
    backend.need("crash")
    stop = Event()

    def write(store: Store, first: int) -> list[int]:
        acknowledged = []
        for batch in range(first, first + 1000):
            store.put({key: value_of(key) for key in keys_of(batch)})
            acknowledged.append(batch)
            if stop.is_set():
                break
        return acknowledged

    def race(store: Store, name: bytes) -> list[bool]:
        won: list[bool] = []
        while not stop.is_set() and len(won) < 1000:
            won.append(store.put_if_absent(f"race/{len(won):04}", name))
        return won

    with closing(backend.open(writer())) as one, closing(backend.open(writer())) as two:
        with ThreadPoolExecutor(4) as pool:
            writes = [pool.submit(write, store, n) for n, store in ((0, one), (1000, two))]
            races = [pool.submit(race, store, n) for n, store in ((b"one", one), (b"two", two))]
            for crash in range(3):
                wait_for_keys(one, 12 * crash)
                backend.crash()
            stop.set()
            acknowledged = {batch for written in writes for batch in written.result()}
            first, second = (raced.result() for raced in races)
        check(one, acknowledged)
    with closing(backend.open(writer())) as store:
        check(store, acknowledged)
        for turn in range(max(len(first), len(second))):
            key = f"race/{turn:04}"
            claims = {b"one": first[turn : turn + 1], b"two": second[turn : turn + 1]}
            assert sum(sum(claim) for claim in claims.values()) <= 1
            if all(claims.values()):
                assert claims[store.get([key])[key]] == [True]
        assert not list(store.verify())


def wait_for_keys(store: Store, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(store.scan("batch/")) <= count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_put_survives_a_power_cut(backend: Backend) -> None:
    backend.need("power_cut")
    with backend.power_cut():
        store = backend.open(writer())
        store.put({"a/1": b"old", "a/2": b"two"})
    with closing(backend.open(writer())) as again:
        assert again.get(["a/1", "a/2"]) == {"a/1": b"old", "a/2": b"two"}
    store.close()

    with backend.power_cut():
        store = backend.open(writer())
        assert store.put_if_absent("b", b"first")
    with closing(backend.open(writer())) as again:
        assert not again.put_if_absent("b", b"second")
    store.close()

    with backend.power_cut():
        store = backend.open(writer())
        store.put({"a/1": b"new"})
        store.put({f"c/{n}": value_of(f"c/{n}") for n in range(20)})
    with closing(backend.open(writer())) as again:
        assert again.get(again.scan()) == {
            "a/1": b"new",
            "a/2": b"two",
            "b": b"first",
            **{f"c/{n}": value_of(f"c/{n}") for n in range(20)},
        }
        assert not list(again.verify())
    store.close()

"""Damage is detected, a full disk is reported, and an unavailable store is retried."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from millstream.stores.store import CorruptRecordError, Store, StoreFullError, StoreUnavailableError
from tests.contract.backends import Backend, Harm
from tests.contract.children import value_of, writer

LONG = "long/" + "é" * 190


@pytest.mark.parametrize("harm", ["flip", "tear"])
@pytest.mark.parametrize("key", ["a/2", LONG])
def test_a_damaged_record_is_detected_and_others_are_intact(
    backend: Backend, key: str, harm: Harm
) -> None:
    others = {f"{part}/{n}": value_of(f"{part}/{n}") for part in "ab" for n in (1, 3, 5)}
    with closing(backend.open(writer())) as store:
        store.put({name: others[name] for name in ("a/1", "b/1")})
        store.put({"a/3": others["a/3"], key: os.urandom(5000), "b/3": others["b/3"]})
        store.put({name: others[name] for name in ("a/5", "b/5")})
    backend.damage(key, harm)

    with closing(backend.open(writer())) as store:
        [damage] = store.verify()
        assert damage.key == key
        assert damage.place and damage.offset >= 0 and damage.why
        with pytest.raises(CorruptRecordError) as raised:
            store.get(["a/1", key])
        assert raised.value.damage.key == key
        assert raised.value.damage.place == damage.place
        assert store.get(others) == others
        assert store.scan("a/") == [
            name for name in ("a/1", "a/2", "a/3", "a/5") if name in others or name == key
        ]

        store.put({key: b"mended"})
        assert store.get([key]) == {key: b"mended"}
    with closing(backend.open(writer())) as store:
        assert store.get([key, *others]) == {key: b"mended", **others}


@pytest.mark.parametrize("harm", ["flip", "tear"])
def test_a_damaged_first_value_is_not_absent(backend: Backend, harm: Harm) -> None:
    with closing(backend.open(writer())) as store:
        assert store.put_if_absent("manifest/1", os.urandom(3000))
        assert store.put_if_absent("manifest/2", b"whole")
    backend.damage("manifest/1", harm)

    with closing(backend.open(writer())) as store:
        with pytest.raises(CorruptRecordError):
            store.get(["manifest/1"])
        assert not store.put_if_absent("manifest/1", b"other")
        assert store.scan("manifest/") == ["manifest/1", "manifest/2"]
        assert store.get(["manifest/2"]) == {"manifest/2": b"whole"}


def test_a_full_store_raises_and_resumes_when_there_is_space(small_backend: Backend) -> None:
    backend = small_backend
    large = os.urandom(1 << 20)
    with closing(backend.open(writer())) as store:
        store.put({"before": large})
        with backend.fill_up():
            for _ in range(2):
                with pytest.raises(StoreFullError):
                    store.put({"during/1": large, "during/2": large})
                with pytest.raises(StoreFullError):
                    store.put_if_absent("first", large)
            assert store.get(["before"]) == {"before": large}
        store.put({"after": large, "during/1": b"small"})
        assert store.put_if_absent("first", b"now")
        expected = {"before": large, "after": large, "during/1": b"small", "first": b"now"}
        assert store.get(expected) == expected
    with closing(backend.open(writer())) as store:
        found = store.get(store.scan())
        assert found.pop("during/2", large) == large
        assert found == expected
        assert not list(store.verify())


def test_a_briefly_unavailable_store_is_retried(backend: Backend) -> None:
    backend.need("outage")
    calls: list[tuple[Callable[[Store], object], object]] = [
        (lambda store: store.put({"new": b"value"}), None),
        (lambda store: store.put_if_absent("first", b"value"), True),
        (lambda store: store.get(["old", "none"]), {"old": b"value"}),
        (lambda store: store.scan("o"), ["old"]),
        (lambda store: store.delete(["gone"]), None),
        (lambda store: list(store.verify()), []),
    ]
    with closing(backend.open(writer())) as store, ThreadPoolExecutor(len(calls)) as pool:
        store.put({"old": b"value", "gone": b"value"})
        with backend.outage():
            answers = [pool.submit(call, store) for call, _ in calls]
            time.sleep(0.3)  # so that they meet it
        assert [answer.result(60) for answer in answers] == [expected for _, expected in calls]
    with closing(backend.open(writer())) as store:
        keys = ["first", "new", "old"]
        assert store.scan() == keys
        assert store.get(keys) == dict.fromkeys(keys, b"value")


def test_a_store_that_stays_unavailable_is_an_error(backend: Backend) -> None:
    backend.need("outage")
    calls: list[Callable[[Store], object]] = [
        lambda store: store.put({"new": b"value"}),
        lambda store: store.put_if_absent("first", b"value"),
        lambda store: store.get(["old"]),
        lambda store: store.get(["none"]),
        lambda store: store.scan(),
    ]
    with closing(backend.open(writer(), patience=0.2)) as store:
        store.put({"old": b"value"})
        with backend.outage():
            for call in calls:
                with pytest.raises(StoreUnavailableError, match="patience"):
                    call(store)
    with closing(backend.open(writer())) as store:
        store.put({"later": b"value"})
        assert store.get(["old", "later"]) == {"old": b"value", "later": b"value"}

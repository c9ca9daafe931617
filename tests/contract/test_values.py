"""Values go in, and come out as they were."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.stores.registry import open_store
from millstream.stores.store import BadStoreKeyError, Store
from tests.contract.backends import Backend, with_option
from tests.contract.children import value_of, writer

ODD_KEYS = [
    "a",
    "a/b",
    "a/b/",
    "a//b",
    "/",
    ".",
    "..",
    "../up",
    "a b",
    "A",
    "%",
    "%41",
    "a%2Fb",
    "a_b",
    "a*",
    "a?[x]^",
    "back\\slash",
    "'quotes\"`",
    "semi;colon:",
    "-rf",
    "~",
    "#$&+=@|",
    "{tag}",
    "ä",
    "\uff41",
    "日本語",
    "e\u0301",
    "\U0001f600",
    "con.value",
    "x.part",
    "k" * 255,
    "k" * 256,
    "k" * 400,
    "é" * 200,
]


def test_values_are_read_until_they_are_replaced_or_deleted(backend: Backend) -> None:
    store = backend.open(writer())
    store.put({"a/1": b"one", "a/2": b"two", "b/1": b"three"})
    assert store.get(["a/1", "b/1", "c/1"]) == {"a/1": b"one", "b/1": b"three"}

    store.put({"a/2": b"second", "a/3": b"new"})
    store.delete(["b/1", "c/1"])
    assert store.get(["a/1", "a/2", "a/3", "b/1"]) == {
        "a/1": b"one",
        "a/2": b"second",
        "a/3": b"new",
    }
    assert store.scan() == ["a/1", "a/2", "a/3"]

    store.put({"b/1": b"again"})
    assert store.get(["b/1"]) == {"b/1": b"again"}
    assert not list(store.verify())
    store.close()

    store = backend.open(writer())
    assert store.scan() == ["a/1", "a/2", "a/3", "b/1"]
    assert store.get(["a/2", "b/1"]) == {"a/2": b"second", "b/1": b"again"}
    store.close()


def test_an_empty_store_has_nothing(backend: Backend) -> None:
    store = backend.open(writer())
    store.put({})
    store.delete([])
    store.delete(["a"])
    assert (store.get([]), store.get(["a"]), store.scan(), list(store.verify())) == ({}, {}, [], [])
    store.close()


def test_any_mapping_and_any_iterable_will_do(backend: Backend) -> None:
    store = backend.open(writer())
    store.put(MappingProxyType({"a": b"1", "b": b"2", "c": b"3"}))
    assert store.get(key for key in ("a", "b", "a")) == {"a": b"1", "b": b"2"}
    store.delete(key for key in ("a", "b", "a"))
    assert store.scan() == ["c"]
    store.close()


def test_values_may_be_empty_or_large(backend: Backend) -> None:
    values = {"empty": b"", "byte": b"\0", **{f"large/{n}": os.urandom(8 << 20) for n in range(3)}}
    store = backend.open(writer())
    store.put(values)
    assert store.put_if_absent("first/empty", b"")
    assert store.put_if_absent("first/large", values["large/0"])
    assert store.get(values) == values
    store.close()

    store = backend.open(writer())
    assert store.get(values) == values
    assert store.get(["first/empty", "first/large"]) == {
        "first/empty": b"",
        "first/large": values["large/0"],
    }
    assert not store.put_if_absent("first/empty", b"late")
    assert not list(store.verify())
    store.close()


def test_keys_may_have_special_characters(backend: Backend) -> None:
    values = {key: value_of(key)[:100] for key in ODD_KEYS}
    store = backend.open(writer())
    store.put(values)
    for reader in (store, backend.open(writer())):
        assert reader.get(ODD_KEYS) == values
        assert reader.scan() == sorted(ODD_KEYS, key=str.encode)
        for prefix in ("a", "a/", "a_", "a*", "a?[", "%", "back\\", "..", "k" * 256, "é", "zz"):
            expected = [key for key in ODD_KEYS if key.startswith(prefix)]
            assert reader.scan(prefix) == sorted(expected, key=str.encode)
        reader.close()


@pytest.mark.parametrize(
    "key", ["", "k" * 401, "é" * 201, "a\nb", "a\0", "\x7f", "\u2028", "\ud800", 7, None, b"bytes"]
)
def test_bad_keys_are_rejected(backend: Backend, key: Any) -> None:
    store = backend.open(writer())
    refused: list[Callable[[Store], object]] = [
        lambda store: store.put({"good": b"", key: b""}),
        lambda store: store.put_if_absent(key, b""),
        lambda store: store.get([key]),
        lambda store: store.delete([key]),
    ]
    for call in refused:
        with pytest.raises(BadStoreKeyError):
            call(store)
    store.close()


def test_many_keys_are_listed_in_order(backend: Backend) -> None:
    values = {f"{n % 7}/{n}": b"%d" % n for n in range(1000)}
    store = backend.open(writer())
    store.put(values)
    assert store.scan() == sorted(values)
    assert store.scan("3/1") == sorted(key for key in values if key.startswith("3/1"))
    assert store.get(values) == values
    store.delete(store.scan("3/"))
    assert store.scan() == sorted(key for key in values if not key.startswith("3/"))
    assert not list(store.verify())
    store.close()


def test_put_if_absent_retains_the_first_value(backend: Backend) -> None:
    store = backend.open(writer())
    assert store.put_if_absent("a", b"first")
    assert not store.put_if_absent("a", b"second")
    assert not store.put_if_absent("a", b"first")
    assert store.get(["a"]) == {"a": b"first"}
    store.close()

    store = backend.open(writer())
    assert not store.put_if_absent("a", b"third")
    assert store.get(["a"]) == {"a": b"first"}
    store.delete(["a"])
    assert store.put_if_absent("a", b"fourth")
    assert store.get(["a"]) == {"a": b"fourth"}
    store.close()


def test_a_store_may_be_closed_twice_and_opened_again(backend: Backend) -> None:
    for turn in range(3):
        store = backend.open(writer())
        assert store.scan() == [f"{n}" for n in range(turn)]
        store.put({f"{turn}": b""})
        store.close()
        store.close()


@pytest.mark.parametrize("option", ["patience=soon", "patience=-1", "patience=nan", "colour=blue"])
def test_options_that_are_invalid_are_rejected(backend: Backend, option: str) -> None:
    with pytest.raises(ConfigError, match=option.partition("=")[0]):
        open_store(with_option(backend.url, option), writer())

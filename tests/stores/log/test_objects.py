"""Object stores: whole uploads, no listing where it matters, and answers that get lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from fsspec.implementations.memory import (  # type: ignore[import-untyped]
    MemoryFileSystem,
)

from millstream.stores.log.index import Batch
from millstream.stores.log.objects import ObjectPlace
from millstream.stores.log.options import LogOptions
from millstream.stores.log.segments import Segment
from millstream.stores.log.store import LogStore
from millstream.stores.store import CorruptRecordError, StoreUnavailableError

_numbers = itertools.count()


@pytest.fixture
def url() -> Iterator[str]:
    yield f"memory://bucket{next(_numbers)}/log"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def open_log(url: str, writer: str, *, patience: float = 0) -> LogStore:
    options = LogOptions(segment=4096, grace=0, patience=patience)
    return LogStore(ObjectPlace(url, patience), writer, options)


def objects() -> list[str]:
    return sorted(name for name in MemoryFileSystem.store if "/segments/" in name)


def test_a_log_in_an_object_store_stores_everything(url: str) -> None:
    store = open_log(url, "w")
    store.put({"a/1": b"one", "a/2": b"two"})
    store.put({"a/1": b"new"})
    store.delete(["a/2"])
    assert store.put_if_absent("m", b"first")
    other = open_log(url, "x")
    assert not other.put_if_absent("m", b"second")
    assert other.get(["a/1", "a/2", "m"]) == {"a/1": b"new", "m": b"first"}
    store.put({"late": b"seen"})
    assert other.get(["late"]) == {"late": b"seen"}
    other.delete(["m"])
    assert other.scan() == store.scan() == ["a/1", "late"]
    store.flush()
    store.close()
    again = open_log(url, "y")
    assert "build" in again.timings
    assert again.get(["a/1", "late"]) == {"a/1": b"new", "late": b"seen"}
    assert not list(again.verify())


def test_an_index_that_is_flushed_during_a_put_does_not_hide_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_log(url, "w")
    plain = store._index.add

    def flush_first(segment: Segment, batch: Batch) -> None:
        store.flush()
        plain(segment, batch)

    monkeypatch.setattr(store._index, "add", flush_first)
    store.put({"a": b"1"})

    other = open_log(url, "x")
    assert "build" in other.timings
    assert other.get(["a"]) == {"a": b"1"}
    other.compact()
    assert open_log(url, "y").get(["a"]) == {"a": b"1"}


def test_own_keys_are_written_and_read_without_listing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_log(url, "w")
    store.put({"first": b"1"})

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("listed")

    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    store.put({"second": b"2"})
    assert store.get(["first", "second"]) == {"first": b"1", "second": b"2"}


def test_small_objects_are_merged(url: str) -> None:
    store = open_log(url, "w")
    expected = {f"k/{number}": b"%d" % number for number in range(20)}
    for key, value in expected.items():
        store.put({key: value})
    assert len(objects()) == 20
    reader = open_log(url, "r")
    store.compact()
    assert len(objects()) == 1
    assert store.get(expected) == reader.get(expected) == expected
    assert open_log(url, "x").get(expected) == expected


def test_a_lost_answer_does_not_lose_the_race(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MemoryFileSystem.pipe_file
    lost: list[str] = []

    def lose(self: MemoryFileSystem, path: str, value: bytes, mode: str = "overwrite") -> None:
        plain(self, path, value, mode=mode)
        if mode == "create" and not lost:
            lost.append(path)
            raise ConnectionResetError("the answer was lost")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lose)
    store = open_log(url, "w", patience=5)
    assert store.put_if_absent("m", b"first")
    assert lost
    assert not store.put_if_absent("m", b"first")
    assert store.get(["m"]) == {"m": b"first"}


def test_an_unavailable_store_is_retried_and_then_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = MemoryFileSystem.pipe_file
    left = [2]

    def fail(self: MemoryFileSystem, path: str, value: bytes, mode: str = "overwrite") -> None:
        if left[0]:
            left[0] -= 1
            raise TimeoutError("no answer")
        plain(self, path, value, mode=mode)

    store = open_log(url, "w", patience=5)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    store.put({"a": b"1"})
    assert store.get(["a"]) == {"a": b"1"}

    impatient = open_log(url, "x", patience=0)
    left[0] = 1
    with pytest.raises(StoreUnavailableError):
        impatient.put({"b": b"1"})
    impatient.put({"b": b"2"})
    assert store.get(["b"]) == {"b": b"2"}


def test_a_damaged_object_is_detected(url: str) -> None:
    store = open_log(url, "w")
    store.put({"a": b"value"})
    store.put({"b": b"other"})
    [first, _] = objects()
    file = MemoryFileSystem.store[first]
    data = bytearray(file.getvalue())
    data[data.index(b"value")] ^= 1
    file.seek(0)
    file.write(bytes(data))
    with pytest.raises(CorruptRecordError):
        store.get(["a"])
    again = open_log(url, "r")
    assert [damage.key for damage in again.verify()] == ["a"]
    assert again.get(["b"]) == {"b": b"other"}

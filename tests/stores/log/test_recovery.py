"""A flushed index is a help, and never more: damaged, missing or old, the same is found."""

from __future__ import annotations

import pytest

from millstream.stores.log.segments import Segment
from millstream.stores.log.store import LogStore
from tests.stores.log.disks import ROOT, MemoryDisk, abandon, open_log

KEYS = [f"k/{number:02}" for number in range(40)]


def filled() -> tuple[MemoryDisk, dict[str, bytes]]:
    """A log of several segments, with an index that was flushed halfway."""
    disk = MemoryDisk()
    store = open_log(disk, "w")
    expected: dict[str, bytes] = {}

    def put(keys: list[str], value: bytes) -> None:
        store.put(dict.fromkeys(keys, value))
        expected.update(dict.fromkeys(keys, value))

    put(KEYS[:30], b"first" * 20)
    put(KEYS[5:10], b"second" * 20)
    store.delete(KEYS[:3])
    store.flush()
    put(KEYS[8:12], b"third" * 20)
    put(KEYS[30:], b"fourth" * 20)
    put(KEYS[1:2], b"again")
    store.delete(KEYS[20:23])
    abandon(store)
    for key in (KEYS[0], KEYS[2], *KEYS[20:23]):
        del expected[key]
    assert len(disk.files("segments")) > 2
    return disk, expected


def check(disk: MemoryDisk, expected: dict[str, bytes]) -> LogStore:
    store = open_log(disk, "r")
    assert store.scan() == sorted(expected)
    assert store.get(KEYS) == expected
    return store


def test_an_index_older_than_the_segments_is_completed() -> None:
    disk, expected = filled()
    store = check(disk, expected)
    assert "build" in store.timings
    assert not list(store.verify())


def test_only_what_follows_the_flushed_index_is_read() -> None:
    disk, expected = filled()
    with_index = check(disk, expected)._reader.scanned
    [name] = disk.files("index")
    disk.erase("index", name)
    assert 0 < with_index < check(disk, expected)._reader.scanned / 2


@pytest.mark.parametrize("at", [0, 9, 17, 25, 40, 100, -1])
def test_a_damaged_index_is_not_used(at: int) -> None:
    disk, expected = filled()
    [name] = disk.files("index")
    disk.file("index", name)[at] ^= 8

    store = check(disk, expected)

    assert "build" not in store.timings
    [damage] = store.verify()
    assert damage.place.endswith(name) and "no value is lost" in damage.why


@pytest.mark.parametrize("size", [0, 10, 50, 500])
def test_a_torn_index_is_not_used(size: int) -> None:
    disk, expected = filled()
    [name] = disk.files("index")
    del disk.file("index", name)[size:]
    assert "build" not in check(disk, expected).timings


def test_an_index_with_rows_of_removed_segments_is_used() -> None:
    disk, expected = filled()
    [name] = disk.files("index")
    old = bytes(disk.file("index", name))
    store = open_log(disk, "c")
    store.put(dict.fromkeys(KEYS[3:], b"new"))
    store.delete(KEYS[:3])
    expected = dict.fromkeys(KEYS[3:], b"new")
    before = set(disk.files("segments"))
    while store.compact().removed:
        pass
    store.close()
    assert before - set(disk.files("segments"))
    disk.file("index", name)[:] = old
    check(disk, expected)


def test_a_segment_that_was_created_and_removed_during_a_flush_leaves_no_rows() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    store.put({"a": b"1"})
    other = open_log(disk, "o")
    other.put({"ghost": b"g" * 500})
    other.close()
    store.scan()
    # As a flush finds it that looked for segments before this one came, and for rows in between.
    [name] = [name for name in disk.files("segments") if name.startswith("o.")]
    ghost = store._segments.named(name)
    assert ghost is not None
    disk.erase("segments", name)
    store._segments.drop([ghost])
    store.flush()

    again = open_log(disk, "r")
    again.put({"b": b"2"})
    assert "build" in again.timings
    assert again.get(["a", "b", "ghost"]) == {"a": b"1", "b": b"2"}
    assert again.scan() == ["a", "b"]


def test_what_is_sealed_during_a_flush_is_noted_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    store, writer = open_log(disk, "r"), open_log(disk, "w")
    writer.put({"a": b"1", "b": b"2"})
    store.scan()
    [segment] = store._segments.all()
    looks: list[str] = []

    def look(segment: Segment, name: str) -> object:
        value = object.__getattribute__(segment, name)
        if name in ("sealed", "synced"):
            looks.append(name)
            if len(looks) == 1:
                writer.close()
                store.scan()
        return value

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "__getattribute__", look)
        store.flush()
    again = open_log(disk, "s")
    assert "build" in again.timings
    [known] = again._segments.all()
    assert (known.sealed, known.synced) == (True, segment.synced)
    assert again.get(["a", "b"]) == {"a": b"1", "b": b"2"}


def test_indexes_that_cover_less_are_removed() -> None:
    disk, expected = filled()
    store = open_log(disk, "r")
    store.flush()
    assert disk.files("index") == ["r.idx"]
    check(disk, expected)


@pytest.mark.parametrize("older", ["a.idx", "z.idx"])
def test_the_index_that_covers_most_is_used(older: str) -> None:
    disk, expected = filled()
    [name] = disk.files("index")
    old = bytes(disk.file("index", name))
    with_old = check(disk, expected)._reader.scanned
    open_log(disk, "r").flush()
    assert disk.files("index") == ["r.idx"]
    disk.append(disk.create(f"{ROOT}/index/{older}"), [old])

    assert check(disk, expected)._reader.scanned < with_old

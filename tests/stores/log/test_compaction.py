"""Space is given back, and neither a crash nor another process makes it cost a value."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream.stores.disk import FileGoneError
from millstream.stores.log.format import (
    AROUND_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    Header,
    Kind,
    decode_header,
    read_records,
)
from millstream.stores.log.store import LogStore
from millstream.stores.store import StoreUnavailableError
from tests.stores.log.disks import MemoryDisk, PowerFailure, abandon, open_log

HOUR = 3600 * 10**9
KEYS = [f"k/{number:02}" for number in range(12)]


def sparse(disk: MemoryDisk) -> dict[str, bytes]:
    """Segments of which little counts, one of which nothing does, and tombstones."""
    store = open_log(disk, "w")
    store.put(dict.fromkeys(KEYS, b"old" * 150))
    store.put(dict.fromkeys(KEYS[:9], b"newer" * 100))
    store.put({"gone/1": b"x" * 2000, "gone/2": b"x" * 2000, "kept": b"v" * 500})
    store.delete(["gone/1", "gone/2"])
    store.put({"filler": b"f" * 4000})
    store.put(dict.fromkeys(KEYS[:9], b"newest"))
    store.close()
    assert len(disk.files("segments")) == 5
    expected = dict.fromkeys(KEYS[:9], b"newest")
    expected |= dict.fromkeys(KEYS[9:], b"old" * 150)
    return expected | {"kept": b"v" * 500, "filler": b"f" * 4000}


def check(store: LogStore, expected: dict[str, bytes]) -> None:
    assert store.scan() == sorted(expected)
    assert store.get([*expected, "gone/1", "gone/2"]) == expected


def all_keys(disk: MemoryDisk) -> list[tuple[int, bytes | None]]:
    """Every record in any segment."""
    found = []
    for name in disk.files("segments"):
        data = bytes(disk.file("segments", name))
        header = decode_header(data)
        assert isinstance(header, Header)
        records, _ = read_records(data[HEADER_BYTES:], HEADER_BYTES, header.seed)
        found += [(record.kind, record.key) for record in records]
    return found


def test_compaction_retains_live_records_and_reclaims_the_rest() -> None:
    disk = MemoryDisk()
    expected = sparse(disk)
    store = open_log(disk, "c")
    before = disk.used
    freed = 0
    while (done := store.compact()).removed:
        freed += done.freed
        check(store, expected)
    assert disk.used == before - freed
    assert (Kind.TOMBSTONE, b"gone/1") in all_keys(disk)
    store.put({"filler": b"f"})
    expected["filler"] = b"f"
    while store.compact().removed:
        check(store, expected)
    assert disk.used < before / 2
    values = [key for kind, key in all_keys(disk) if kind == Kind.VALUE]
    assert sorted(key for key in values if key in {name.encode() for name in KEYS}) == [
        name.encode() for name in KEYS
    ]
    assert b"gone/1" not in {key for _, key in all_keys(disk)}
    check(open_log(disk, "r"), expected)


def test_compacting_twice_changes_nothing_more() -> None:
    disk = MemoryDisk()
    sparse(disk)
    store = open_log(disk, "c")
    while store.compact().removed:
        pass
    names = disk.files("segments")
    assert store.compact().removed == store.compact().written == 0
    assert disk.files("segments") == names


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("compactions", [1, 2])
def test_a_crash_at_any_point_of_a_compaction_loses_and_resurrects_nothing(
    power: bool, compactions: int
) -> None:
    calls = 0
    finished = False
    while not finished:
        disk = MemoryDisk(seed=calls)
        expected = sparse(disk)
        store = open_log(disk, "c")
        for _ in range(compactions - 1):
            store.compact()
            # Now the tombstones are alone in their segment, and not needed any more.
            store.put({"filler": b"f"})
            expected["filler"] = b"f"
        disk.calls_left = calls
        try:
            store.compact()
            finished = True
        except PowerFailure:
            abandon(store)
        if power:
            disk.fail_power()
        disk.crash()
        for turn in range(3):
            again = open_log(disk, f"r{turn}")
            check(again, expected)
            assert power or not list(again.verify())
            again.compact()
            check(again, expected)
            abandon(again)
        calls += 1
    assert calls > 3


@pytest.mark.parametrize("seed", range(6))
def test_what_another_process_deleted_stays_deleted_after_its_tombstone_is_dropped(
    seed: int,
) -> None:
    disk = MemoryDisk(seed)
    one, two = open_log(disk, "one"), open_log(disk, "two")
    one.put({"gone": b"x" * 5000})
    two.delete(["gone"])
    two.put({"filler": b"f" * 5000})
    two.put({"filler": b"f"})
    # The process of "one" dies after removing its segment, and before syncing the folder.
    disk.remove(one._place.path("segments", one._segments.all()[0].name))
    abandon(one)

    def fail_power(call: str) -> None:
        if call == "remove":
            removed.append(call)
        elif removed:
            raise PowerFailure

    removed: list[str] = []
    two.close()
    three = open_log(disk, "three")
    disk.before = fail_power
    with pytest.raises(PowerFailure):
        three.compact()
    disk.before = lambda call: None
    disk.fail_power()
    assert open_log(disk, "r").scan() == ["filler"]


def test_a_reader_with_an_older_index_finds_what_was_moved() -> None:
    disk = MemoryDisk()
    expected = sparse(disk)
    reader = open_log(disk, "r")
    reader.get(["kept"])
    compactor = open_log(disk, "c")
    while compactor.compact().removed:
        pass
    reader._place.close()  # it holds no file open
    assert reader.get(expected) == expected


@pytest.mark.parametrize("call", ["create", "append", "sync", "sync_folder"])
def test_a_refresh_while_a_segment_is_created_does_not_register_it_as_foreign(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    expected = sparse(disk)
    store = open_log(disk, "c")
    original, looking = getattr(disk, call), False

    def looked_at(*arguments: object) -> object:
        nonlocal looking
        done = original(*arguments)
        if not looking:
            looking = True
            store.scan()
            looking = False
        return done

    monkeypatch.setattr(disk, call, looked_at)
    for number in range(4):
        store.put({"more": b"m" * 5000, f"more/{number}": b"m"})
        expected |= {"more": b"m" * 5000, f"more/{number}": b"m"}
        store.compact()
        check(store, expected)
    names = [segment.name for segment in store._segments.all()]
    assert len(names) == len(set(names))
    while store.compact().removed:
        check(store, expected)
    check(open_log(disk, "d"), expected)


def test_a_segment_without_a_header_yet_is_read_at_the_next_refresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    reader, writer = open_log(disk, "r"), open_log(disk, "w")
    writer.put({"a": b"1"})
    version = disk.version
    with monkeypatch.context() as patch:
        patch.setattr(disk, "version", lambda path: version(path)._replace(size=0))
        assert reader.get(["a"]) == {}

    assert reader.get(["a"]) == {"a": b"1"}


def test_a_value_that_is_compacted_during_every_read_is_not_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_log(MemoryDisk(), "w")
    store.put({"a": b"1"})

    def moved(*place: Any) -> bytes:
        raise FileGoneError

    with monkeypatch.context() as patch:
        patch.setattr(store._place, "read", moved)
        with pytest.raises(StoreUnavailableError, match="'a' was moved 4 times"):
            store.get(["a"])

    assert store.get(["a"]) == {"a": b"1"}


def test_a_tombstone_stays_while_an_older_value_is_anywhere() -> None:
    disk = MemoryDisk()
    one, two = open_log(disk, "one"), open_log(disk, "two")
    # Its segment is not sealed: nobody but its writer may touch it.
    one.put({"gone": b"x" * 500, "other": b"y"})
    two.delete(["gone"])
    two.put({"filler": b"f" * 5000})
    two.delete(["filler"])
    two.put({"filler": b"f" * 5000})
    for _ in range(3):
        two.compact()
        assert (Kind.TOMBSTONE, b"gone") in all_keys(disk)
        assert open_log(disk, "r").scan() == ["filler", "other"]
    one.close()
    with_all_sealed = open_log(disk, "c")
    while with_all_sealed.compact().removed:
        pass
    two.close()
    while with_all_sealed.compact().removed:
        pass
    assert b"gone" not in {key for _, key in all_keys(disk)}


def test_a_young_tombstone_stays() -> None:
    disk = MemoryDisk()
    sparse(disk)
    store = open_log(disk, "c", grace=3600)
    for _ in range(3):
        store.compact()
        store.put({"filler": b"f"})
    assert (Kind.TOMBSTONE, b"gone/1") in all_keys(disk)
    store.close()

    store = open_log(disk, "d", grace=0)
    while store.compact().removed:
        pass
    assert (Kind.TOMBSTONE, b"gone/1") not in all_keys(disk)


def test_orphaned_segments_are_compacted() -> None:
    disk = MemoryDisk()
    dead = open_log(disk, "dead")
    dead.put({"a": b"1" * 3000, "b": b"2"})
    dead.put({"a": b"3" * 100})
    [left] = disk.files("segments")
    abandon(dead)
    store = open_log(disk, "c")
    store.put({"c": b"x"})
    store.compact()
    assert left in disk.files("segments")

    disk.clock += 2 * HOUR
    store.put({"c": b"y"})
    store.compact()

    assert left not in disk.files("segments")
    assert open_log(disk, "r").get(["a", "b", "c"]) == {"a": b"3" * 100, "b": b"2", "c": b"y"}


def test_many_small_segments_become_one() -> None:
    disk = MemoryDisk()
    expected = {f"k/{number}": b"v%d" % number for number in range(10)}
    for number in range(10):
        store = open_log(disk, f"w{number}")
        store.put({f"k/{number}": b"v%d" % number})
        store.close()
    store = open_log(disk, "c")
    store.compact()
    assert len(disk.files("segments")) == 1
    assert store.get(expected) == expected
    assert open_log(disk, "r").get(expected) == expected


def holding(disk: MemoryDisk, value: bytes) -> tuple[str, bytearray, int]:
    """The segment that holds a value, its content, and where in it the value is."""
    for name in disk.files("segments"):
        data = disk.file("segments", name)
        if value in data:
            return name, data, data.index(value)
    raise AssertionError(value)


@pytest.mark.parametrize("known", [True, False])
def test_a_segment_with_damage_is_left_as_it_is(known: bool) -> None:
    disk = MemoryDisk()
    sparse(disk)
    name, data, at = holding(disk, b"v" * 500)
    if known:
        data[at] ^= 1
    store = open_log(disk, "c")
    if not known:
        data[at] ^= 1
    while store.compact().removed:
        pass
    assert name in disk.files("segments")
    assert [damage.key for damage in store.verify()] == ["kept"]


def test_a_segment_with_unreadable_records_is_not_compacted() -> None:
    disk = MemoryDisk()
    sparse(disk)
    name, data, at = holding(disk, b"newer" * 100)
    before, after = at - HEAD_BYTES, at + 500
    data[before : after + 40] = bytes(after + 40 - before)
    store = open_log(disk, "c")
    while store.compact().removed:
        pass
    assert name in disk.files("segments")


def test_what_crashed_writers_left_unfinished_is_removed_in_time() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    disk.calls_left = 1
    with pytest.raises(PowerFailure):
        store.put_if_absent("a", b"1")
    disk.crash()
    assert len(disk.files("once")) == 1
    store.compact()
    assert len(disk.files("once")) == 1
    disk.clock += 2 * HOUR
    store.compact()
    assert disk.files("once") == []


def test_the_writer_compacts_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.stores.log.store._PAUSE", 0.01)
    disk = MemoryDisk()
    store = open_log(disk, "w")
    for number in range(60):
        store.put({"k": b"%d" % number * 500})
        if number > 20 and len(disk.files("segments")) < 5:
            break
        time.sleep(0.01)  # so that its thread has a turn
    assert len(disk.files("segments")) < 5
    assert store.get(["k"]) == {"k": b"%d" % number * 500}
    store.close()


def test_a_failed_seal_is_reported_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    expected = sparse(disk)
    store = open_log(disk, "c")
    plain = disk.append

    def fail(file: int, pieces: Sequence[bytes]) -> None:
        if len(pieces) == 1 and len(pieces[0]) == AROUND_BYTES:
            raise OSError(errno.EIO, "a moment")
        plain(file, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "append", fail)
        opened = set(disk._open)
        with pytest.raises(StoreUnavailableError, match="sealed"):
            store.compact()
        store._place.close()  # what it holds open for reading
        assert set(disk._open) <= opened
    check(store, expected)
    check(open_log(disk, "d"), expected)
    while store.compact().removed:
        check(store, expected)
    check(open_log(disk, "e"), expected)


def test_maintenance_continues_after_an_error_and_logs_each_kind_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millstream.stores.log.store._PAUSE", 0.001)
    store = open_log(MemoryDisk(), "w")
    errors: list[Exception] = [ValueError("one"), ValueError("two"), KeyError("three")]
    done = threading.Event()

    def compact(*, own_only: bool) -> None:
        if errors:
            store._writer.appended += 1  # there is something to look at again
            raise errors.pop(0)
        done.set()

    monkeypatch.setattr(store._compactor, "compact", compact)
    with caplog.at_level("WARNING", "millstream"):
        store.put({"a": b"1"})
        assert done.wait(10)
    store.close()
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "one",
        "'three'",
    ]


class Stall:
    """A clock for the compactor, and something that happens once, during a call to the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disk: MemoryDisk) -> None:
        self._disk = disk
        self.now = 100.0
        monkeypatch.setattr("millstream.stores.log.compact.uptime", lambda: self.now)

    def at(self, call: str, seconds: float, meanwhile: Callable[[], None]) -> None:
        def stall(made: str) -> None:
            if made == call:
                self._disk.before = lambda call: None
                self.now += seconds
                self._disk.clock += int(seconds * 1e9)
                meanwhile()

        self._disk.before = stall


def test_a_copy_that_others_took_for_sealed_half_written_does_not_replace_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    expected = sparse(disk)
    store, other = open_log(disk, "c"), open_log(disk, "o")

    def adopt() -> None:
        other.scan()
        other._compactor._adopt()
        [half] = [each for each in other._segments.all() if each.name.startswith("c.")]
        assert half.sealed

    Stall(monkeypatch, disk).at("append", 7200, adopt)
    before = set(disk.files("segments"))
    assert store.compact().written == 0
    # Nothing but what is dead anyway is gone, and the copy, on which the other relies, is there.
    assert len(before - set(disk.files("segments"))) == 1
    assert any(name.startswith("c.") for name in disk.files("segments"))
    for each in (store, other, open_log(disk, "r")):
        check(each, expected)

    assert store.compact().written
    while store.compact().removed:
        pass
    assert len(before & set(disk.files("segments"))) == 2  # in which most counts
    other._place.close()  # it holds no file open
    for each in (store, other, open_log(disk, "s")):
        check(each, expected)


@pytest.mark.parametrize("call", ["create", "sync"])
def test_a_late_copy_does_not_restore_what_was_deleted(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    expected = sparse(disk)
    store = open_log(disk, "c", grace=60)
    del expected["kept"]

    def delete() -> None:
        other = open_log(disk, "o")
        other.delete(["kept"])
        other.close()
        while other.compact().removed:
            pass

    Stall(monkeypatch, disk).at(call, 31, delete)
    assert store.compact().written == 0
    assert not [name for name in disk.files("segments") if name.startswith("c.")]
    for each in (store, open_log(disk, "r")):
        check(each, expected)


def test_a_copy_is_not_begun_when_it_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    expected = sparse(disk)
    store = open_log(disk, "c", grace=60)
    stall = Stall(monkeypatch, disk)
    plain = store._compactor._copies

    def slow(*arguments: Any) -> Any:
        stall.now += 31
        return plain(*arguments)

    def refuse(*_: object) -> None:
        raise AssertionError("begun")

    with monkeypatch.context() as patch:
        patch.setattr(store._compactor, "_copies", slow)
        patch.setattr(store._place, "grow", refuse)
        assert store.compact().written == 0
    check(store, expected)
    assert store.compact().written
    check(store, expected)


def test_a_tombstone_that_was_young_at_the_refresh_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    sparse(disk)
    store = open_log(disk, "c", grace=60)
    refresh, clock = store._reader.refresh, time.time_ns
    slow = [0]

    def look(*, twice: bool = False) -> None:
        refresh(twice=twice)
        slow[0] += HOUR

    monkeypatch.setattr(time, "time_ns", lambda: clock() + slow[0])
    monkeypatch.setattr(store._reader, "refresh", look)
    store.compact()
    slow[0] = 0
    store.put({"filler": b"f"})
    store.compact()
    assert (Kind.TOMBSTONE, b"gone/1") in all_keys(disk)

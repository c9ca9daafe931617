"""Group commit, and disks that are full, away or broken for a while."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any

import pytest

from millstream.stores.log.format import Kind
from millstream.stores.stamps import Stamps
from millstream.stores.store import (
    BadStoreKeyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from tests.stores.log.disks import ROOT, MemoryDisk, abandon, open_log

WRITING = {f"Writer.{name}" for name in ("_write", "_write_all", "_begin", "_extend", "_end")}


class Trouble:
    """Makes the first so many calls of some kind fail."""

    def __init__(self, disk: MemoryDisk, call: str, code: int, times: int) -> None:
        self._call, self._code, self.left = call, code, times
        disk.before = self

    def __call__(self, call: str) -> None:
        if call == self._call and self.left:
            self.left -= 1
            raise OSError(self._code, os.strerror(self._code))


def test_concurrent_callers_share_a_sync() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", segment=1 << 20)
    store.put({"first": b"1"})
    gathered = threading.Event()

    def wait(call: str) -> None:
        if call == "sync":
            gathered.wait(10)

    disk.before = wait
    before = disk.calls.count("sync")
    with ThreadPoolExecutor(9) as pool:
        puts = [pool.submit(store.put, {f"k/{n}": b"%d" % n}) for n in range(9)]
        deadline = time.monotonic() + 10
        while len(store._writer._waiting) < 8 and time.monotonic() < deadline:
            time.sleep(0.001)
        gathered.set()
        for put in puts:
            put.result(10)
    assert disk.calls.count("sync") - before == 2
    expected = {f"k/{n}": b"%d" % n for n in range(9)}
    assert store.get(expected) == expected
    abandon(store)
    assert open_log(disk, "r").get(expected) == expected


def test_of_two_racing_puts_the_same_one_is_seen_before_and_after_reopening() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    with ThreadPoolExecutor(4) as pool:
        for turn in range(50):
            list(pool.map(lambda n, turn=turn: store.put({"k": b"%d %d" % (turn, n)}), range(4)))
            assert open_log(disk, "r").get(["k"]) == store.get(["k"])
    store.close()


@pytest.mark.parametrize("call", ["append", "sync", "create"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_and_later_writes_succeed(call: str, code: int) -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", patience=30)
    expected = {}
    if call != "create":
        store.put({"before": b"1"})
        expected["before"] = b"1"
    trouble = Trouble(disk, call, code, 2)
    for _ in range(2):
        with pytest.raises(StoreFullError, match="no space"):
            store.put({"during": b"x" * 2000})
    assert not trouble.left
    store.put({"after": b"2"})
    expected["after"] = b"2"
    reader = open_log(disk, "r")
    for each in (store, reader):
        found = each.get(["before", "during", "after"])
        assert found.pop("during", b"x" * 2000) == b"x" * 2000
        assert found == expected
    store.close()
    assert not list(open_log(disk, "s").verify())


def test_a_full_disk_costs_no_new_segment() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    store.put({"before": b"1"})
    Trouble(disk, "append", errno.ENOSPC, 1)
    with pytest.raises(StoreFullError):
        store.put({"during": b"x" * 2000})
    store.put({"after": b"2"})
    assert len(disk.files("segments")) == 1
    assert disk.calls.count("truncate") == 1


@pytest.mark.parametrize("call", ["append", "sync", "create", "sync_folder"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_an_unavailable_folder_is_retried(call: str, code: int) -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", patience=30)
    trouble = Trouble(disk, call, code, 2)
    store.put({"a": b"1"})
    assert store.put_if_absent("b", b"2")
    store.put({"c": b"3"})
    assert not trouble.left
    assert open_log(disk, "r").get(["a", "b", "c"]) == {"a": b"1", "b": b"2", "c": b"3"}
    store.close()


def test_a_folder_that_stays_unavailable_is_an_error() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", patience=0)
    store.put({"a": b"1"})
    Trouble(disk, "append", errno.EIO, 1)
    with pytest.raises(StoreUnavailableError, match="patience"):
        store.put({"b": b"2"})
    store.put({"b": b"3"})
    assert store.get(["a", "b"]) == {"a": b"1", "b": b"3"}
    store.close()


def test_other_errors_are_raised_at_once() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", patience=30)
    Trouble(disk, "create", errno.EACCES, 1)
    with pytest.raises(StoreError, match="cannot be used"):
        store.put({"a": b"1"})


def test_a_missing_mount_is_not_an_empty_log() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", patience=0)
    store.put({"a": b"1"})
    names, disk._names = disk._names, {ROOT: {}}
    with pytest.raises(StoreUnavailableError):
        store.scan()
    with pytest.raises(StoreUnavailableError):
        store.get(["b"])
    disk._names = names
    assert store.scan() == ["a"]


def test_a_key_is_not_absent_because_its_mount_was_missing() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", patience=30)
    assert store.put_if_absent("m", b"1")
    names, disk._names = disk._names, {ROOT: {}}
    back = threading.Timer(0.1, lambda: setattr(disk, "_names", names))
    back.start()
    assert store.get(["m"]) == {"m": b"1"}
    back.join()


def test_a_link_whose_answer_was_lost_still_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    plain = disk.link
    lost: list[str] = []

    def lose(old: str, new: str) -> None:
        plain(old, new)
        if not lost:
            lost.append(new)
            raise OSError(errno.EIO, "the answer was lost")

    monkeypatch.setattr(disk, "link", lose)
    store = open_log(disk, "w", patience=5)
    assert store.put_if_absent("m", b"first")
    assert not store.put_if_absent("m", b"first")
    assert disk.files("once") == ["k-m"]


def test_a_segment_that_rested_for_long_is_not_appended_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("millstream.stores.log.writer.uptime", lambda: now[0])
    disk = MemoryDisk()
    store = open_log(disk, "w")
    store.put({"a": b"1"})
    now[0] += 800
    store.put({"b": b"2"})
    assert len(disk.files("segments")) == 1
    now[0] += 901
    store.put({"c": b"3"})
    assert len(disk.files("segments")) == 2

    def pause(call: str) -> None:
        if call == "sync" and len(disk.files("segments")) == 2:
            now[0] += 901

    disk.before = pause
    patient = store._place
    monkeypatch.setattr(patient, "_patience", 5)
    store.put({"d": b"4"})
    assert len(disk.files("segments")) == 3
    assert open_log(disk, "r").scan() == ["a", "b", "c", "d"]


def test_segments_are_sealed_when_they_are_full() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", segment=4096)
    for number in range(10):
        store.put({f"k/{number}": bytes(1000)})
    assert len(disk.files("segments")) == 3
    reader = open_log(disk, "r")
    assert sorted(segment.sealed for segment in reader._segments.all()) == [False, True, True]
    store.close()
    assert all(segment.sealed for segment in open_log(disk, "s")._segments.all())


def test_stamps_rise_whatever_the_clock_does() -> None:
    times = iter([100, 50, 50, 1000])
    stamps = Stamps(lambda: next(times))
    assert list(stamps.take(3)) == [100, 101, 102]
    assert list(stamps.take(1)) == [103]
    stamps.saw(500)
    assert list(stamps.take(1)) == [501]
    assert list(stamps.take(1)) == [1000]


def test_a_deletion_is_newer_than_a_value_from_a_clock_that_is_ahead() -> None:
    disk = MemoryDisk()
    ahead = open_log(disk, "ahead")
    ahead._stamps.saw(time.time_ns() + 10**12)
    ahead.put({"a": b"1"})
    behind = open_log(disk, "behind")
    behind.delete(["a"])
    assert open_log(disk, "r").scan() == []
    row = behind._index.find("a")
    assert row is not None and row.kind == Kind.TOMBSTONE


def test_a_bad_key_among_many_is_named_and_nothing_is_written() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    for bad in ("", "a\nb", "k" * 401, "\ud800"):
        with pytest.raises(BadStoreKeyError):
            store.put({"good": b"1", bad: b"2"})
    assert store.scan() == []


def test_a_closed_store_raises_a_clear_error() -> None:
    store = open_log(MemoryDisk(), "w")
    store.put({"a": b"1"})
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.put({"a": b"2"})


def interrupted(put: Callable[[], None], line: int) -> bool:
    """Call, and interrupt this thread at one of the lines that write; whether there are so many."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_qualname not in WRITING:
            return None
        if event == "line":
            left -= 1
            if not left:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        put()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("size", [100, 5000])
@pytest.mark.parametrize("first", [{}, {"a": b"1" * 100}])
def test_an_interruption_at_any_point_of_a_put_shifts_nothing(
    first: dict[str, bytes], size: int
) -> None:
    for line in itertools.count(1):
        disk = MemoryDisk()
        store = open_log(disk, "w")
        store.put(first)
        during = {"b": b"2" * size}
        if not interrupted(partial(store.put, during), line):
            break
        after = {"c": b"3" * 100, "d": b"4" * 100}
        for key, value in after.items():
            store.put({key: value})
        others = open_log(disk, "r")
        for each in (store, others):
            found = each.get([*first, *during, *after])
            # It may be there, though its put was not acknowledged.
            assert found in (first | after, first | during | after)
        assert store.scan() == others.scan()
        abandon(store)
    assert line > 20


def test_an_interrupted_seal_shifts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w")
    plain = disk.append

    def interrupted(file: int, pieces: Sequence[bytes]) -> None:
        plain(file, pieces)
        if len(pieces) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put({"a": b"1" * 5000})
    store.put({"b": b"2"})
    assert len(disk.files("segments")) == 2
    for each in (store, open_log(disk, "r")):
        assert each.get(["a", "b"]) == {"a": b"1" * 5000, "b": b"2"}

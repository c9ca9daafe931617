"""How long ``log://`` needs to have its index back: as it was flushed, and after a crash."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path
from statistics import median

from benchmarks.goals import Goal
from benchmarks.harness import Result
from benchmarks.store_work import VALUE_BYTES, Values
from millstream.stores.log import open_store

PARTS = ("read", "checksum", "build", "scan")
_AT_ONCE = 1_000


def rebuilds(url: str, folder: Path, label: str, *, opens: int, at_most: float) -> list[Result]:
    """Open the log several times; the parts of it, and the plain reading of the file beside them.

    *Cold* is once with the file out of the page cache.
    """
    file = flushed_index(folder)
    times: dict[str, list[float]] = {}
    for number in range(opens):
        for part, seconds in _opening(url, f"open{number}").items():
            times.setdefault(part, []).append(seconds * 1000)
        times.setdefault("plain_read", []).append(_plain_read(file) * 1000)
    name = f"index_rebuild_{label}"
    _forget(file)
    cold_read = _plain_read(file) * 1000
    _forget(file)
    cold = _opening(url, "cold")["all"] * 1000
    return [
        Goal(f"{name}_ms", median(times.pop("all")), "ms", at_most=at_most),
        *(Result(f"{name}_{part}_ms", median(took), "ms") for part, took in times.items()),
        Result(f"{name}_cold_ms", cold, "ms"),
        Result(f"{name}_cold_plain_read_ms", cold_read, "ms"),
        Result(f"{name}_file_mb", file.stat().st_size / 1e6, "MB"),
    ]


def rebuild_after_crash(url: str, label: str, *, keys: int, tail: int) -> list[Result]:
    """Open the log after a crash that left so many bytes behind what was flushed."""
    crash = multiprocessing.get_context("spawn").Process(
        target=_write_and_crash, args=(url, keys, tail // VALUE_BYTES)
    )
    crash.start()
    crash.join()
    if crash.exitcode != _CRASHED:
        raise SystemExit("the writer that was to crash failed before")
    took = _opening(url, "after-crash")
    return [
        Result(f"index_rebuild_{label}_tail_ms", took["all"] * 1000, "ms"),
        Result(f"index_rebuild_{label}_tail_scan_ms", took["scan"] * 1000, "ms"),
        Result(f"index_rebuild_{label}_tail_mb", tail / 1e6, "MB"),
    ]


def flushed_index(folder: Path) -> Path:
    """The file in which a log's index was flushed."""
    files = sorted((folder / "index").glob("*.idx"), key=lambda file: file.stat().st_size)
    if not files:
        raise SystemExit(f"{folder} has no flushed index")
    return files[-1]


def _opening(url: str, writer: str) -> dict[str, float]:
    began = time.perf_counter()
    store = open_store(url, writer)
    took = time.perf_counter() - began
    # Not closed: that might flush what it has read, and make the next opening another one.
    return {"all": took, **{part: store.timings.get(part, 0.0) for part in PARTS}}


def _plain_read(file: Path) -> float:
    began = time.perf_counter()
    file.read_bytes()
    return time.perf_counter() - began


def _forget(file: Path) -> None:
    """Have the system drop a file from its page cache."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


_CRASHED = 3


def _write_and_crash(url: str, keys: int, writes: int) -> None:
    store = open_store(url, "crasher")
    chance = random.Random(1)
    values = Values(chance)
    for first in range(0, writes, _AT_ONCE):
        many = min(_AT_ONCE, writes - first, keys)
        store.put(values.of(chance.sample(range(keys), many)))
    os._exit(_CRASHED)

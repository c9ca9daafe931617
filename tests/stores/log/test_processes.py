"""Real processes on one folder: killed while they write, flush and compact."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.stores.log.store import LogStore
from millstream.stores.registry import open_store

OPTIONS = "?segment=16KB&flush=64KB&grace=0"
KEYS = 20
CHILD = """
import sys
from millstream.stores.registry import open_store
url, writer, own = sys.argv[1:]
store = open_store(url, writer)
print("open", flush=True)
number = 0
while True:
    number += 1
    value = b"%d " % number * 200
    store.put({f"{own}/{(number + each) % 20}": value for each in range(3)})
    if number % 5 == 0:
        store.delete([f"{own}/{(number - 1) % 20}"])
    print(number, flush=True)
    if number % 7 == 0:
        store.compact()
"""


def expected_after(number: int, own: str) -> dict[str, bytes]:
    """What a child has written when it has said a number."""
    found: dict[str, bytes] = {}
    for turn in range(1, number + 1):
        for each in range(3):
            found[f"{own}/{(turn + each) % KEYS}"] = b"%d " % turn * 200
        if turn % 5 == 0:
            found.pop(f"{own}/{(turn - 1) % KEYS}", None)
    return found


@contextmanager
def child(url: str, writer: str, own: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", CHILD, url, writer, own]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def kill(process: subprocess.Popen[str]) -> int:
    """Kill it; the last number that it said."""
    assert process.stdout is not None
    process.kill()
    lines = process.stdout.read().splitlines(keepends=True)
    return int([line for line in lines if line.endswith("\n")][-1])


def check(store: LogStore, said: int, own: str) -> None:
    """All that was acknowledged is there; the call that was cut off did all, some, or nothing."""
    before, after = expected_after(said, own), expected_after(said + 1, own)
    found = store.get([f"{own}/{number}" for number in range(KEYS)])
    assert set(store.scan(f"{own}/")) == set(found)
    cut_off = expected_after(said, own) | {
        f"{own}/{(said + 1 + each) % KEYS}": b"%d " % (said + 1) * 200 for each in range(3)
    }
    for number in range(KEYS):
        key = f"{own}/{number}"
        assert found.get(key) in (before.get(key), cut_off.get(key), after.get(key)), key


def test_killed_writers_leave_all_they_acknowledged(tmp_path: Path) -> None:
    url = f"log://{tmp_path}/log{OPTIONS}"
    chance = random.Random(5)
    said: dict[str, int] = {}
    for turn in range(3):
        names = [f"w{turn}", f"v{turn}"]
        with child(url, names[0], names[0]) as one, child(url, names[1], names[1]) as two:
            time.sleep(chance.uniform(0.2, 0.4))  # so that the kill happens anywhere
            for name, process in zip(names, (one, two), strict=True):
                said[name] = kill(process)
        store = open_store(url, f"r{turn}")
        assert isinstance(store, LogStore)
        for own, number in said.items():
            check(store, number, own)
        assert not list(store.verify())
        while store.compact().removed:
            pass
        for own, number in said.items():
            check(store, number, own)
        store.close()
    assert min(said.values()) > 7


def test_a_reader_sees_every_key_while_others_compact(tmp_path: Path) -> None:
    url = f"log://{tmp_path}/log{OPTIONS}"
    keys = [f"steady/{number}" for number in range(10)]
    store = open_store(url, "w")
    store.put({key: key.encode() * 50 for key in keys})
    store.close()
    reader = open_store(url, "r")
    with child(url, "a", "a"), child(url, "b", "b"):
        for _ in range(60):
            assert reader.get(keys) == {key: key.encode() * 50 for key in keys}
            assert reader.scan("steady/") == sorted(keys)
            other = reader.get([f"a/{number}" for number in range(KEYS)])
            assert all(len(set(value.split())) == 1 for value in other.values())
    reader.close()

"""Other processes that use a store: one command per line on their input, one answer per line."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millstream.stores.registry import open_store
from millstream.stores.store import Store

_ROOT = Path(__file__).parents[2]
_numbers = itertools.count()
BATCH = 6


def writer(stem: str = "w") -> str:
    """A writer's name that was never used before."""
    return f"{stem}{next(_numbers)}"


class Child:
    """A process with a store open."""

    def __init__(self, url: str) -> None:
        self.writer = writer("child")
        command = [sys.executable, "-m", "tests.contract.children", url, self.writer]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def tell(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the child has died"
        return json.loads(line)

    def ask(self, *command: object) -> Any:
        self.tell(*command)
        return self.hear()

    def kill(self) -> list[Any]:
        """End it with SIGKILL; what it had said and was not heard yet."""
        assert self._process.stdout is not None
        self._process.kill()
        rest = self._process.stdout.read().splitlines(keepends=True)
        self.end()
        return [json.loads(line) for line in rest if line.endswith("\n")]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def children(url: str, count: int) -> Iterator[list[Child]]:
    """Processes that have opened a store."""
    started: list[Child] = []
    try:
        started += (Child(url) for _ in range(count))
        for child in started:
            assert child.hear() == "open"
        yield started
    finally:
        for child in started:
            child.end()


def value_of(key: str) -> bytes:
    """The one value that is ever written under a key: up to 64 KB that do not compress."""
    seed = hashlib.sha256(key.encode()).digest()
    return hashlib.shake_256(seed).digest(seed[0] << 8 | seed[1])


def keys_of(batch: int) -> list[str]:
    return [f"batch/{batch:04}/{number}" for number in range(BATCH)]


def add_links(store: Store, name: str, count: int) -> None:
    """Add links to a chain that others add to as well, each at the end that was seen last."""
    added = 0
    while added < count:
        end = len(store.scan("chain/"))
        added += store.put_if_absent(f"chain/{end:06}", f"{name} {added}".encode())


def _obey(store: Store, name: str, command: str, *given: Any) -> Any:
    match command, given:
        case "put", (values,):
            store.put({key: value.encode() for key, value in values.items()})
        case "put_if_absent", (key, value):
            return store.put_if_absent(key, value.encode())
        case "get", (keys,):
            return {key: value.decode() for key, value in store.get(keys).items()}
        case "scan", (prefix,):
            return store.scan(prefix)
        case "delete", (keys,):
            store.delete(keys)
        case "add_links", (count,):
            add_links(store, name, count)
        case "put_batches", (first, last):
            for batch in range(first, last):
                store.put({key: value_of(key) for key in keys_of(batch)})
                _say(batch)
        case _:
            raise ValueError(command)
    return None


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def _main(url: str, name: str) -> None:
    store = open_store(url, name)
    _say("open")
    for line in sys.stdin:
        _say(_obey(store, name, *json.loads(line)))
    store.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])

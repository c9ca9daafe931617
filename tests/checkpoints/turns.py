"""Programs on one store that take turns: each of their calls to it waits until it is their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from millstream.stores.store import Damage, Store


class Turns:
    """Runs programs in threads of which one at a time is awake, between two calls to the store."""

    def __init__(self, store: Store, programs: Mapping[str, Callable[[Store], None]]) -> None:
        self._programs = {
            name: _Program(_Shared(store), program) for name, program in programs.items()
        }

    @property
    def waiting(self) -> list[str]:
        """The programs that have not ended."""
        return [name for name, program in self._programs.items() if not program.is_over]

    def take(self, name: str) -> None:
        """Let a program make its next call, and go on until it wants to make another."""
        self._programs[name].go_on()

    def finish(self) -> None:
        """Let all programs run to their ends, one after the other."""
        for name in list(self._programs):
            while name in self.waiting:
                self.take(name)


class _Program:
    def __init__(self, store: _Shared, program: Callable[[Store], None]) -> None:
        self._turn, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._problem: BaseException | None = None
        self.is_over = False
        store.turn = self._pause
        self._thread = threading.Thread(target=self._run, args=(program, store), daemon=True)
        self._thread.start()
        self._done.acquire()
        self._check()

    def _pause(self) -> None:
        self._done.release()
        self._turn.acquire()

    def _run(self, program: Callable[[Store], None], store: Store) -> None:
        try:
            program(store)
        except BaseException as problem:
            self._problem = problem
        self.is_over = True
        self._done.release()

    def go_on(self) -> None:
        self._turn.release()
        self._done.acquire()
        self._check()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem


class _Shared:
    """A store that waits for its program's turn before every call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.turn: Callable[[], None] = lambda: None

    def put(self, items: Mapping[str, bytes]) -> None:
        self.turn()
        self._store.put(items)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        self.turn()
        return self._store.put_if_absent(key, value)

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        self.turn()
        return self._store.get(keys)

    def scan(self, prefix: str = "") -> list[str]:
        self.turn()
        return self._store.scan(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:  # which no store promises to do at once
            self.turn()
            self._store.delete([key])

    def verify(self) -> Iterator[Damage]:
        return self._store.verify()

    def close(self) -> None:
        return

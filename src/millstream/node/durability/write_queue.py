"""The safekeeper: what a node wants durable is serialised, then stored, behind its back.

Two bounded queues, as in S4: entries wait to be serialised, and serialised ones to be stored.
All that waits to be stored goes out in one batch, which the store makes durable at once. When the
first queue is full, whoever has more to keep waits and helps (``block``); or, if so chosen, a
newer entry takes the place of an older one of the same name that still waits (``replace``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.errors import MillstreamError
from millstream.stores.store import Store
from millstream.wire.messages import Kept, WriteQueueCounts
from millstream.wire.net import Net

WhenFull = Literal["block", "replace"]
_LOOK_AGAIN = 0.001


@dataclass(frozen=True, kw_only=True)
class WriteQueueOptions:
    """How much may wait, and what happens when it is more."""

    entries: int = 256
    bytes: int = 64 * 2**20
    when_full: WhenFull = "block"


@dataclass(frozen=True)
class Entry:
    """Something to be kept: how to serialise it, under which key, and whom to tell.

    ``done`` gets where it is kept, or what went wrong, or None if a newer entry of the same
    ``name`` took its place; that one must then say what this one would have said.
    """

    name: Hashable
    key: str
    serialise: Callable[[], bytes]
    done: Callable[[Kept | MillstreamError | None], None] = field(default=lambda _: None)


@dataclass(frozen=True)
class _Serialised:
    entry: Entry
    data: bytes


class EntryReplacedError(MillstreamError):
    """Something was not kept because something newer of the same name came before its turn."""


class StoreWriteError(MillstreamError):
    """Something could not be serialised or stored, for a reason that has no type of ours."""


class WriteQueue:
    """Keeps entries in a store."""

    def __init__(self, net: Net, store: Store, options: WriteQueueOptions | None = None) -> None:
        self._net = net
        self._store = store
        self._options = options or WriteQueueOptions()
        self._lock = net.lock()
        self._serialising = net.lock()
        self._storing = net.lock()
        self._waiting: list[Entry] = []
        self._ready: list[_Serialised] = []
        self._at_work = False
        self.counts = WriteQueueCounts()

    @property
    def store(self) -> Store:
        return self._store

    def keep(self, entry: Entry) -> None:
        """Take an entry; waits if too many are queued already."""
        while not self._take(entry):
            self.counts.waited += 1
            self._serialise(1)
            if self._is_heavy():
                self._write()

    def keep_all(self, entries: Iterable[Entry]) -> list[Kept]:
        """Keep entries and wait until all are durable; raises what went wrong with one.

        An entry that was replaced by a newer one raises ``EntryReplacedError``.
        """
        results: list[Kept | MillstreamError | None] = []
        number = 0
        for entry in entries:
            self.keep(replace(entry, done=results.append))
            number += 1
        while len(results) < number:
            self._net.sleep(_LOOK_AGAIN)
        kept: dict[str, Kept] = {}
        for result in results:
            if isinstance(result, MillstreamError):
                raise result
            if result is None:
                raise EntryReplacedError(
                    "a newer state took the place of one that was still queued"
                )
            kept[result.key] = result
        return list(kept.values())

    def _take(self, entry: Entry) -> bool:
        replaced: Entry | None = None
        with self._lock:
            if len(self._waiting) >= self._options.entries:
                replaced = self._older(entry)
                if replaced is None:
                    return False
                self._waiting.remove(replaced)
                self.counts.replaced += 1
            self._waiting.append(entry)
            begin, self._at_work = not self._at_work, True
        if replaced is not None:
            replaced.done(None)
        if begin:
            self._net.spawn(self._work, "safekeeper")
        return True

    def _older(self, entry: Entry) -> Entry | None:
        if self._options.when_full != "replace":
            return None
        return next((older for older in self._waiting if older.name == entry.name), None)

    def _work(self) -> None:
        while True:
            while self._serialise(16) and not self._is_heavy():
                pass
            self._write()
            with self._lock:
                if not self._waiting and not self._ready:
                    self._at_work = False
                    return

    def _is_heavy(self) -> bool:
        with self._lock:
            return sum(len(item.data) for item in self._ready) >= self._options.bytes

    def _serialise(self, most: int) -> bool:
        """Serialise a few entries, in their order; whether there were any."""
        with self._serialising:
            with self._lock:
                entries, self._waiting = self._waiting[:most], self._waiting[most:]
            for entry in entries:
                started = self._net.now()
                try:
                    item = _Serialised(entry, entry.serialise())
                except Exception as problem:
                    entry.done(typed(problem, entry.key))
                    continue
                self.counts.serialise_seconds += self._net.now() - started
                with self._lock:
                    self._ready.append(item)
            return bool(entries)

    def _write(self) -> None:
        """Store all that is serialised, as one batch."""
        with self._storing:
            with self._lock:
                batch, self._ready = self._ready, []
            if not batch:
                return
            started = self._net.now()
            problem: MillstreamError | None = None
            try:
                self._store.put({item.entry.key: item.data for item in batch})
            except Exception as found:
                problem = typed(found, batch[0].entry.key)
            self.counts.store_seconds += self._net.now() - started
            self.counts.batches += 1
            for item in batch:
                self.counts.records += 1
                self.counts.bytes += len(item.data)
                item.entry.done(problem or Kept(item.entry.key, len(item.data)))


def typed(problem: Exception, what: str) -> MillstreamError:
    """What went wrong, as an error that travels; nobody would see it if it ended a thread."""
    if isinstance(problem, MillstreamError):
        return problem
    return StoreWriteError(f"{what} could not be kept: {type(problem).__name__}: {problem}")

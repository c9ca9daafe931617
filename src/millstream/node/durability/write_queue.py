"""The write queue of a node: entries are serialised, then written to the store, asynchronously.

Two bounded queues, as in S4: entries wait to be serialised, and serialised ones to be written. All
that waits to be written goes out in one batch, which the store makes durable at once. When the
first queue is full, a thread that enqueues waits and helps (``block``); or, if so configured, a
newer entry replaces an older one of the same name that still waits (``replace``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.errors import MillstreamError
from millstream.node.typed_errors import StoreWriteError, typed
from millstream.stores.store import Store
from millstream.wire.net import Net
from millstream.wire.receipts import StoredRecord, WriteQueueCounts
from millstream.wire.timeouts import POLL_PAUSE

WhenFull = Literal["block", "replace"]
Result = StoredRecord | MillstreamError | None
_SERIALISE_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class WriteQueueOptions:
    """The bounds of the queues, and what happens when they are full."""

    entries: int = 256
    bytes: int = 64 * 2**20
    when_full: WhenFull = "block"


@dataclass(frozen=True)
class Entry:
    """A record to be written: how to serialise it, its key, and a callback.

    ``on_stored`` gets the stored record, or the error, or None if a newer entry of the same
    ``name`` replaced this one; the newer entry must then contain what this one contains.
    """

    name: Hashable
    key: str
    serialise: Callable[[], bytes]
    on_stored: Callable[[Result], None] = field(default=lambda _: None)


@dataclass(frozen=True)
class _Serialised:
    entry: Entry
    data: bytes


class EntryReplacedError(MillstreamError):
    """An entry was not written because a newer one of the same name replaced it."""


class WriteQueue:
    """Writes entries into a store."""

    def __init__(self, net: Net, store: Store, options: WriteQueueOptions | None = None) -> None:
        self._net = net
        self._store = store
        self._options = options or WriteQueueOptions()
        self._lock = net.lock()
        self._serialising = net.lock()
        self._storing = net.lock()
        self._waiting: list[Entry] = []
        self._ready: list[_Serialised] = []
        self._is_running = False
        self.counts = WriteQueueCounts()

    @property
    def store(self) -> Store:
        return self._store

    def enqueue(self, entry: Entry) -> None:
        """Enqueue an entry; block while the queue is full."""
        while not self._accept(entry):
            self.counts.waited += 1
            self._serialise(1)
            if self._is_batch_full():
                self._store_batch()

    def write(self, entries: Iterable[Entry]) -> list[StoredRecord]:
        """Enqueue entries and wait until all are durable, or raise the error of one.

        An entry that was replaced by a newer one raises ``EntryReplacedError``.
        """
        results: list[Result] = []
        number = 0
        for entry in entries:
            self.enqueue(replace(entry, on_stored=results.append))
            number += 1
        while len(results) < number:
            self._net.sleep(POLL_PAUSE)
        stored: dict[str, StoredRecord] = {}
        for result in results:
            if isinstance(result, MillstreamError):
                raise result
            if result is None:
                raise EntryReplacedError("a newer state replaced one that was still queued")
            stored[result.key] = result
        return list(stored.values())

    def _accept(self, entry: Entry) -> bool:
        replaced: Entry | None = None
        with self._lock:
            if len(self._waiting) >= self._options.entries:
                replaced = self._older(entry)
                if replaced is None:
                    return False
                self._waiting.remove(replaced)
                self.counts.replaced += 1
            self._waiting.append(entry)
            begin, self._is_running = not self._is_running, True
        if replaced is not None:
            replaced.on_stored(None)
        if begin:
            self._net.spawn(self._run, "write queue")
        return True

    def _older(self, entry: Entry) -> Entry | None:
        if self._options.when_full != "replace":
            return None
        return next((older for older in self._waiting if older.name == entry.name), None)

    def _run(self) -> None:
        while True:
            while self._serialise(_SERIALISE_AT_ONCE) and not self._is_batch_full():
                pass
            self._store_batch()
            with self._lock:
                if not self._waiting and not self._ready:
                    self._is_running = False
                    return

    def _is_batch_full(self) -> bool:
        with self._lock:
            return sum(len(item.data) for item in self._ready) >= self._options.bytes

    def _serialise(self, most: int) -> bool:
        """Serialise a few entries, in order; return whether there were any."""
        with self._serialising:
            with self._lock:
                entries, self._waiting = self._waiting[:most], self._waiting[most:]
            for entry in entries:
                started = self._net.now()
                try:
                    item = _Serialised(entry, entry.serialise())
                except Exception as problem:
                    entry.on_stored(typed(problem, StoreWriteError, f"serialising {entry.key}"))
                    continue
                self.counts.serialise_seconds += self._net.now() - started
                with self._lock:
                    self._ready.append(item)
            return bool(entries)

    def _store_batch(self) -> None:
        """Write all that is serialised, as one batch."""
        with self._storing:
            with self._lock:
                batch, self._ready = self._ready, []
            if not batch:
                return
            started = self._net.now()
            problem: MillstreamError | None = None
            try:
                self._store.put({item.entry.key: item.data for item in batch})
            except Exception as error:
                problem = typed(error, StoreWriteError, f"storing {batch[0].entry.key}")
            self.counts.store_seconds += self._net.now() - started
            self.counts.batches += 1
            for item in batch:
                self.counts.records += 1
                self.counts.bytes += len(item.data)
                item.entry.on_stored(problem or StoredRecord(item.entry.key, len(item.data)))

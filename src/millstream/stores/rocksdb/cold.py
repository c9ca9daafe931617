"""Cold keys in RocksDB: scratch on a disk of this machine, for state larger than memory.

One database for a node. A row's key is the job, the slot and the key; its value has the key again,
as an object. There is no write-ahead log and nothing is synced: it is lost with the process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocksdict import Rdict, ReadOptions, WriteBatch, WriteOptions

from millstream.ring.keys import one_nan
from millstream.state.key_view import Entries
from millstream.state.pickling import dumps, loads
from millstream.state.spill import Table
from millstream.stores.rocksdb.errors import translated
from millstream.stores.rocksdb.home import open_database, options

_LEAST, _MOST = 1 << 20, 32 << 20
_SHARE = 16  # of the memory that keys may take, what RocksDB has for each of its two needs
_JOB_BYTES, _SLOT_BYTES = 4, 4


class ColdTable:
    """A node's cold keys, in a new folder below the given one."""

    def __init__(self, parent: str, limit: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="millstream-cold-", dir=parent))
        size = min(_MOST, max(_LEAST, limit // _SHARE))
        chosen = options(size, size)
        chosen.create_if_missing(True)
        self._unlogged = WriteOptions()
        # The binding's stubs take this attribute for a method.
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        with translated(self.path):
            self.db: Rdict = open_database(self.path, chosen)

    def of(self, job: int) -> ColdJob:
        """The cold keys of a job."""
        return ColdJob(self, job)

    def write(self, batch: WriteBatch) -> None:
        with translated(self.path):
            self.db.write(batch, self._unlogged)

    def close(self) -> None:
        """Close the database and remove its folder."""
        self.db.close()
        shutil.rmtree(self.path, ignore_errors=True)


class ColdJob:
    """One job's cold keys."""

    def __init__(self, table: ColdTable, job: int) -> None:
        self._table = table
        self._job = job.to_bytes(_JOB_BYTES, "big")

    def put(self, entries: Mapping[int, Mapping[Any, Entries]]) -> None:
        batch = WriteBatch(raw_mode=True)
        for slot, of_slot in entries.items():
            prefix = self._prefix(slot)
            for key, found in of_slot.items():
                batch[prefix + _name(key)] = dumps((key, found))
        self._table.write(batch)

    def get(self, keys: Mapping[int, Iterable[Any]]) -> Table:
        wanted = [(slot, key) for slot, of_slot in keys.items() for key in of_slot]
        with translated(self._table.path):
            rows = self._table.db.get([self._prefix(slot) + _name(key) for slot, key in wanted])
        assert isinstance(rows, list)
        found: Table = {}
        for (slot, key), data in zip(wanted, rows, strict=True):
            if data is not None:
                found.setdefault(slot, {})[key] = loads(data)[1]
        return found

    def remove(self, keys: Mapping[int, Iterable[Any]]) -> None:
        batch = WriteBatch(raw_mode=True)
        for slot, of_slot in keys.items():
            prefix = self._prefix(slot)
            for key in of_slot:
                batch.delete(prefix + _name(key))
        self._table.write(batch)

    def items(self, slot: int) -> Iterator[tuple[Any, Entries]]:
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(self._prefix(slot + 1))
        with translated(self._table.path):
            rows = self._table.db.iter(bounds)
            rows.seek(self._prefix(slot))
            while rows.valid():
                key, entries = loads(rows.value())
                yield one_nan(key), entries
                rows.next()
            rows.status()

    def drop(self, slots: Iterable[int]) -> None:
        batch = WriteBatch(raw_mode=True)
        for slot in slots:
            batch.delete_range(self._prefix(slot), self._prefix(slot + 1))
        self._table.write(batch)

    def _prefix(self, slot: int) -> bytes:
        return self._job + slot.to_bytes(_SLOT_BYTES, "big")


def _name(key: Any) -> bytes:
    """A key as bytes; a job's keys are None or of one type, so that equal ones have equal bytes."""
    if type(key) is str:
        return b"s" + key.encode()
    return b"b" + key if type(key) is bytes else b"r" + repr(key).encode()

"""A writer's home: its database, the lock on it, and the deletions that others left for it.

RocksDB has one writer per database, so every writer has its own, and others only read it. To delete
a key of another writer, a process leaves a *deletion* there: a file with keys and a stamp, which
hides older values from all readers at once, and which the owner applies. If the owner has ended,
the process that gets the lock applies it.

A home without keys is removed: it is first moved out of ``writers``, so that a crash leaves either
a complete home or none. The next writer removes the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from millstream.stores.disk import sync_folder
from millstream.stores.framing import damage_of, frame, unframe
from millstream.stores.rocksdb.errors import translated
from millstream.stores.stamps import Stamps
from millstream.stores.store import Damage

NAMES, VALUES = b"k", b"v"
"""Every key is stored twice, so that a scan of names reads no values."""
STAMP_BYTES = 8
_BATCH_BYTES = 64 << 20


def stamped(stamp: int, value: bytes) -> bytes:
    return stamp.to_bytes(STAMP_BYTES, "little") + value


def stamp_of(data: bytes) -> int:
    return int.from_bytes(data[:STAMP_BYTES], "little")


def options(buffer: int, cache: int) -> Options:
    """RocksDB's settings for writing and for reading."""
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(Cache(cache))
    chosen = Options(raw_mode=True)
    chosen.set_block_based_table_factory(table)
    chosen.set_write_buffer_size(buffer)
    chosen.set_compression_type(DBCompressionType.lz4())
    # Readers have every file open, so that the writer may remove it meanwhile.
    chosen.set_max_open_files(-1)
    # A crash leaves a write-ahead log that ends in mid-record; other damage is an error.
    chosen.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    chosen.set_keep_log_file_num(2)
    chosen.set_stats_dump_period_sec(0)
    return chosen


def open_database(path: Path, chosen: Options, access: AccessType | None = None) -> Rdict:
    """Open a database with just these settings: of an old one, the binding would use its own."""
    access = access or AccessType.read_write()
    return Rdict(str(path), chosen, column_families={"default": chosen}, access_type=access)


class Home:
    """The files of a writer, as others see them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "db"
        self._deletions = path / "deletions"

    def files(self) -> frozenset[tuple[str, int]]:
        """The files that hold the database, with their sizes; none if there is no database."""
        found = set()
        try:
            with os.scandir(self.database) as entries:
                for entry in entries:
                    if entry.name.endswith((".log", ".sst")) or entry.name.startswith("MANIFEST"):
                        found.add((entry.name, entry.stat().st_size))
        except FileNotFoundError:
            pass  # a file that was just removed; the next call lists them again
        return frozenset(found)

    def exists(self) -> bool:
        """Whether there is a database, even a damaged one.

        Without ``CURRENT`` and rows there is none: it was never complete, or is being removed.
        With rows, ``CURRENT`` was lost, and the rows with it.
        """
        files = self.files()
        if (self.database / "CURRENT").exists():
            return bool(files)
        return any(size and name.endswith((".log", ".sst")) for name, size in files)

    def deletions(self) -> Iterator[tuple[Path, int, list[str]]]:
        """The deletions that others left: the file, its stamp, and the keys."""
        for path in self._deletion_files():
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # applied meanwhile
            if damage_of(path.name, data, str(path)) is None:
                keys = unframe(path.name, data, str(path)).decode().split("\n")
                yield path, _stamp_in(path), keys

    def hidden(self) -> dict[str, int]:
        """The keys that others deleted, with the stamp up to which values are hidden."""
        hidden: dict[str, int] = {}
        for _, stamp, keys in self.deletions():
            for key in keys:
                hidden[key] = max(stamp, hidden.get(key, 0))
        return hidden

    def leave_deletion(self, keys: list[str], stamp: int, writer: str) -> None:
        """Leave a deletion for the owner; readers respect it from now on."""
        self._deletions.mkdir(exist_ok=True)
        path = self._deletions / f"{stamp:020}-{writer}"
        draft = path.with_name(f".{path.name}")
        with open(draft, "xb") as file:
            file.write(frame(path.name, "\n".join(keys).encode()))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        sync_folder(self._deletions)
        sync_folder(self.path)

    def verify(self) -> Iterator[Damage]:
        """The deletions that are damaged."""
        for path in self._deletion_files():
            try:
                damage = damage_of(path.name, path.read_bytes(), str(path))
            except FileNotFoundError:
                continue
            if damage is not None:
                yield damage

    def _deletion_files(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self._deletions))
        except FileNotFoundError:
            return []
        return [self._deletions / name for name in names if not name.startswith(".")]


def _stamp_in(path: Path) -> int:
    return int(path.name.partition("-")[0])


class OpenHome(Home):
    """A home that this process has locked, and writes to."""

    def __init__(self, path: Path, chosen: Options) -> None:
        super().__init__(path)
        self._lock = _lock(path)
        self._options = chosen
        self._options.create_if_missing(True)
        self._durable = WriteOptions()
        self._durable.sync = True
        self._db: Rdict | None = None
        try:
            if not self.exists():
                # RocksDB creates no database beside an old write-ahead log.
                shutil.rmtree(self.database, ignore_errors=True)
            self.open()
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def if_unused(cls, path: Path, chosen: Options) -> OpenHome | None:
        """Open the home of a writer that has ended; None if it is in use."""
        try:
            return cls(path, chosen)
        except BlockingIOError:
            return None

    @property
    def db(self) -> Rdict | None:
        """The database; none after an error that may have left it inconsistent."""
        return self._db

    def open(self) -> Rdict:
        """The database, opened again if need be."""
        if self._db is None:
            with translated(self.database):
                self._db = open_database(self.database, self._options)
                sync_folder(self.path)
        return self._db

    def write(self, items: Mapping[str, bytes], stamps: Stamps) -> None:
        """Write values, durably."""
        batch = WriteBatch(raw_mode=True)
        for key, value in items.items():
            name, stamp = key.encode(), stamps.next()
            batch[NAMES + name] = stamped(stamp, b"")
            batch[VALUES + name] = frame(key, stamped(stamp, value))
            if batch.size_in_bytes() > _BATCH_BYTES:
                self._write(batch)
                batch = WriteBatch(raw_mode=True)
        self._write(batch)

    def delete(self, keys: list[str]) -> None:
        """Delete keys, durably."""
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(NAMES + key.encode())
            batch.delete(VALUES + key.encode())
        self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        if batch.is_empty():
            return
        try:
            with translated(self.database):
                self.open().write(batch, self._durable)
        except BaseException:
            self._close_database()
            raise

    def apply_deletions(self, stamps: Stamps) -> None:
        """Delete the keys that others left deletions for, then the deletions."""
        done = []
        for path, stamp, keys in self.deletions():
            stamps.saw(stamp)
            with translated(self.database):
                found = self.open().get([NAMES + key.encode() for key in keys])
            assert isinstance(found, list)
            pairs = zip(keys, found, strict=True)
            self.delete([key for key, data in pairs if data and stamp_of(data) <= stamp])
            done.append(path)
        for path in done:
            path.unlink()

    def is_empty(self) -> bool:
        """Whether the database has no key."""
        with translated(self.database):
            rows = self.open().iter()
            rows.seek_to_first()
            if rows.valid():
                return False
            rows.status()
            return True

    def close(self) -> None:
        """Unlock the home; an empty one is removed."""
        try:
            unused = self.is_empty()
            self._close_database()
            if unused:
                with contextlib.suppress(OSError):
                    _remove(self.path)
        finally:
            self._close_database()
            os.close(self._lock)

    def _close_database(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            # It is closed even if it cannot flush its write-ahead log.
            with contextlib.suppress(Exception):
                db.close()


def remove_leftovers(writers: Path) -> None:
    """Remove what crashes left of homes that were being created or removed."""
    for name in os.listdir(writers):
        if not Home(writers / name).exists():
            # A process that is creating a database there has the lock.
            with contextlib.suppress(OSError):
                _remove_rest(writers / name)
    sync_folder(writers)
    for rest in _removed(writers).glob("*"):
        shutil.rmtree(rest, ignore_errors=True)


def _remove_rest(path: Path) -> None:
    lock = _lock(path)
    try:
        if not Home(path).exists():
            _remove(path)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    """Remove a home whose lock is held: for readers, all of it at once."""
    removed = _removed(path.parent)
    removed.mkdir(exist_ok=True)
    rest = removed / uuid.uuid4().hex
    path.rename(rest)
    # Before any of its files: else a part of it could reappear after a power cut.
    sync_folder(path.parent)
    shutil.rmtree(rest, ignore_errors=True)


def _removed(writers: Path) -> Path:
    return writers.with_name("removed")


def _lock(path: Path) -> int:
    """Take the lock of a home, or raise ``BlockingIOError``.

    Not RocksDB's own, which is taken only by opening the database.
    """
    while True:
        os.makedirs(path, exist_ok=True)
        try:
            descriptor = os.open(path / "lock", os.O_CREAT | os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last owner may have removed the folder since.
            if os.path.samestat(os.fstat(descriptor), os.stat(path / "lock")):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)

"""The store over RocksDB: one database for every writer, read by all.

On disk, below the folder of the URL::

    format                      marks the folder as complete
    once/                       what ``put_if_absent`` has written, a file each (``log.once``)
    writers/<writer>/db/        the database that only this writer writes
    writers/<writer>/deletions/ the keys that others deleted from it
    writers/<writer>/lock       locked while the writer runs
    removed/                    what was in ``writers`` and is being removed
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from rocksdict import Rdict

from millstream.errors import ConfigError
from millstream.stores.disk import sync_folder
from millstream.stores.durable_folder import DurableFolder
from millstream.stores.log.once import Once
from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.rocksdb.errors import translated
from millstream.stores.rocksdb.home import OpenHome, options, remove_leftovers
from millstream.stores.rocksdb.others import Found, Other, held_in, names_in, values_in
from millstream.stores.stamps import Stamps
from millstream.stores.store import CorruptRecordError, Damage, StoreError, check_key

T = TypeVar("T")

_FORMAT = "millstream rocksdb 1"


@dataclass(frozen=True, kw_only=True)
class RocksConfig:
    """Where the databases are, how long to wait for them, and what RocksDB may take in memory."""

    folder: Path
    patience: float = 30.0
    buffer: int = 16 << 20
    cache: int = 8 << 20


class RocksStore:
    """A store in a folder that several processes share."""

    def __init__(self, config: RocksConfig, writer: str) -> None:
        self._config = config
        self._writer = writer
        self._writers = config.folder / "writers"
        if (config.folder / "claims").is_dir():
            raise ConfigError(
                f"{config.folder} was written by an earlier version, whose commits this one cannot "
                "read; use the version that wrote it, or an empty folder"
            )
        self._files = DurableFolder(
            str(config.folder), ("once", "writers"), _FORMAT, writer, config.patience
        )
        self._once = Once(self._files)
        self._stamps = Stamps()
        # One thread at a time writes, and one refreshes; others may read meanwhile.
        self._writing, self._refreshing = threading.Lock(), threading.Lock()
        self._own: OpenHome | None = None
        self._others: dict[str, Other] = {}
        self._hidden: dict[str, int] = {}
        self._closed = False
        self._scratch = tempfile.TemporaryDirectory(prefix="millstream-rocksdb-")

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do something; retry while the store is unavailable."""

        def attempt() -> T:
            if self._closed:
                raise StoreError(f"the store at {self._config.folder} is closed")
            with translated(self._config.folder):
                return act()

        return wait_for(str(self._config.folder), self._config.patience, attempt)

    # -- writing -------------------------------------------------------------------------

    def put(self, items: Mapping[str, bytes]) -> None:
        """Write values; all of them are durable when this returns."""
        for key in items:
            check_key(key)
        if items:
            with self._writing:
                self._patiently(lambda: self._put(items))

    def _put(self, items: Mapping[str, bytes]) -> None:
        own = self._open_own()
        own.write(items, self._stamps)
        own.apply_deletions(self._stamps)

    def _open_own(self) -> OpenHome:
        """This writer's own database; only made when there is something to write."""
        if self._own is None or self._own.db is None:
            with self._refreshing:
                if self._own is None:
                    self._own = self._make_own()
                self._own.open()
                if other := self._others.pop(self._writer, None):
                    other.close()
        return self._own

    def _make_own(self) -> OpenHome:
        remove_leftovers(self._writers)
        self._files.remove_parts()
        chosen = options(self._config.buffer, self._config.cache)
        try:
            own = OpenHome(self._writers / self._writer, chosen)
        except BlockingIOError:
            raise UnavailableError(f"another process writes to it as {self._writer!r}") from None
        sync_folder(self._writers)
        return own

    @property
    def _own_db(self) -> Rdict | None:
        """This writer's own database, if it is open; otherwise it is read like those of others."""
        return None if self._own is None else self._own.db

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value unless the key has one; whether it was written. Durable."""
        check_key(key)
        with self._writing:
            if self._patiently(lambda: self._is_put(key)):
                return False
            return self._once.put(key, value, self._stamps.next())

    def _is_put(self, key: str) -> bool:
        """Whether a database has a value of a key, be it a damaged one.

        Not by ``get``, for which no key is absent while any database is damaged: keys that
        are written once are not in databases, and races for them are decided by a link alone.
        """
        self._refresh()
        db, place = self._own_db, self._writers / self._writer
        if db is not None and held_in(db, place, [key], self._hidden):
            return True
        return any(_holds(other, key) for other in list(self._others.values()))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys, also those that others wrote."""
        unwanted = [check_key(key) for key in keys]
        if unwanted:
            with self._writing:
                self._once.delete(unwanted)
                self._patiently(lambda: self._delete(unwanted))

    def _delete(self, keys: list[str]) -> None:
        self._refresh()
        # Own values last: what they hid elsewhere must not reappear.
        for name, other in list(self._others.items()):
            if held := other.holds(keys):
                stamp = self._stamps.next()
                other.home.leave_deletion(held, stamp, self._writer)
                other.hidden = other.hidden | dict.fromkeys(held, stamp)
                self._reclaim(name, other)
            elif other.is_empty():
                self._reclaim(name, other)
        if self._own is not None:
            self._own.delete(keys)

    def _reclaim(self, name: str, other: Other) -> None:
        """Apply the deletions of a writer that has ended; remove its database if it is empty."""
        chosen = options(self._config.buffer, self._config.cache)
        home = OpenHome.if_unused(other.home.path, chosen)
        if home is not None:
            try:
                home.apply_deletions(self._stamps)
            finally:
                home.close()
            if not other.home.exists():
                with self._refreshing:
                    self._others.pop(name, other).close()

    # -- reading -------------------------------------------------------------------------

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that have one."""
        wanted = [check_key(key) for key in keys]
        if not wanted:
            return {}
        found = self._patiently(lambda: self._look_up(wanted))
        missing = self._once.get([key for key in wanted if key not in found], found)
        if missing:
            found.update(self._patiently(lambda: self._look_again(missing)))
        return found

    def _look_again(self, keys: list[str]) -> dict[str, bytes]:
        """What databases have for keys that were missing, or why it is not known."""
        self._refresh()
        found = self._look_up(keys)
        if len(found) < len(keys):
            for other in list(self._others.values()):
                if other.damage is not None:
                    raise CorruptRecordError(other.damage)
        return found

    def _look_up(self, keys: list[str]) -> dict[str, bytes]:
        """What databases have for keys; what others have written since may be missing."""
        newest: dict[str, Found] = {}
        databases = [other.values(keys) for other in list(self._others.values())]
        if (db := self._own_db) is not None:
            databases.append(values_in(db, self._writers / self._writer, keys, self._hidden))
        for values in databases:
            for key, value in values.items():
                self._stamps.saw(value.stamp)
                if key not in newest or value.stamp > newest[key].stamp:
                    newest[key] = value
        return {key: value.checked() for key, value in newest.items()}

    def scan(self, prefix: str = "") -> list[str]:
        """The keys that begin with a prefix; of damaged databases, those that can be read."""
        keys = self._patiently(lambda: self._scan(prefix))
        return sorted(keys.union(self._once.scan(prefix)), key=str.encode)

    def _scan(self, prefix: str) -> set[str]:
        self._refresh()
        keys: set[str] = set()
        for other in list(self._others.values()):
            keys.update(other.names(prefix))
        if (db := self._own_db) is not None:
            names = names_in(db, self._writers / self._writer, prefix)
            keys.update(key for key, stamp in names if stamp > self._hidden.get(key, 0))
        return keys

    def _refresh(self) -> None:
        """Load all that others have written until now."""
        with self._refreshing:
            names = set(os.listdir(self._writers))
            if self._own is not None and self._own.db is not None:
                names.discard(self._writer)
                self._hidden = self._own.hidden()
            for name in self._others.keys() - names:
                self._others.pop(name).close()
            for name in sorted(names):
                other = self._others.get(name) or self._other(name)
                if other.home.exists():
                    other.refresh()
                    self._others[name] = other
                elif self._others.pop(name, None) is not None:
                    other.close()

    def _other(self, name: str) -> Other:
        return Other(self._writers / name, Path(self._scratch.name))

    # -- the rest ------------------------------------------------------------------------

    def verify(self) -> Iterator[Damage]:
        """Read everything from its files, and yield what is damaged."""
        yield from self._once.verify()
        for name in self._patiently(lambda: sorted(os.listdir(self._writers))):
            yield from self._patiently(partial(self._verify, name))

    def _verify(self, name: str) -> list[Damage]:
        # This writer's own as well: what is in memory may hide damage on the disk.
        other = self._other(name)
        if not other.home.exists():
            return []
        try:
            other.refresh()
            return list(other.verify())
        finally:
            other.close()

    def close(self) -> None:
        """Close the databases; one that is empty is removed."""
        with self._writing, self._refreshing:
            if self._closed:
                return
            self._closed = True
            for other in self._others.values():
                other.close()
            try:
                if self._own is not None:
                    self._own.close()
            finally:
                self._scratch.cleanup()


def _holds(other: Other, key: str) -> bool:
    try:
        return bool(other.holds([key]))
    except CorruptRecordError:
        return False

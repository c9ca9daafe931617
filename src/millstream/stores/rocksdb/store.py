"""The store over RocksDB: one database for every writer, read by all.

On disk, below the folder of the URL::

    claims/<hash of a key>      what ``put_if_absent`` has written
    writers/<writer>/db/        the database that a writer alone writes
    writers/<writer>/deletions/ what others want gone from it
    writers/<writer>/lock       held while the writer is there
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

from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.rocksdb.claims import Claims, discard, sync_folder
from millstream.stores.rocksdb.errors import translated
from millstream.stores.rocksdb.home import OpenHome, Stamps, options, tidy
from millstream.stores.rocksdb.others import Found, Other, held_in, names_in, values_in
from millstream.stores.store import (
    CorruptRecordError,
    Damage,
    StoreError,
    Usage,
    check_key,
)

T = TypeVar("T")


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
        self._claims = Claims(config.folder / "claims")
        self._stamps = Stamps()
        # One at a time writes, and one at a time refreshes; both may go on while others read.
        self._writing, self._refreshing = threading.Lock(), threading.Lock()
        self._own: OpenHome | None = None
        self._others: dict[str, Other] = {}
        self._hidden: dict[str, int] = {}
        self._closed = False
        self._scratch = tempfile.TemporaryDirectory(prefix="millstream-rocksdb-")
        self._patiently(self._make_folders)

    def _make_folders(self) -> None:
        self._writers.mkdir(parents=True, exist_ok=True)
        sync_folder(self._config.folder)

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do something, again and again while the store is away, for as long as one may wait."""

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
        own.carry_out(self._stamps)

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
        tidy(self._writers)
        chosen = options(self._config.buffer, self._config.cache)
        try:
            own = OpenHome(self._writers / self._writer, chosen)
        except BlockingIOError:
            raise UnavailableError(f"somebody else writes to it as {self._writer!r}") from None
        sync_folder(self._writers)
        return own

    @property
    def _own_db(self) -> Rdict | None:
        """This writer's own database, if it is open; if not, it is read like those of others."""
        return None if self._own is None else self._own.db

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value unless the key has one; whether it was written. Durable."""
        check_key(key)
        with self._writing:
            draft = self._patiently(lambda: self._draft(key, value))
            if draft is None:
                return False
            # One draft for all attempts: by it, a claim is known as one's own.
            try:
                return self._patiently(lambda: self._claims.claim(key, draft))
            finally:
                discard(draft)

    def _draft(self, key: str, value: bytes) -> Path | None:
        """The draft of a claim, unless the key has a value."""
        if self._is_taken(key):
            return None
        return self._claims.draft(key, value, self._open_own().path)

    def _is_taken(self, key: str) -> bool:
        """Whether a key has a value, be it a damaged one.

        Not by ``get``, to which no key is absent while somebody's database is damaged: such keys
        are claimed and never put, and who claims one first is decided by the link alone.
        """
        if self._claims.holds(key):
            return True
        self._refresh()
        db, place = self._own_db, self._writers / self._writer
        if db is not None and held_in(db, place, [key], self._hidden):
            return True
        return any(_holds(other, key) for other in list(self._others.values()))

    def delete(self, keys: Iterable[str]) -> None:
        """Forget keys, also those that others wrote."""
        unwanted = [check_key(key) for key in keys]
        if unwanted:
            with self._writing:
                self._patiently(lambda: self._delete(unwanted))

    def _delete(self, keys: list[str]) -> None:
        self._refresh()
        self._claims.delete(keys)
        # Own values last: what they hid elsewhere must not come back.
        for name, other in list(self._others.items()):
            if held := other.holds(keys):
                stamp = self._stamps.next()
                other.home.leave_deletion(held, stamp, self._writer)
                other.hidden = other.hidden | dict.fromkeys(held, stamp)
                self._tidy(name, other)
            elif other.is_empty():
                self._tidy(name, other)
        if self._own is not None:
            self._own.delete(keys)

    def _tidy(self, name: str, other: Other) -> None:
        """Carry out deletions for a writer that is gone; remove its database if it is empty."""
        chosen = options(self._config.buffer, self._config.cache)
        home = OpenHome.if_unused(other.home.path, chosen)
        if home is not None:
            try:
                home.carry_out(self._stamps)
            finally:
                home.close()
            if not other.home.exists():
                with self._refreshing:
                    self._others.pop(name, other).close()

    # -- reading -------------------------------------------------------------------------

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that have one."""
        wanted = [check_key(key) for key in keys]
        return self._patiently(lambda: self._get(wanted)) if wanted else {}

    def _get(self, keys: list[str]) -> dict[str, bytes]:
        found = self._look_up(keys)
        if missing := [key for key in keys if key not in found]:
            self._refresh()
            found.update(self._look_up(missing))
        if len(found) < len(keys):
            for other in list(self._others.values()):
                if other.damage is not None:
                    raise CorruptRecordError(other.damage)
        return found

    def _look_up(self, keys: list[str]) -> dict[str, bytes]:
        """What is known of some keys; what others have written since may be missing."""
        newest: dict[str, Found] = {}
        databases = [other.values(keys) for other in list(self._others.values())]
        if (db := self._own_db) is not None:
            databases.append(values_in(db, self._writers / self._writer, keys, self._hidden))
        for values in databases:
            for key, value in values.items():
                self._stamps.saw(value.stamp)
                if key not in newest or value.stamp > newest[key].stamp:
                    newest[key] = value
        found = {key: value.whole() for key, value in newest.items()}
        for key in keys:
            if key not in found and (claimed := self._claims.get(key)) is not None:
                found[key] = claimed
        return found

    def scan(self, prefix: str = "") -> list[str]:
        """The keys that begin with a prefix; of damaged databases, those that can be read."""
        return self._patiently(lambda: self._scan(prefix))

    def _scan(self, prefix: str) -> list[str]:
        self._refresh()
        keys = set(self._claims.keys(prefix))
        for other in list(self._others.values()):
            keys.update(other.names(prefix))
        if (db := self._own_db) is not None:
            names = names_in(db, self._writers / self._writer, prefix)
            keys.update(key for key, stamp in names if stamp > self._hidden.get(key, 0))
        return sorted(keys, key=str.encode)

    def _refresh(self) -> None:
        """See all that others have written until now."""
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
        """Read everything from its files, and tell what is damaged."""
        yield from self._patiently(lambda: list(self._claims.verify()))
        for name in self._patiently(lambda: sorted(os.listdir(self._writers))):
            yield from self._patiently(partial(self._verify, name))

    def _verify(self, name: str) -> list[Damage]:
        # This writer's own as well: in memory it may be whole.
        other = self._other(name)
        if not other.home.exists():
            return []
        try:
            other.refresh()
            return list(other.verify())
        finally:
            other.close()

    def usage(self) -> Usage:
        """The files below the folder, and their bytes."""
        sizes = []
        for folder, _, names in os.walk(self._config.folder):
            for name in names:
                try:
                    sizes.append(os.stat(os.path.join(folder, name)).st_size)
                except FileNotFoundError:
                    continue
        return Usage(sum(sizes), len(sizes))

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

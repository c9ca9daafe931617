"""Reads the databases of other processes, which are opened again when their files have changed.

Not as RocksDB's secondary instances, which ignore a missing table. A database whose write-ahead log
is damaged is read up to the damage, which is remembered: a key that is not found may have been
after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rocksdict import AccessType, DBRecoveryMode, Rdict, RdictIter, ReadOptions

from millstream.stores.framing import unframe
from millstream.stores.retries import UnavailableError
from millstream.stores.rocksdb.errors import translated
from millstream.stores.rocksdb.home import (
    NAMES,
    STAMP_BYTES,
    VALUES,
    Home,
    open_database,
    options,
    stamp_of,
)
from millstream.stores.store import CorruptRecordError, Damage

_CACHE = 1 << 20
_BUFFER = 64 << 20
_ATTEMPTS = 3
_AT_ONCE = 64
_NEWEST = (1 << 63) - 1
_PAUSE = 0.02


@dataclass(frozen=True)
class Found:
    """A value with its stamp, or its damage."""

    stamp: int
    value: bytes | Damage

    def checked(self) -> bytes:
        if isinstance(self.value, Damage):
            raise CorruptRecordError(self.value)
        return self.value


def values_in(
    db: Rdict, place: Path, keys: list[str], hidden: Mapping[str, int]
) -> dict[str, Found]:
    """The values that a database has for some keys."""
    try:
        with translated(place):
            rows = db.get([VALUES + key.encode() for key in keys])
            assert isinstance(rows, list)
            found = {
                key: _found(key, data, place)
                for key, data in zip(keys, rows, strict=True)
                if data is not None
            }
    except CorruptRecordError:
        found = {key: one for key in keys if (one := _one_value(db, place, key)) is not None}
    return {key: one for key, one in found.items() if one.stamp > hidden.get(key, 0)}


def _found(key: str, data: bytes, place: Path) -> Found:
    value = unframe(key, data, str(place))
    return Found(stamp_of(value), value[STAMP_BYTES:])


def _one_value(db: Rdict, place: Path, key: str) -> Found | None:
    """The value of one key, which may be the damaged one."""
    try:
        with translated(place, key):
            data: bytes | None = db.get(VALUES + key.encode())
        return None if data is None else _found(key, data, place)
    except CorruptRecordError as problem:
        return Found(_stamp_by_name(db, place, key), problem.damage)


def _stamp_by_name(db: Rdict, place: Path, key: str) -> int:
    """The stamp of a value that cannot be read; if even that is damaged, it counts as newest."""
    try:
        with translated(place):
            data: bytes | None = db.get(NAMES + key.encode())
    except CorruptRecordError:
        data = None
    return _NEWEST if data is None else stamp_of(data)


def held_in(db: Rdict, place: Path, keys: list[str], hidden: Mapping[str, int]) -> list[str]:
    """The keys among some that a database has; their values may be damaged."""
    with translated(place):
        rows = db.get([NAMES + key.encode() for key in keys])
    assert isinstance(rows, list)
    return [
        key
        for key, data in zip(keys, rows, strict=True)
        if data is not None and stamp_of(data) > hidden.get(key, 0)
    ]


def names_in(db: Rdict, place: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """The keys of a database that begin with a prefix, with their stamps."""
    start = NAMES + prefix.encode()
    for name, data in _rows(db, place, start, start + b"\xff" if prefix else VALUES):
        yield name[len(NAMES) :].decode(), stamp_of(data)


def _rows(db: Rdict, place: Path, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    # Not db.items(), which ends at a damaged block as if it were the last.
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(end)
    bounds.set_verify_checksums(True)
    with translated(place):
        rows: RdictIter = db.iter(bounds)
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        rows.status()


class Other:
    """The database of another process."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """``scratch`` is a folder for RocksDB's own log files."""
        self.home = Home(path)
        self.hidden: dict[str, int] = {}
        self.damage: Damage | None = None
        self._scratch = scratch
        self._db: Rdict | None = None
        self._seen: frozenset[tuple[str, int]] | None = None

    def refresh(self) -> None:
        """Load all that was written until now."""
        # Deletions before rows: one that is applied in between shows in the rows.
        hidden = self.home.hidden()
        for left in reversed(range(_ATTEMPTS)):
            files = self.home.files()
            if files == self._seen:
                break
            try:
                self._replace(self._open(DBRecoveryMode.tolerate_corrupted_tail_records()))
                self._seen, self.damage = files, None
                break
            except CorruptRecordError as problem:
                # The owner may have removed a file between listing and opening.
                if left:
                    time.sleep(_PAUSE)
                elif self.home.exists():
                    self._open_damaged(problem.damage)
                else:
                    self._drop()
        self.hidden = hidden

    def _open_damaged(self, damage: Damage) -> None:
        """Open it up to the damage, if that is in the write-ahead log."""
        self.damage, self._seen = damage, None
        try:
            self._replace(self._open(DBRecoveryMode.point_in_time()))
        except CorruptRecordError:
            self.close()

    def _drop(self) -> None:
        """Close it: the owner has removed it meanwhile, since it was empty."""
        self.damage, self._seen = None, None
        self.close()

    def _open(self, recovery: DBRecoveryMode) -> Rdict:
        chosen = options(_BUFFER, _CACHE)
        chosen.set_wal_recovery_mode(recovery)
        chosen.set_db_log_dir(str(self._scratch))
        path = self.home.database
        try:
            with translated(path):
                return open_database(path, chosen, AccessType.read_only(False))
        except UnavailableError as problem:
            if "No such file" not in str(problem):
                raise
            raise CorruptRecordError(Damage(None, str(path), 0, str(problem))) from problem

    def _replace(self, db: Rdict) -> None:
        old, self._db = self._db, db
        if old is not None:
            old.close()

    def values(self, keys: list[str]) -> dict[str, Found]:
        """The values that it has for some keys."""
        if self._db is None:
            return {}
        return values_in(self._db, self.home.database, keys, self.hidden)

    def names(self, prefix: str) -> Iterator[str]:
        """The keys that begin with a prefix; of a damaged database, those that can be read."""
        if self._db is None:
            return
        try:
            for key, stamp in names_in(self._db, self.home.database, prefix):
                if stamp > self.hidden.get(key, 0):
                    yield key
        except CorruptRecordError as problem:
            self.damage = problem.damage

    def holds(self, keys: list[str]) -> list[str]:
        """The keys among some that it has."""
        if self._db is None:
            return []
        return held_in(self._db, self.home.database, keys, self.hidden)

    def is_empty(self) -> bool:
        """Whether it has no key, as far as it can be read."""
        return self.damage is None and next(self.names(""), None) is None

    def verify(self) -> Iterator[Damage]:
        """Read everything, right after opening, and yield what is damaged."""
        yield from self.home.verify()
        if self.damage is not None:
            yield self.damage
        if self._db is None:
            return
        place = self.home.database
        try:
            names = names_in(self._db, place, "")
            while keys := [key for key, _ in islice(names, _AT_ONCE)]:
                for found in values_in(self._db, place, keys, {}).values():
                    if isinstance(found.value, Damage):
                        yield found.value
        except CorruptRecordError as problem:
            yield problem.damage

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

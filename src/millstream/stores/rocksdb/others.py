"""Reading databases that other processes write, opened again when their files have changed.

Not as RocksDB's secondary instances, which take a table that is missing for one that never was.
A database whose log is damaged is read as far as it goes, and the damage is remembered: of a key
that is not found nobody can say any more that it was never there.
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
    """A value with its stamp, or what is wrong with it."""

    stamp: int
    value: bytes | Damage

    def whole(self) -> bytes:
        if isinstance(self.value, Damage):
            raise CorruptRecordError(self.value)
        return self.value


def values_in(
    db: Rdict, place: Path, keys: list[str], hidden: Mapping[str, int]
) -> dict[str, Found]:
    """What a database has for those of some keys that are there."""
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
    whole = unframe(key, data, str(place))
    return Found(stamp_of(whole), whole[STAMP_BYTES:])


def _one_value(db: Rdict, place: Path, key: str) -> Found | None:
    """The value of a key where another one is damaged, or this one."""
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
    """Those of some keys that a database has; their values may be damaged."""
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
    """Somebody else's database."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """``scratch`` is where RocksDB may keep a journal of reading."""
        self.home = Home(path)
        self.hidden: dict[str, int] = {}
        self.damage: Damage | None = None
        self._scratch = scratch
        self._db: Rdict | None = None
        self._seen: frozenset[tuple[str, int]] | None = None

    def refresh(self) -> None:
        """See all that was written until now."""
        # Deletions before rows: one that is carried out in between shows in the rows.
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
                # A file may vanish between its name and its opening: the owner goes on.
                if left:
                    time.sleep(_PAUSE)
                elif self.home.exists():
                    self._go_on_with(problem.damage)
                else:
                    self._forget()
        self.hidden = hidden

    def _go_on_with(self, damage: Damage) -> None:
        """Read what comes before the damage, if it is in a log."""
        self.damage, self._seen = damage, None
        try:
            self._replace(self._open(DBRecoveryMode.point_in_time()))
        except CorruptRecordError:
            self.close()

    def _forget(self) -> None:
        """The owner has removed it meanwhile, since it was empty."""
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
        except UnavailableError as away:
            if "No such file" not in str(away):
                raise
            raise CorruptRecordError(Damage(None, str(path), 0, str(away))) from away

    def _replace(self, db: Rdict) -> None:
        old, self._db = self._db, db
        if old is not None:
            old.close()

    def values(self, keys: list[str]) -> dict[str, Found]:
        """What is there for those of some keys that are."""
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
        """Those of some keys that are there."""
        if self._db is None:
            return []
        return held_in(self._db, self.home.database, keys, self.hidden)

    def is_empty(self) -> bool:
        """Whether there is no key at all, as far as one can see."""
        return self.damage is None and next(self.names(""), None) is None

    def verify(self) -> Iterator[Damage]:
        """Read everything; to be asked of one that was just opened."""
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

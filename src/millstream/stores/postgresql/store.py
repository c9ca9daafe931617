"""The store on a table."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

import psycopg
from psycopg import errors

from millstream.errors import ConfigError
from millstream.stores.postgresql.address import Address
from millstream.stores.postgresql.sessions import Session, Sessions
from millstream.stores.postgresql.table import Parts, Row, Table, gather, rows_of, value_of
from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.store import (
    CorruptRecordError,
    Damage,
    StoreError,
    StoreFullError,
    check_key,
)

T = TypeVar("T")

_BATCH_BYTES = 16 << 20
_BATCH_KEYS = 10_000
_GRACE = 0.1  # so that an attempt that waited until the end is the last one
_BEYOND_ALL_KEYS = b"\xff"  # no byte of UTF-8


class PostgresStore:
    """Values in the rows of a table; ``part_bytes`` is how much of a value fits into one row."""

    def __init__(self, address: Address, *, part_bytes: int = _BATCH_BYTES) -> None:
        self._address = address
        self._place = f"{address.place}, table {address.table}"
        self._part_bytes = part_bytes
        self._table = Table(address.table)
        self._sessions = Sessions(address)
        try:
            self._run(self._table.ensure, opening=True)
        except BaseException:
            self.close()
            raise

    def put(self, items: Mapping[str, bytes]) -> None:
        """Write values, in one transaction."""
        # In the order of their keys: two writers of the same keys do not deadlock.
        keys = sorted(check_key(key) for key in items)
        if keys:
            self._run(lambda session: self._put(session, keys, items))

    def _put(self, session: Session, keys: Sequence[str], items: Mapping[str, bytes]) -> None:
        rows = (row for key in keys for row in rows_of(key, items[key], self._part_bytes))
        batches = _batches(rows)
        first, second = next(batches), next(batches, None)
        if second is None:
            self._insert(session, first)
        else:
            session.execute("BEGIN")
            for batch in chain([first, second], batches):
                self._insert(session, batch)
            session.execute("COMMIT")
        session.confirm()

    def _insert(self, session: Session, rows: Sequence[Row]) -> None:
        session.execute(self._table.put, [list(column) for column in zip(*rows, strict=True)])

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value unless the key has one; whether it was written."""
        token = uuid.uuid4()
        first, *rest = rows_of(check_key(key), value, self._part_bytes)
        return self._run(lambda session: self._insert_once(session, first, rest, token))

    def _insert_once(self, session: Session, first: Row, rest: list[Row], token: uuid.UUID) -> bool:
        if rest:
            session.execute("BEGIN")
        winner = session.execute(self._table.insert_once, [*first, token]).fetchone()
        won = winner == (token,)
        if rest:
            if won:
                for row in rest:
                    self._insert(session, [row])
            session.execute("COMMIT")
        session.confirm()
        return won

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that have one."""
        return {
            key: value_of(key, parts, self._place)
            for batch in _batches_of_keys(keys)
            for key, parts in self._read(batch).items()
        }

    def _read(self, keys: list[bytes]) -> dict[str, Parts]:
        return self._run(
            lambda session: gather(session.execute(self._table.get, [keys], binary=True))
        )

    def scan(self, prefix: str = "") -> list[str]:
        """The keys that begin with a prefix, in the order of their bytes."""
        start = prefix.encode("utf-8", "surrogatepass")
        stop = start[:-1] + bytes([start[-1] + 1]) if start else _BEYOND_ALL_KEYS
        rows = self._run(
            lambda session: session.execute(self._table.scan, [start, stop], binary=True).fetchall()
        )
        return [key.decode() for (key,) in rows]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys; PostgreSQL's autovacuum frees their space."""
        for batch in _batches_of_keys(keys):
            self._run(partial(self._delete, batch))

    def _delete(self, keys: list[bytes], session: Session) -> None:
        session.execute(self._table.delete, [keys])

    def verify(self) -> Iterator[Damage]:
        """Read every value, and yield what is damaged."""
        try:
            sizes = self._run(
                lambda session: session.execute(self._table.sizes, binary=True).fetchall()
            )
        except CorruptRecordError as corrupt:
            yield corrupt.damage
            return
        for batch in _batches_by_size(sizes):
            yield from self._damage_in(batch)

    def _damage_in(self, keys: list[bytes]) -> Iterator[Damage]:
        try:
            found = self._read(keys)
        except CorruptRecordError as corrupt:
            if len(keys) == 1:
                damage = corrupt.damage
                yield Damage(keys[0].decode(), damage.place, damage.offset, damage.why)
            else:
                for one in keys:
                    yield from self._damage_in([one])
            return
        for key, parts in found.items():
            try:
                value_of(key, parts, self._place)
            except CorruptRecordError as corrupt:
                yield corrupt.damage

    def close(self) -> None:
        """Close the connections."""
        self._sessions.close()

    def _run(self, act: Callable[[Session], T], *, opening: bool = False) -> T:
        """Do something that is safe to repeat, until it is done or patience ends."""
        deadline = time.monotonic() + self._address.patience + _GRACE

        def attempt() -> T:
            try:
                with self._sessions.session(deadline) as session:
                    return act(session)
            except errors.DiskFull as full:
                raise StoreFullError(
                    f"{self._place} has no space left ({self._text(full)}); add some to the servers"
                ) from None
            except (psycopg.OperationalError, errors.ReadOnlySqlTransaction) as lost:
                raise UnavailableError(self._text(lost)) from None
            except (errors.DataCorrupted, errors.IndexCorrupted) as damaged:
                raise CorruptRecordError(
                    Damage(None, self._place, 0, self._text(damaged))
                ) from None
            except psycopg.Error as rejected:
                raise StoreError(f"{self._place}: {self._text(rejected)}") from None
            except ConfigError as unfit:
                # After a failover the settings may be applied a little later.
                if opening:
                    raise
                raise UnavailableError(str(unfit)) from None

        return wait_for(self._place, self._address.patience, attempt)

    def _text(self, error: psycopg.Error) -> str:
        return self._address.redacted(" ".join(str(error).split()))


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows, as many at a time as one statement should carry."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        if batch and size + len(row[-1]) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row[-1])
    if batch:
        yield batch


def _batches_of_keys(keys: Iterable[str]) -> Iterator[list[bytes]]:
    unique = [check_key(key).encode() for key in dict.fromkeys(keys)]
    for start in range(0, len(unique), _BATCH_KEYS):
        yield unique[start : start + _BATCH_KEYS]


def _batches_by_size(sizes: Iterable[tuple[bytes, int]]) -> Iterator[list[bytes]]:
    """Keys whose values together are not too large to be read at once."""
    batch: list[bytes] = []
    total = 0
    for key, size in sizes:
        if batch and (total + size > _BATCH_BYTES or len(batch) == _BATCH_KEYS):
            yield batch
            batch, total = [], 0
        batch.append(key)
        total += size
    if batch:
        yield batch

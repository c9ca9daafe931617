"""The table of a store: its columns, the statements on it, and values as rows.

A value is framed, and split into parts if it is large; each part is a row. All parts of a value are
written by one transaction. Parts that a longer value left over are not read: part 0 has their
number.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from psycopg import sql

from millstream.errors import ConfigError
from millstream.stores.framing import frame, unframe
from millstream.stores.postgresql.sessions import Session
from millstream.stores.store import CorruptRecordError, Damage

Row: TypeAlias = tuple[bytes, int, int, bytes]  # key, part, parts, data
Parts: TypeAlias = dict[int, tuple[int, bytes]]  # by part: parts, data

_COLUMNS = [
    ("key", "bytea"),
    ("part", "integer"),
    ("parts", "integer"),
    ("data", "bytea"),
    ("token", "uuid"),
]


class Table:
    """The statements on a table."""

    def __init__(self, name: str) -> None:
        self.name = name
        table = sql.Identifier(*name.split("."))
        self._quoted = table.as_string(None)

        def statement(text: str) -> sql.Composed:
            return sql.SQL(text).format(table=table)

        # Keys are bytes: their order is the store's in every database, whatever its encoding.
        self._create = statement(
            "CREATE TABLE IF NOT EXISTS {table} (key bytea NOT NULL, part integer NOT NULL, "
            "parts integer NOT NULL, data bytea NOT NULL, token uuid, PRIMARY KEY (key, part))"
        )
        # State does not compress well enough to be worth the server's time.
        self._uncompressed = statement("ALTER TABLE {table} ALTER data SET STORAGE EXTERNAL")
        self.put = statement(
            "INSERT INTO {table} (key, part, parts, data) "
            "SELECT * FROM unnest(%b::bytea[], %b::integer[], %b::integer[], %b::bytea[]) "
            "ON CONFLICT (key, part) DO UPDATE SET parts = EXCLUDED.parts, data = EXCLUDED.data"
        )
        # The second writer writes, too: its commit waits until the first value is on the standbys.
        # A writer that retries because an acknowledgement was lost finds its own token.
        self.insert_once = statement(
            "INSERT INTO {table} AS t (key, part, parts, data, token) VALUES (%b, %b, %b, %b, %b) "
            "ON CONFLICT (key, part) DO UPDATE SET token = t.token RETURNING token"
        )
        self.get = statement("SELECT key, part, parts, data FROM {table} WHERE key = ANY(%b)")
        self.scan = statement(
            "SELECT key FROM {table} WHERE part = 0 AND key >= %b AND key < %b ORDER BY key"
        )
        self.sizes = statement(
            "SELECT key, sum(octet_length(data))::bigint FROM {table} GROUP BY key ORDER BY key"
        )
        self.delete = statement("DELETE FROM {table} WHERE key = ANY(%b)")

    def ensure(self, session: Session) -> None:
        """Create the table if it does not exist; reject one that we have not created."""
        if not self._columns(session):
            session.execute("BEGIN")
            # Two sessions that create a table at once conflict, even with IF NOT EXISTS.
            session.execute("SELECT pg_advisory_xact_lock(%b)", [zlib.crc32(self.name.encode())])
            session.execute(self._create)
            session.execute(self._uncompressed)
            session.execute("COMMIT")
        if self._columns(session) != [("p", *column) for column in _COLUMNS]:
            raise ConfigError(
                f"the table {self.name} was not created by Millstream, or is not logged; choose "
                f"another name with ?table="
            )

    def _columns(self, session: Session) -> list[tuple[str, str, str]]:
        """The columns of the table: how durable they are, their names and their types."""
        columns = session.execute(
            "SELECT relpersistence::text, attname::text, format_type(atttypid, atttypmod) "
            "FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
            "WHERE attrelid = to_regclass(%b) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [self._quoted],
        )
        return [(str(durable), str(name), str(kind)) for durable, name, kind in columns]


def rows_of(key: str, value: bytes, longest: int) -> Iterator[Row]:
    """A value as rows of at most as many bytes each."""
    data = frame(key, value)
    parts = max(1, -(-len(data) // longest))
    for part in range(parts):
        chunk = data[part * longest : (part + 1) * longest] if parts > 1 else data
        yield key.encode(), part, parts, chunk


def gather(rows: Iterable[Row]) -> dict[str, Parts]:
    """The rows of several values, by key."""
    found: dict[str, Parts] = {}
    for key, part, parts, data in rows:
        found.setdefault(key.decode(), {})[part] = parts, data
    return found


def value_of(key: str, found: Parts, place: str) -> bytes:
    """The value that was written, or ``CorruptRecordError``."""
    parts = found[0][0] if 0 in found else 1
    missing = [part for part in range(parts) if part not in found]
    if missing:
        raise CorruptRecordError(Damage(key, place, 0, f"of {parts} parts, {missing} are missing"))
    chunks = [found[part][1] for part in range(parts)]
    return unframe(key, chunks[0] if parts == 1 else b"".join(chunks), place)

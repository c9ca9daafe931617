"""``postgresql://``: a table on PostgreSQL servers, the distributed and replicated store.

Each write is one transaction with ``synchronous_commit = on``: where the servers name synchronous
standbys, an acknowledged write is on the disks of the primary and of as many standbys. After a
failover the same open store resumes with the promoted server.
"""

from __future__ import annotations

from millstream.stores.postgresql.address import Address
from millstream.stores.postgresql.store import PostgresStore

__all__ = ["PostgresStore", "open_store"]


def open_store(url: str, writer: str) -> PostgresStore:
    """Open ``postgresql://user@host1,host2,host3/database?table=millstream&replicas=1``."""
    return PostgresStore(Address.parse(url, writer))

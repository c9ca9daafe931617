"""The store protocol: durable values under text keys.

All back-ends promise the same, and one suite (``tests/contract``) checks it:

* ``put`` has made every item durable when it returns: a crash of this process, of the store's
  server or of the machine right after it loses nothing. It is not atomic over its items: after an
  error or a crash some of them may be written, each completely or not at all. An existing value is
  replaced.
* ``put_if_absent`` is atomic and durable, and decides races: of several writers, in any processes
  on any machines, exactly one gets True. Its keys are never written with ``put``.
* ``get`` and ``scan`` see whatever this process wrote, and what others wrote under keys that were
  new. That another process has *replaced* or deleted a value may be seen late, by the next
  ``scan`` of its prefix at the latest: processes that share keys write each of them once.
* A value is read as it was written, or ``CorruptRecordError`` is raised: never other bytes.
* An unavailable store is retried (``patience`` in the URL, in seconds, 30 by default), then
  ``StoreUnavailableError``. A store without space raises ``StoreFullError``, and resumes when there
  is space again.
* All of this from several threads at once.

Keys are text of 1 to 400 bytes as UTF-8, without control characters; ``/`` separates parts, by
convention. Values are of any size that fits into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from millstream.errors import MillstreamError

MAX_KEY_BYTES = 400


class StoreError(MillstreamError):
    """A store rejected an operation."""


class StoreUnavailableError(StoreError):
    """A store did not answer within its patience."""


class StoreFullError(StoreError):
    """No space is left where a store writes."""


class BadStoreKeyError(StoreError):
    """A key that no store accepts."""


@dataclass(frozen=True)
class Damage:
    """A record that is not as it was written: its key, its place, and what is wrong."""

    key: str | None
    place: str
    offset: int
    why: str

    def __str__(self) -> str:
        record = "a record" if self.key is None else f"the record of {self.key!r}"
        return f"{record} at {self.place}, offset {self.offset}: {self.why}"


class CorruptRecordError(StoreError):
    """A value is damaged."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage)
        self.damage = damage

    def __str__(self) -> str:
        return f"{self.damage}; other epochs may be complete: see `millstream checkpoint verify`"


class Store(Protocol):
    """Durable values under text keys."""

    def put(self, items: Mapping[str, bytes]) -> None:
        """Write values; all of them are durable when this returns."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value unless the key has one; whether it was written. Durable."""

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that have one."""

    def scan(self, prefix: str = "") -> list[str]:
        """The keys that begin with a prefix, in the order of their bytes."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys; ignores those that do not exist. Space is reclaimed later."""

    def verify(self) -> Iterator[Damage]:
        """Read everything, and yield what is damaged; changes nothing."""

    def close(self) -> None:
        """Close files and connections; idempotent."""


def check_key(key: str) -> str:
    """A key, or ``BadStoreKeyError``."""
    if not isinstance(key, str):
        raise BadStoreKeyError(f"a key must be text, got {key!r}")
    length = len(key.encode("utf-8", "surrogatepass"))
    if not 1 <= length <= MAX_KEY_BYTES or not key.isprintable():
        raise BadStoreKeyError(
            f"a key must be 1 to {MAX_KEY_BYTES} bytes of printable text, got {key[:80]!r} "
            f"({length} bytes)"
        )
    return key

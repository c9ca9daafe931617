"""``redis://[user:password@]host[:port][/db]``: values in a Redis server.

Also ``redis+tls://`` and ``redis+unix:///socket``. Options: ``prefix`` of the entries' names
(``millstream/`` by default; stores in one database must differ in it, and none begin with
another's), ``patience``, ``db`` for a socket, and ``durability``.

A server is accepted only if it is durable: ``appendonly yes`` and ``appendfsync always``. With
``durability=relaxed`` any is: a crash of the machine then loses what the server had not written yet
(a second, or everything since the last snapshot), also of committed epochs, and a restart fails or
resumes from an older epoch. A failover to a replica has the same effect. Redis Cluster is not
supported: a store's entries are written together.

``scan`` walks over all names of the database, a thousand at a time, so that other clients need not
wait; do not share the database with millions of other entries.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.errors import ConfigError
from millstream.stores.framing import damage_of, frame, unframe
from millstream.stores.redis_url import Address, read_url
from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.store import Damage, StoreError, StoreFullError, check_key

T = TypeVar("T")
log = logging.getLogger("millstream")

_TOKEN_AT, _TOKEN_BYTES = len(frame("", b"")), 16
_NO_TOKEN = bytes(_TOKEN_BYTES)
_BATCH_BYTES = 1 << 24  # bytes: one command, and one sync
_READ_BATCH = 256
_NAME_BATCH = 1000
_LARGEST = 512 << 20
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


def open_store(url: str, writer: str) -> RedisStore:
    """Open a store on a Redis server, which needs no name of a writer."""
    return RedisStore(read_url(url))


class RedisStore:
    """Entries of a Redis server: a name with a prefix, and a framed token and value."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._prefix = address.prefix.encode()
        self._client = redis.Redis(
            host=address.host,
            port=address.port,
            unix_socket_path=address.socket,
            db=address.db,
            username=address.user,
            password=address.password,
            ssl=address.tls,
            # Slow is not unavailable: there are retries, and a large batch takes long.
            socket_timeout=max(1.0, address.patience / 3),
            socket_connect_timeout=max(1.0, address.patience / 3),
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            self._largest = self._patiently(self._check_server)
        except BaseException:
            self.close()
            raise

    def put(self, items: Mapping[str, bytes]) -> None:
        batches: list[dict[bytes, bytes]] = []
        room = 0
        for key, value in items.items():
            name, data = self._name(check_key(key)), self._data(key, _NO_TOKEN, value)
            if room < len(data):
                batches.append({})
                room = _BATCH_BYTES
            batches[-1][name] = data
            room -= len(name) + len(data)

        def write() -> None:
            # One MSET is synced once; as many SETs would be synced every few kilobytes.
            with self._client.pipeline(transaction=False) as pipeline:
                for batch in batches:
                    pipeline.mset(batch)
                # Not raised by the pipeline, whose error would contain names and values.
                for answer in pipeline.execute(raise_on_error=False):
                    if isinstance(answer, Exception):
                        raise answer

        if batches:
            self._patiently(write)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        name = self._name(check_key(key))
        token = os.urandom(_TOKEN_BYTES)
        data = self._data(key, token, value)

        def write() -> bool:
            if self._client.set(name, data, nx=True):
                return True
            # Ours nevertheless, if the answer to the first attempt was lost.
            found = self._client.getrange(name, _TOKEN_AT, _TOKEN_AT + _TOKEN_BYTES - 1)
            return bool(found == token)

        return self._patiently(write)

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = [check_key(key) for key in keys]
        return {
            key: unframe(key, data, self._place(key))[_TOKEN_BYTES:]
            for key, data in self._read(wanted)
        }

    def scan(self, prefix: str = "") -> list[str]:
        return sorted(self._patiently(lambda: self._scan(prefix)), key=str.encode)

    def delete(self, keys: Iterable[str]) -> None:
        for some in _batches([self._name(check_key(key)) for key in keys], _NAME_BATCH):
            self._patiently(partial(self._client.unlink, *some))

    def verify(self) -> Iterator[Damage]:
        for key, data in self._read(self.scan()):
            damage = damage_of(key, data, self._place(key))
            if damage is not None:
                yield damage

    def close(self) -> None:
        self._client.close()

    def __repr__(self) -> str:
        return f"RedisStore({self._address})"

    def _name(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _place(self, key: str) -> str:
        return f"{self._address}, entry {self._address.prefix + key!r}"

    def _data(self, key: str, token: bytes, value: bytes) -> bytes:
        data = frame(key, token + value)
        if len(data) > self._largest:
            raise StoreError(
                f"the value of {key!r} has {len(value)} bytes, and {self._address} takes "
                f"{self._largest} at most; raise its proto-max-bulk-len, or use another store"
            )
        return data

    def _read(self, keys: list[str]) -> Iterator[tuple[str, bytes]]:
        for some in _batches(keys, _READ_BATCH):
            names = [self._name(key) for key in some]
            found = self._patiently(partial(self._client.mget, names))
            for key, data in zip(some, found, strict=True):
                if isinstance(data, bytes):
                    yield key, data

    def _scan(self, prefix: str) -> set[str]:
        names: set[bytes] = set()
        pattern = _escaped(self._name(prefix)) + b"*"
        cursor = -1
        # On one connection: a cursor is invalid after a restart of the server.
        with redis.Redis(
            connection_pool=self._client.connection_pool, single_connection_client=True
        ) as connected:
            while cursor:
                cursor, some = connected.scan(
                    max(cursor, 0), match=pattern, count=_NAME_BATCH, _type="string"
                )
                names.update(some)
        # Names that are not text are not ours.
        keys = (name[len(self._prefix) :].decode(errors="ignore") for name in names)
        return {key for key in keys if self._name(key) in names}

    def _check_server(self) -> int:
        """Reject a server that is not durable; return the largest value that it accepts."""
        wanted = (*_DURABLE, "maxmemory", "maxmemory-policy", "proto-max-bulk-len")
        has: dict[str, str] = {}
        try:
            for setting in wanted:
                answer = self._client.config_get(setting)
                has.update((str(name), str(value)) for name, value in answer.items())
        except redis.ResponseError as error:
            forbidden = isinstance(error, redis.exceptions.NoPermissionError)
            if not forbidden and "unknown command" not in str(error).lower():
                raise
            log.warning(
                "cannot read the configuration of %s (%s); make sure that it has %s, and evicts "
                "nothing",
                self._address,
                error,
                _text_of(_DURABLE),
            )
            return _LARGEST
        bad = {name: has.get(name, "?") for name in _DURABLE if has.get(name) != _DURABLE[name]}
        if bad and not self._address.relaxed:
            raise ConfigError(
                f"{self._address} would lose acknowledged writes in a crash: it has "
                f"{_text_of(bad)}; set {_text_of({name: _DURABLE[name] for name in bad})}, or "
                "accept the loss with ?durability=relaxed"
            )
        if has.get("maxmemory", "0") != "0" and has["maxmemory-policy"].startswith("allkeys"):
            raise ConfigError(
                f"{self._address} evicts entries when its memory is full (maxmemory-policy "
                f"{has['maxmemory-policy']}); set maxmemory-policy noeviction"
            )
        return int(has.get("proto-max-bulk-len", _LARGEST))

    def _patiently(self, act: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return act()
            except redis.RedisError as error:
                raise _translate(error, self._address) from error

        return wait_for(str(self._address), self._address.patience, attempt)


def _translate(error: redis.RedisError, address: Address) -> Exception:
    """An error of Redis as one of a store, or as ``UnavailableError``."""
    known = redis.exceptions
    code = str(error).partition(" ")[0]
    rejected = (known.AuthenticationError, known.AuthorizationError, known.NoPermissionError)
    if isinstance(error, rejected):
        return ConfigError(f"{address} rejects the user or the password of the URL: {error}")
    if isinstance(error, known.OutOfMemoryError) or code in ("OOM", "MISCONF"):
        return StoreFullError(f"{address} has no space left ({error}); add memory or disk")
    unavailable = (
        known.ConnectionError,
        known.TimeoutError,
        known.ReadOnlyError,
        known.ClusterDownError,
        known.TryAgainError,
    )
    if isinstance(error, unavailable) or code in ("BUSY", "NOREPLICAS", "MASTERDOWN"):
        return UnavailableError(str(error))
    return StoreError(f"{address} rejected a command: {error}")


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def _escaped(name: bytes) -> bytes:
    """A glob pattern that matches a name only."""
    return b"".join(b"\\" + bytes([c]) if c in b"\\*?[]^" else bytes([c]) for c in name)


def _text_of(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())

"""``redis://`` for the contract suite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tests.contract.backends import Backend, Harm
from tests.stores.redis_servers import RedisServer


class RedisBackend(Backend):
    lacks: ClassVar = {
        "power_cut": "what the server syncs is in its configuration, which is checked"
    }

    def start(self, folder: Path) -> None:
        self._server = RedisServer(folder)
        self._server.start()
        self._numbers = itertools.count()

    def stop(self) -> None:
        self._server.kill()

    def fresh(self, *, small: bool) -> None:
        self._prefix = f"test{next(self._numbers)}/"
        self.url = f"{self._server.url}?prefix={self._prefix}"

    @contextmanager
    def outage(self) -> Iterator[None]:
        self._server.kill()
        try:
            yield
        finally:
            self._server.start()

    def crash(self) -> None:
        self._server.kill()
        self._server.start()

    def damage(self, key: str, harm: Harm) -> None:
        with self._server.client() as client:
            found = client.get(self._prefix + key)
            assert isinstance(found, bytes)
            data = bytearray(found)
            if harm == "tear":
                del data[-3:]
            else:
                data[len(data) // 2] ^= 16
            client.set(self._prefix + key, bytes(data))

    @contextmanager
    def fill_up(self) -> Iterator[None]:
        with self._server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)


BACKEND = RedisBackend

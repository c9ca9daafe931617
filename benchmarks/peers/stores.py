"""The stores, each with its defaults, and served so that what it acknowledges is durable."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.contract.backends import SCHEMES, server
from tests.stores.postgres_servers import PostgresServers, binary
from tests.stores.redis_servers import RedisServer

__all__ = ["SCHEMES", "Missing", "Urls", "served", "store_versions"]

Missing = pytest.skip.Exception
Urls = Callable[[str], str]
"""Gives the URL of the store of a name; another name is another store."""


@contextmanager
def served(scheme: str, folder: Path) -> Iterator[Urls]:
    """What serves the stores of a kind, while this lasts; what they write is in the folder.

    PostgreSQL has three servers, as its page in the docs advises: a commit is on two disks, or,
    as all are on this machine, twice on one. They write to the system's temporary folder.
    A server that is not installed is ``Missing``.
    """
    if scheme == "redis":
        redis = RedisServer(folder / "redis")
        try:
            redis.start()
            yield lambda name: f"{redis.url}?prefix={name}/"
        finally:
            redis.kill()
    elif scheme == "postgresql":
        postgres = PostgresServers()
        try:
            postgres.start()
            yield lambda name: postgres.url(f"table=store_{name}&replicas=1")
        finally:
            postgres.stop()
    else:
        yield lambda name: f"{scheme}://{folder / f'{scheme}-{name}'}"


def store_versions() -> dict[str, str]:
    """The versions of what is behind the stores."""
    found = {name: version(name) for name in ("rocksdict", "redis", "psycopg")}
    for name, program in (
        ("redis-server", server("redis-server")),
        ("postgres", binary("postgres")),
    ):
        said = subprocess.run([program, "--version"], capture_output=True, text=True)
        found[name] = said.stdout.strip()
    return found

"""What the contract suite needs to know of a back-end: how to start it, and how to hurt it.

A back-end plugs in with one file, ``tests/contract/<scheme>_backend.py``, that defines a subclass
of ``Backend`` under the name ``BACKEND``. The suite starts one per run, and asks for a ``fresh``
store for every test. Other processes open the store too, by ``url`` alone.

What would make no sense for a back-end stands in its ``lacks``, with the reason; the tests that
need it are then listed as skipped. Whatever else is not defined fails.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from millstream.stores.registry import open_store
from millstream.stores.store import Store

SCHEMES = ("files", "log", "redis", "rocksdb", "postgresql")
Harm = Literal["flip", "tear"]


class Backend(ABC):
    """A store as the suite sees it: ``url`` is that of the present test's store."""

    lacks: ClassVar[Mapping[str, str]] = {}
    url: str

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Start what serves the stores, if anything does; everything it writes is in a folder."""

    @abstractmethod
    def stop(self) -> None:
        """End it; also after a ``start`` that failed halfway."""

    @abstractmethod
    def fresh(self, *, small: bool) -> None:
        """Make ``url`` that of an empty store; a small one can be filled by ``fill_up``."""

    def outage(self) -> AbstractContextManager[None]:
        """The store is away while this lasts, and is itself again afterwards."""
        raise NotImplementedError

    def crash(self) -> None:
        """Kill the server (SIGKILL) and start it again; returns when it may be spoken to."""
        raise NotImplementedError

    def power_cut(self) -> AbstractContextManager[None]:
        """Whatever was not synced by the end of this is gone after it.

        A test opens the store, writes to it and leaves it open inside.
        """
        raise NotImplementedError

    def damage(self, key: str, harm: Harm) -> None:
        """Flip a bit of a record where it is kept, or cut off its end; no store is open."""
        raise NotImplementedError

    def fill_up(self) -> AbstractContextManager[None]:
        """There is no space (less than 64 KB) in a small store while this lasts."""
        raise NotImplementedError

    def open(self, writer: str, *, patience: float = 30) -> Store:
        """Open the present store in this process."""
        return open_store(with_option(self.url, f"patience={patience:g}"), writer)

    def need(self, ability: str) -> None:
        """Skip the test if this back-end lacks an ability."""
        if ability in self.lacks:
            pytest.skip(self.lacks[ability])


def with_option(url: str, option: str) -> str:
    """A URL with one more option."""
    return f"{url}{'&' if '?' in url else '?'}{option}"


def server(program: str) -> str:
    """The path of a server's program; skips if it is missing, except where all are required."""
    elsewhere = "/usr/sbin:/usr/local/sbin"
    found = shutil.which(program) or shutil.which(program, path=elsewhere)
    if found is None:
        missing = f"{program} is not installed: run `tools/setup servers`"
        if os.environ.get("MILLSTREAM_SERVERS") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def missing(scheme: str) -> str | None:
    """Why a back-end cannot be tested, if it cannot."""
    for module in (f"millstream.stores.{scheme}", f"tests.contract.{scheme}_backend"):
        if importlib.util.find_spec(module) is None:
            return f"there is no {module}"
    return None


def backend_of(scheme: str) -> Backend:
    """The back-end behind a scheme."""
    module = importlib.import_module(f"tests.contract.{scheme}_backend")
    backend: Backend = module.BACKEND()
    return backend

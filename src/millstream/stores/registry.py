"""Opens a store by its URL."""

from __future__ import annotations

import importlib
import re

from millstream.errors import ConfigError
from millstream.stores.store import Store

# The scheme: the module with an ``open_store(url, writer)``, and the extra that it needs.
_BACKENDS: dict[str, tuple[str, str | None]] = {
    "files": ("millstream.stores.files", None),
    "log": ("millstream.stores.log", None),
    "redis": ("millstream.stores.redis", "redis"),
    "rocksdb": ("millstream.stores.rocksdb", "rocksdb"),
    "postgresql": ("millstream.stores.postgresql", "postgresql"),
}
_WRITER = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def open_store(url: str, writer: str) -> Store:
    """Open the store behind a URL; ``writer`` names this process among those that write to it.

    A writer's name is never used by two processes at once, nor again after a crash.
    """
    if not _WRITER.fullmatch(writer):
        raise ConfigError(
            f"a writer's name has 1 to 64 letters, digits, '.', '_' and '-', got {writer!r}"
        )
    scheme = url.partition(":")[0].partition("+")[0]
    if "://" not in url or scheme not in _BACKENDS:
        # Not the whole URL: there may be a password in it.
        shown = url.partition("://")[0] + "://…" if "://" in url else url
        raise ConfigError(
            f"{shown!r} is no store; its URL begins with "
            + ", ".join(f"{known}://" for known in _BACKENDS)
        )
    module, extra = _BACKENDS[scheme]
    try:
        backend = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if extra is None or (missing.name or "").startswith("millstream"):
            raise
        raise ConfigError(
            f"{scheme}:// needs the package {missing.name}: pip install 'millstream[{extra}]'"
        ) from None
    store: Store = backend.open_store(url, writer)
    return store

"""Opens a store by its URL; other packages can register stores of their own.

``log`` and ``files`` are built in. Every other scheme, also ``redis``, ``rocksdb`` and
``postgresql``, is an entry point in the group ``millstream.stores``: its name is the scheme, its
object a function ``open_store(url, writer)`` that returns a ``Store``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from millstream.errors import ConfigError
from millstream.stores import files, log
from millstream.stores.store import Store

GROUP = "millstream.stores"

Opener = Callable[[str, str], Store]

_BUILT_IN: dict[str, Opener] = {"log": log.open_store, "files": files.open_store}
_EXTRAS = ("postgresql", "redis", "rocksdb")
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
    opener = _BUILT_IN.get(scheme) if "://" in url else None
    return (opener or _load(_registered(url, scheme)))(url, writer)


def _registered(url: str, scheme: str) -> EntryPoint:
    """The entry point of a scheme."""
    found = entry_points(group=GROUP)
    named = [point for point in found if point.name == scheme and "://" in url]
    if len({point.value for point in named}) > 1:
        packages = ", ".join(point.dist.name for point in named if point.dist is not None)
        raise ConfigError(
            f"several packages register a store {scheme}://: {packages}; uninstall all but one"
        )
    if named:
        return named[0]
    # Not the whole URL: there may be a password in it.
    shown = url.partition("://")[0] + "://…" if "://" in url else url
    known = ", ".join(f"{name}://" for name in sorted({*_BUILT_IN, *found.names}))
    message = f"{shown!r} is not a known store; a store's URL begins with {known}"
    if scheme in _EXTRAS:
        message += f". Install {scheme}:// with: pip install 'millstream[{scheme}]'"
    raise ConfigError(message)


def _load(point: EntryPoint) -> Opener:
    try:
        opener: Opener = point.load()
    except ModuleNotFoundError as missing:
        module = point.module.partition(".")[0]
        if missing.name is None or missing.name.partition(".")[0] == module:
            raise
        package = missing.name
        if point.dist is not None and point.name in point.dist.metadata.get_all(
            "Provides-Extra", []
        ):
            package = f"'{point.dist.name}[{point.name}]'"
        raise ConfigError(
            f"{point.name}:// needs the package {missing.name}: pip install {package}"
        ) from None
    return opener

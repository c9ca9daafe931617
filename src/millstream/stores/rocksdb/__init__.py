"""``rocksdb://``: an LSM tree on a local disk, shared by the processes of one machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from millstream.errors import ConfigError
from millstream.stores.options import patience_of, split_options
from millstream.stores.rocksdb.store import RocksConfig, RocksStore
from millstream.stores.sizes import byte_size

_SCHEME = "rocksdb://"
_LEAST_BUFFER = 64 << 10


__all__ = ["RocksStore", "open_store"]


def open_store(url: str, writer: str) -> RocksStore:
    """Open ``rocksdb:///absolute/folder?buffer=16MB&cache=8MB``."""
    bare, options = split_options(url, ("patience", "buffer", "cache"))
    folder = unquote(bare.removeprefix(_SCHEME))
    if not bare.startswith(_SCHEME) or not folder.startswith("/") or folder == "/":
        raise ConfigError(f"{url!r} has no folder; write rocksdb:///folder?buffer=16MB&cache=8MB")
    sizes = {
        name: byte_size(options[name], name) for name in ("buffer", "cache") if name in options
    }
    if sizes.get("buffer", _LEAST_BUFFER) < _LEAST_BUFFER:
        raise ConfigError(f"buffer must be at least 64KB, got {options['buffer']!r}")
    config = RocksConfig(folder=Path(folder), patience=patience_of(options), **sizes)
    return RocksStore(config, writer)

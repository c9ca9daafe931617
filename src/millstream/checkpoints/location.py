"""Finds the store of a checkpoint: its folder as ``ms.run`` takes it, or a store's URL.

::

    <checkpoint>/store/       the default store, a log
    <checkpoint>/store.url    the URL of the store, if it is another one, without its password
    <checkpoint>/spark/<n>/   Spark's offset and commit logs of incarnation n
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from millstream.errors import MillstreamError
from millstream.stores.registry import open_store
from millstream.stores.store import Store

STORE = "store"
STORE_URL = "store.url"


class NoCheckpointError(MillstreamError):
    """There is no checkpoint at a path."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return (
            f"there is no checkpoint in {self.folder}: it has neither a folder {STORE!r} nor a "
            f"file {STORE_URL!r}; pass the checkpoint= of the run, or the URL of its store"
        )


class CheckpointFolder(Protocol):
    """The folder of a checkpoint, on any file system."""

    @property
    def local_path(self) -> str | None:
        """Its path, if it is on a local or mounted file system."""

    def names(self, name: str) -> list[str]:
        """What is in a folder; nothing if it does not exist."""

    def read(self, name: str) -> str | None:
        """The text of a file, or None if it does not exist."""


class LocalFolder:
    """A folder on a local or mounted file system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.local_path = os.path.abspath(path)

    def names(self, name: str) -> list[str]:
        try:
            return os.listdir(os.path.join(self.local_path, name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> str | None:
        try:
            return Path(self.local_path, name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None


def log_url(folder: str | os.PathLike[str]) -> str:
    """The URL of the log store that a checkpoint's folder holds by default."""
    return f"log://{quote(os.path.abspath(os.path.join(folder, STORE)))}"


def recorded_store(folder: CheckpointFolder) -> str | None:
    """The URL of the store that a checkpoint has, without its password; None if it has none."""
    recorded = (folder.read(STORE_URL) or "").strip() or None
    # Listed first, because opening a store creates it.
    if folder.local_path is not None and STORE in folder.names(""):
        if recorded is None or (recorded.startswith("log:///") and recorded.endswith(f"/{STORE}")):
            return log_url(folder.local_path)  # the folder may have been moved, or be a copy
    return recorded


def find_store(checkpoint: str | os.PathLike[str], store: str | None = None) -> str:
    """The URL of a checkpoint's store; ``store`` overrides it, for instance with a password."""
    place = os.fspath(checkpoint)
    if store is not None or "://" in place:
        return store or place
    recorded = recorded_store(LocalFolder(place))
    if recorded is None:
        raise NoCheckpointError(place)
    return recorded


def open_checkpoint(checkpoint: str | os.PathLike[str], store: str | None = None) -> Store:
    """Open the store of a checkpoint for reading; others may use it at the same time."""
    return open_store(find_store(checkpoint, store), f"reader-{uuid.uuid4().hex[:16]}")

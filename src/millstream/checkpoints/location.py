"""Finds the store behind a checkpoint: a folder as ``ms.run`` takes it, or a store's URL."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from urllib.parse import quote

from millstream.errors import MillstreamError
from millstream.stores.registry import open_store
from millstream.stores.store import Store

STORE = "store"
STORE_URL = "store.url"


class NoCheckpointError(MillstreamError):
    """There is no checkpoint where one was looked for."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return (
            f"there is no checkpoint in {self.folder}: it has neither a folder {STORE!r} nor a "
            f"file {STORE_URL!r}; give the checkpoint= of the run, or the URL of its store"
        )


def log_url(folder: str | os.PathLike[str]) -> str:
    """The URL of the log store that a checkpoint's folder holds by default."""
    return f"log://{quote(os.path.abspath(os.path.join(folder, STORE)))}"


def find_store(checkpoint: str | os.PathLike[str], store: str | None = None) -> str:
    """The URL of a checkpoint's store; ``store`` names it where the folder does not tell all."""
    place = os.fspath(checkpoint)
    if store is not None:
        return store
    if "://" in place:
        return place
    named = _named(place)
    # Looked for, because to open a store is to make it.
    if Path(place, STORE).is_dir() and (named is None or _is_default(named)):
        return log_url(place)  # not what is named: the folder may have been moved, or be a copy
    if named is None:
        raise NoCheckpointError(place)
    return named


def _named(folder: str) -> str | None:
    try:
        return Path(folder, STORE_URL).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_default(url: str) -> bool:
    return url.startswith("log:///") and url.endswith(f"/{STORE}")


def open_checkpoint(checkpoint: str | os.PathLike[str], store: str | None = None) -> Store:
    """Open the store of a checkpoint, beside whoever else uses it."""
    return open_store(find_store(checkpoint, store), f"reader-{uuid.uuid4().hex[:16]}")

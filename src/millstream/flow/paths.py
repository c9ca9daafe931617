"""Paths as users give them."""

from __future__ import annotations

import os

from millstream.errors import ConfigError

PathLike = str | os.PathLike[str]


def path_text(path: PathLike) -> str:
    """A path as text; other objects are rejected by ``check_path``."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def check_path(path: str) -> None:
    """Reject an object that is not a path."""
    if not isinstance(path, str) or not path:
        raise ConfigError(f"path must be a non-empty string or path, got {path!r}")

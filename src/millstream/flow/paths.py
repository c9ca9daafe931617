"""Paths as users give them."""

from __future__ import annotations

import os

from millstream.errors import ConfigError

PathLike = str | os.PathLike[str]


def path_text(path: PathLike) -> str:
    """A path as text; what is no path is left to ``check_path``."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def check_path(path: str) -> None:
    """Refuse what is not a path."""
    if not isinstance(path, str) or not path:
        raise ConfigError(f"path must be a non-empty string or path, got {path!r}")

"""Shipping users' functions to executors that cannot import the user's modules."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

_INSTALLED = tuple(
    {
        str(Path(path).resolve())
        for path in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)
    }
)
_OURS = str(Path(__file__).resolve().parent.parent)


def ship(value: Any) -> bytes:
    """Pickle by value what comes from the user's own files, by name what is installed."""
    modules = [module for module in list(sys.modules.values()) if is_users(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(value))
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def is_users(module: ModuleType) -> bool:
    """Whether a module is a file of the user's, neither installed nor part of Millstream."""
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, "__name__", None) in (None, "__main__"):
        return False
    return _is_users_file(file)


@lru_cache(maxsize=None)
def _is_users_file(file: str) -> bool:
    return not str(Path(file).resolve()).startswith((_OURS, *_INSTALLED))

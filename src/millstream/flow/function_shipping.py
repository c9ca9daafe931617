"""Shipping users' functions to executors that cannot import the user's modules."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from io import BytesIO
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

import cloudpickle

_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_SITES = {"site-packages", "dist-packages"}
_OURS = Path(__file__).resolve().parent.parent
# With a SPARK_HOME these are not in site-packages, but every worker has them.
_EVERYWHERE = {"pyspark", "py4j"}

_OF_IMPORT = {"__builtins__", "__cached__", "__loader__", "__spec__"}

# The registry of modules to pickle by value belongs to the process, not to the thread.
_registering = RLock()


def ship(value: Any) -> bytes:
    """Pickle objects of the user's files by value, installed ones by name."""
    with _registering:
        registered = cloudpickle.list_registry_pickle_by_value()
        # By name, because a module may be listed twice; modules that the user registered stay.
        modules = {
            name: module
            for name, module in list(sys.modules.items())
            if name not in registered and is_users(module) and module.__name__ == name
        }
        for module in modules.values():
            cloudpickle.register_pickle_by_value(module)
        try:
            data = BytesIO()
            _Pickler(data).dump(value)
            return data.getvalue()
        finally:
            for module in modules.values():
                cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Gives a module its contents after it was made: the user's may import each other."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and is_users(obj):
            contents = {name: item for name, item in vars(obj).items() if name not in _OF_IMPORT}
            return ModuleType, (obj.__name__,), contents
        return super().reducer_override(obj)


def is_users(module: object) -> bool:
    """Whether a module is a file of the user's, neither installed nor part of Millstream."""
    if not isinstance(module, ModuleType):
        return False
    # From the dictionary: asking a lazy module for an attribute may import it.
    names = vars(module)
    file, name = names.get("__file__"), names.get("__name__")
    if not isinstance(file, str) or not isinstance(name, str) or name == "__main__":
        return False
    return name.partition(".")[0] not in _EVERYWHERE and is_users_file(file)


@cache
def is_users_file(file: str) -> bool:
    """Whether a file is the user's, neither installed nor part of Millstream."""
    path = Path(file).resolve()
    installed = any(path.is_relative_to(folder) for folder in (*_STANDARD, _OURS))
    return not installed and _SITES.isdisjoint(path.parts)

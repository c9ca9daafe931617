"""Copies of users' objects in the process that has them."""

from __future__ import annotations

import pickle
from io import BytesIO
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import cloudpickle

T = TypeVar("T")


def copied(value: T) -> T:
    """A deep copy of an object that can be shipped, with the same classes and functions.

    Unpickling a class that was pickled by value would replace the methods of the original, and
    ``copy.deepcopy`` does not copy objects that hold modules.
    """
    data, shared = BytesIO(), list[Any]()
    _Pickler(data, shared).dump(value)
    data.seek(0)
    found: T = _Unpickler(data, shared).load()
    return found


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, type | FunctionType | ModuleType):
            return None
        self._shared.append(obj)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]

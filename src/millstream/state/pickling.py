"""Pickling users' objects: plain pickle where it works, by value where it must.

A class of the user's script or of a module that only the driver can import is shipped by value,
so its instances cannot be pickled by name on an executor.
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Pickle a user's object."""
    try:
        return pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(value, 5))


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Give back what ``dumps`` took."""
    return pickle.loads(data)

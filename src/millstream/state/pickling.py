"""Pickling users' objects: plain pickle where it works, by value where it must.

A class of the user's script or of a module that only the driver can import is shipped by value,
so its instances cannot be pickled by name on an executor.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pyarrow as pa

from millstream.ring.keys import one_nan


def dumps(value: Any) -> bytes:
    """Pickle a user's object."""
    try:
        return pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(value, 5))


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Unpickle what ``dumps`` wrote."""
    return pickle.loads(data)


def unpickled(data: bytes | pa.Buffer) -> Iterator[Any]:
    """The objects of a sequence of pickles."""
    source = pa.BufferReader(data)
    while source.tell() < source.size():
        yield pickle.load(source)


def canonical(keys: list[Any]) -> list[Any]:
    """Unpickled keys as a dictionary finds them: there is just one NaN."""
    kinds = set(map(type, keys))
    return list(map(one_nan, keys)) if float in kinds or tuple in kinds else keys

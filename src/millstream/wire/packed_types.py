"""Arrow types on the wire: of thousands of receipts nearly all name the same ones.

To unpickle a schema takes longer than to unpickle the rest of a receipt. Here a process does it
once for each type, and equal ones are the same object.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import pyarrow as pa

_CACHED = 1024


def packed_type(kind: pa.DataType | pa.Schema | None) -> bytes:
    """The bytes of a type."""
    return b"" if kind is None else pickle.dumps(kind, 5)


@lru_cache(maxsize=_CACHED)
def unpacked_type(packed: bytes) -> Any:
    """The type of these bytes."""
    return pickle.loads(packed) if packed else None

"""The rows in which blocks cross Spark's shuffle and the feed to a node.

``route`` is the partition of the next shuffle, ``target`` the job (or sink) that the block is
for and ``part`` its partition there; ``stage``, ``task`` and ``sequence`` say where it came
from, and ``rows`` how many values of the user went into it. A row without a target is a *mark*,
which gives every partition its number.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash

MARK = -1
BLOCK_SCHEMA = pa.schema(
    [
        ("route", pa.int32()),
        ("target", pa.int32()),
        ("part", pa.int32()),
        ("stage", pa.int32()),
        ("task", pa.int32()),
        ("sequence", pa.int32()),
        ("rows", pa.int64()),
        ("block", pa.binary()),
    ]
)


def buffers_of(column: pa.BinaryArray) -> list[pa.Buffer]:
    """The values of a column of blocks, without a copy (its scalars would be copies)."""
    _, offsets, data = column.buffers()
    if not len(column):
        return []
    first = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return [data.slice(start, stop - start) for start, stop in pairwise(first.tolist())]


def digest_of(blocks: Iterable[tuple[tuple[int, int, int], pa.Buffer]]) -> str:
    """One digest over blocks and their origins, in the order of the origins."""
    state = xxhash.xxh3_128()
    for origin, data in blocks:
        state.update(repr(origin).encode())
        state.update(data)
    return str(state.hexdigest())

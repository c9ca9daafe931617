"""The map side of a join: records get their key, time and side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.flow.joins import JoinSide
from millstream.ring.key_types import INSTANT
from millstream.ring.keys import decode_keys
from millstream.times import FIRST, LAST
from millstream.work.chunk import Chunk
from millstream.work.keyed_batches import KeyedBatch
from millstream.work.keyed_values import column_values, keyed

_EDGES = pa.array([FIRST, LAST]).cast(INSTANT)


def run_side(step: JoinSide, chunk: Chunk) -> Iterator[Chunk]:
    """Turn records into ``(key, (side, value))``, with a time if they have one."""
    for values in keyed(step.keying, chunk):
        if isinstance(values, KeyedBatch):
            # With columns as keys, the value is the row.
            by_column = isinstance(step.key, str | tuple)
            found = _rows(step, chunk, values) if by_column else column_values(values)
            times = None if values.times is None else values.times.to_pylist()
            records = _tagged(step.side, decode_keys(values.keys), found, times)
        else:
            keys, found, *rest = zip(*values.items, strict=True)
            records = _tagged(step.side, keys, found, rest[0] if rest else None)
        yield Chunk(records=records, time=chunk.time)


def _rows(step: JoinSide, chunk: Chunk, values: KeyedBatch) -> Sequence[Any]:
    """The rows of a chunk; a time that no datetime can represent is None in them."""
    if values.times is None or not chunk.is_batch:
        return chunk.records()
    beyond = pc.is_in(values.times, _EDGES)
    batch = chunk.batch()
    at = batch.schema.names.index(step.time)
    if not beyond.true_count or not pa.types.is_temporal(batch.schema.field(at).type):
        return chunk.records()
    column = pc.if_else(beyond, None, batch.column(at))
    return Chunk(batch=batch.set_column(at, batch.schema.field(at), column)).records()


def _tagged(
    side: str, keys: Sequence[Any], values: Sequence[Any], times: Sequence[Any] | None
) -> list[tuple[Any, ...]]:
    tagged = zip(repeat(side), values)
    if times is None:
        return list(zip(keys, tagged, strict=True))
    return list(zip(keys, tagged, times, strict=True))

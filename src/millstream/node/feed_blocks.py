"""What the blocks of a feed hold, and what readers see of a reduction's outputs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.node.held_units import Block
from millstream.ring.key_types import shown_key
from millstream.ring.keys import decode_keys
from millstream.state.blocks import KEY, TIME, WINDOW, from_bytes
from millstream.state.values import unify_nulls
from millstream.work.job_clock import Tally, summed, tallies_of


def opened(blocks: Sequence[Block]) -> tuple[list[pa.RecordBatch], tuple[Tally, ...]]:
    """The rows of blocks, and apart from them what map tasks counted."""
    rows: list[pa.RecordBatch] = []
    tallies: list[Tally] = []
    for block in blocks:
        batch = from_bytes(block.data)
        counted = tallies_of(batch)
        if counted is None:
            rows.append(batch)
        else:
            tallies.extend(counted)
    return rows, summed(tallies)


def key_type_in(batches: Sequence[pa.RecordBatch]) -> pa.DataType | None:
    """The type of the keys in a unit's blocks, which reducing has found to be one."""
    return unify_nulls(b.schema.field(KEY).type for b in batches) if batches else None


def key_in(batches: Sequence[pa.RecordBatch]) -> str:
    """One of the keys in a unit's blocks, as errors show it."""
    columns = (batch.column(KEY) for batch in batches if batch.num_rows)
    return next((shown_key(decode_keys(column.slice(0, 1))[0]) for column in columns), "")


def shown_part(schema: pa.Schema) -> pa.Schema:
    """What readers see of outputs: without the columns that tell the window and time of rows."""
    hidden = [at for at, name in enumerate(schema.names) if name in (WINDOW, TIME)]
    for at in reversed(hidden):
        schema = schema.remove(at)
    return schema

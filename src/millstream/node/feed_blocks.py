"""The blocks of a feed: how they arrive, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from millstream.node.held_units import Block
from millstream.ring.key_types import key_text
from millstream.ring.keys import decode_keys
from millstream.state.blocks import KEY, TIME, WINDOW, Origin, from_bytes
from millstream.state.values import unify_nulls
from millstream.wire.blocks import buffers_of
from millstream.wire.feed import BrokenFeedError, End
from millstream.work.job_clock import Tally, summed, tallies_of


def received(items: Iterator[Any]) -> tuple[list[Block], End]:
    """Receive the chunks of a feed up to its end marker."""
    blocks: list[Block] = []
    for item in items:
        if isinstance(item, End):
            return blocks, item
        blocks.extend(blocks_of(item))
    raise BrokenFeedError("a feed broke off before its end marker; the task is retried")


def blocks_of(batch: pa.RecordBatch) -> Iterator[Block]:
    """The blocks of one chunk."""
    rows = zip(
        batch.column("stage").to_pylist(),
        batch.column("task").to_pylist(),
        batch.column("sequence").to_pylist(),
        buffers_of(batch.column("block")),
        strict=True,
    )
    for stage, task, sequence, data in rows:
        yield Block(Origin(stage, task, sequence), data)


def opened(blocks: Sequence[Block]) -> tuple[list[pa.RecordBatch], tuple[Tally, ...]]:
    """The rows of blocks, and separately the tallies of map tasks."""
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
    """The type of the keys in a unit's blocks; the reducer has checked that it is one."""
    return unify_nulls(b.schema.field(KEY).type for b in batches) if batches else None


def key_in(batches: Sequence[pa.RecordBatch]) -> str:
    """One of the keys in a unit's blocks, for error messages."""
    columns = (batch.column(KEY) for batch in batches if batch.num_rows)
    return next((key_text(decode_keys(column.slice(0, 1))[0]) for column in columns), "")


def shown_part(schema: pa.Schema) -> pa.Schema:
    """The schema of outputs as sinks see it: without the columns for window and time."""
    hidden = [at for at, name in enumerate(schema.names) if name in (WINDOW, TIME)]
    for at in reversed(hidden):
        schema = schema.remove(at)
    return schema

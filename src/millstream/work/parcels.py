"""What a reduction gives to the stage behind it, if some of it is no result: in one schema.

The answer to a feed is a stream of batches with one schema. Values that the reducer has found to
be late have another one than results; so both are put into a parcel, each batch as a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.state.blocks import from_bytes, to_bytes

_LATE = "millstream.late"
_BLOCK = "millstream.block"
_SCHEMA = pa.schema([(_LATE, pa.bool_()), (_BLOCK, pa.large_binary())])


def with_late(
    results: Sequence[pa.RecordBatch], late: Sequence[pa.RecordBatch]
) -> list[pa.RecordBatch]:
    """Results, and if anything is late, a parcel of both."""
    if not late:
        return list(results)
    which = [False] * len(results) + [True] * len(late)
    blocks = [to_bytes(batch) for batch in (*results, *late)]
    columns = [pa.array(which), pa.array(blocks, pa.large_binary())]
    return [pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)]


def opened(output: pa.RecordBatch) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The results, and the records of what is late."""
    if output.schema.names != _SCHEMA.names:
        return [output], []
    found: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = [], []
    for is_late, block in zip(output.column(_LATE).to_pylist(), output.column(_BLOCK), strict=True):
        found[is_late].append(from_bytes(block.as_buffer()))
    return found


def results_in(outputs: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The results among what a reduction gives."""
    return [batch for output in outputs for batch in opened(output)[0]]

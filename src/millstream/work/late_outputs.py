"""Outputs of a reduction that has found late records: results and records in one schema.

The answer to a feed is a stream of batches with one schema. Late records have another schema than
results; so both travel as serialised batches in one column.
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
    """The results as they are, or, if there are late records, both serialised in one batch."""
    if not late:
        return list(results)
    which = [False] * len(results) + [True] * len(late)
    blocks = [to_bytes(batch) for batch in (*results, *late)]
    columns = [pa.array(which), pa.array(blocks, pa.large_binary())]
    return [pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)]


def unpacked(output: pa.RecordBatch) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The results and the late records of a batch."""
    if output.schema.names != _SCHEMA.names:
        return [output], []
    found: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = [], []
    for is_late, block in zip(output.column(_LATE).to_pylist(), output.column(_BLOCK), strict=True):
        found[is_late].append(from_bytes(block.as_buffer()))
    return found


def results_in(outputs: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The results among the outputs of a reduction."""
    return [batch for output in outputs for batch in unpacked(output)[0]]

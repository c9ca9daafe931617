"""Values that may be late: they are behind the watermark, but an open session may include them.

Whether one does, only the operator that holds the sessions of a key can decide. So these values
travel in blocks of their own, with a row for each value: its origin and, if late records are read,
the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.state.aggregates.grouping import Bools, Ints
from millstream.work.chunk import Chunk
from millstream.work.job_clock import Tally
from millstream.work.keyed_batches import Timed
from millstream.work.packers.packer import packer_for
from millstream.work.packers.placing import ROW, Alone

ORIGIN = "millstream.origin"
RECORD = "millstream.record"
_ON_TIME = -2
_UNCOUNTED = -1


class MaybeLatePacker:
    """Collects the values of one job in one map task that may be late; records have one schema."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        self._packer = packer_for(job, slots, placing=Alone())
        self._origins: list[Ints] = []
        self._chunks: list[Chunk] = []
        self.rows = self.bytes = 0

    def add(
        self, values: Timed, origin: int | None, records: Chunk | None = None, weight: int = 0
    ) -> None:
        """Take some values of a weight; values without an origin are not counted."""
        self._packer.add(values.values, values.times)
        count = len(values.times)
        self._origins.append(np.full(count, _UNCOUNTED if origin is None else origin, np.int64))
        if records is not None:
            self._chunks.append(records)
        self.rows += count
        self.bytes += weight if records is None else 2 * weight

    def flush(self) -> pa.RecordBatch | None:
        """Give all that was added since the last flush, ordered by slot and hash."""
        block = self._packer.flush()
        if block is None:
            return None
        rows = block.column(ROW).to_numpy()
        origins, chunks = np.concatenate(self._origins), self._chunks
        self._origins, self._chunks, self.rows, self.bytes = [], [], 0, 0
        first = int(rows.min())
        block = block.drop_columns([ROW]).append_column(ORIGIN, pa.array(origins[rows - first]))
        if not chunks:
            return block
        records = _joined(chunks).take(pa.array(rows - first))
        column = pa.StructArray.from_arrays(records.columns, fields=list(records.schema))
        return block.append_column(
            pa.field(RECORD, column.type, metadata=records.schema.metadata), column
        )


def _joined(chunks: Sequence[Chunk]) -> pa.RecordBatch:
    if not chunks[0].is_batch:
        return Chunk(records=[record for chunk in chunks for record in chunk.records()]).batch()
    [batch] = (
        pa.Table.from_batches([chunk.batch() for chunk in chunks]).combine_chunks().to_batches()
    )
    return batch


@dataclass(frozen=True)
class LateValues:
    """The late values that an operator found: as records, if they are read, and counted."""

    records: list[pa.RecordBatch] = field(default_factory=list)
    tallies: tuple[Tally, ...] = ()


def origins_in(blocks: Sequence[pa.RecordBatch]) -> Ints | None:
    """The origin of each row of all blocks that may be late; None if no row may be."""
    if not any(ORIGIN in block.schema.names for block in blocks):
        return None
    return np.concatenate(
        [
            block.column(ORIGIN).to_numpy()
            if ORIGIN in block.schema.names
            else np.full(block.num_rows, _ON_TIME, np.int64)
            for block in blocks
        ]
    )


def is_maybe_late(origins: Ints) -> Bools:
    """Which rows may be late."""
    maybe_late: Bools = origins != _ON_TIME
    return maybe_late


def late_values(
    blocks: Sequence[pa.RecordBatch], origins: Ints, times: Ints, late: Bools, *, read: bool
) -> LateValues:
    """Count the rows that may be late by whether they are ``late``, and collect late records."""
    tallies = []
    for origin in np.unique(origins[origins >= 0]).tolist():
        mine = origins == origin
        taken = times[mine & ~late]
        tally = Tally(origin, late=int((mine & late).sum()))
        if len(taken):
            tally += Tally(origin, rows=len(taken), latest=int(taken.max()))
        tallies.append(tally)
    cuts = np.cumsum([block.num_rows for block in blocks])[:-1]
    found = []
    for block, mask in zip(blocks, np.split(late, cuts), strict=True):
        if read and RECORD in block.schema.names and mask.any():
            records = block.column(RECORD).filter(pa.array(mask))
            schema = pa.schema(list(records.type), metadata=block.schema.field(RECORD).metadata)
            found.append(pa.RecordBatch.from_arrays(records.flatten(), schema=schema))
    return LateValues(found, tuple(tallies))

"""A chunk of a stream on its way through fused steps, as records or as a batch.

Conversion is expensive; so a chunk is converted only on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.state.records import decode_records, encode_records, plain_columns


class Chunk:
    """Some records of a stream.

    ``time`` is the event time of all of them, in microseconds, if they are results of one window.
    """

    __slots__ = ("_batch", "_records", "is_batch", "schema", "time")

    def __init__(
        self,
        *,
        records: Sequence[Any] | None = None,
        batch: pa.RecordBatch | None = None,
        schema: pa.Schema | None = None,
        time: int | None = None,
    ) -> None:
        self._records = records
        self._batch = batch
        self.schema = schema
        self.time = time
        # Whether it has Arrow types. Not whether it was converted to a batch: that depends on who
        # else read the chunk.
        self.is_batch = batch is not None or schema is not None

    def records(self) -> Sequence[Any]:
        """The records, as Python objects."""
        if self._records is None:
            assert self._batch is not None
            self._records = decode_records(self._batch)
        return self._records

    def batch(self) -> pa.RecordBatch:
        """The records as a batch that decodes to exactly the same records."""
        if self._batch is None:
            assert self._records is not None
            self._batch = encode_records(self._records, self.schema)
        return self._batch

    def plain(self) -> pa.RecordBatch:
        """The records as columns that any Arrow reader understands."""
        return plain_columns(self.batch())

    def part(self, start: int, stop: int) -> Chunk:
        """The records from one position to another."""
        if (start, stop) == (0, len(self)):
            return self
        if self._records is None:
            assert self._batch is not None
            return Chunk(batch=self._batch.slice(start, stop - start), time=self.time)
        return Chunk(records=self._records[start:stop], schema=self.schema, time=self.time)

    def __len__(self) -> int:
        if self._records is not None:
            return len(self._records)
        assert self._batch is not None
        return int(self._batch.num_rows)

"""The map side of a simulated task: that of Spark's workers, with blocks as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.sim.workload import Outputs
from millstream.state.blocks import to_bytes
from millstream.wire.epoch_record import EpochRecord
from millstream.work.chunk import Chunk
from millstream.work.map_side import MapSide
from millstream.work.program import Program

Row = tuple[Any, ...]


class MapTask:
    """Takes rows of sources, or results of jobs; gives blocks, and what sinks see."""

    def __init__(self, program: Program, record: EpochRecord, stage: int, task: int) -> None:
        self.rows: list[Row] = []
        self.shown: Outputs = {}
        self._place = (stage, task)
        self._map_side = MapSide(
            program,
            self,
            time=record.time,
            clocks=record.clocks,
            key_types={job: types.key for job, types in record.types.items()},
            partitions=record.partitions,
        )

    def read(self, source: int, records: list[Any]) -> None:
        """Take records of a source."""
        self._map_side.read(source, Chunk(records=records))

    def take(self, job: int, output: pa.RecordBatch) -> None:
        """Take results of a job."""
        self._map_side.results(job, output)

    def finish(self) -> None:
        """Give all blocks."""
        self._map_side.finish()

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        for part, rows in shares:
            place = (*self._place, len(self.rows))
            self.rows.append((part, job, part, *place, count, to_bytes(rows)))
            count = 0  # counted once, with the first block

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        self.shown.setdefault(sink, []).extend(chunk.records())

    def to_frame(self, frame: int, chunk: Chunk) -> None:
        raise TypeError("simulated workflows have no steps in the JVM")

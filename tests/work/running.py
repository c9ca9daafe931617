"""Running a job without Spark: map tasks that pack, a node's reducer that takes the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import Place
from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex
from millstream.ring.ring import partition_slots
from millstream.state.blocks import from_bytes, to_bytes
from millstream.state.records import decode_records
from millstream.work.chunk import Chunk
from millstream.work.keyed_values import keyed
from millstream.work.operators import operator_for
from millstream.work.packers.packer import cut, packer_for
from millstream.work.unit import Reduced, ReduceOperator, UnitContext

SLOTS = 16
ALL = np.ones(SLOTS, dtype=bool)
HERE = Place("here.py", 1)


def job_of(reduce: object, **options: Any) -> JobVertex:
    """A job called "job", as ``map_reduce`` would describe it."""
    reducer = reducer_of(reduce, "job", windowed=options.get("windowing") is not None)
    return replace(JobVertex(HERE, name="job", reducer=reducer), **options)


def blocks_of(job: JobVertex, *chunks: Chunk, slots: int = SLOTS) -> list[pa.RecordBatch]:
    """The blocks of one map task that reads the chunks and flushes once, at the end."""
    packer = packer_for(job, slots)
    for chunk in chunks:
        for values in keyed(job, chunk):
            packer.add(values)
    packed = packer.flush()
    assert packer.rows == 0
    return [] if packed is None else [packed]


def blocks_of_pairs(job: JobVertex, pairs: Sequence[Any]) -> list[pa.RecordBatch]:
    return blocks_of(job, Chunk(records=list(pairs)))


class Running:
    """A job on one node, fed epoch by epoch by several map tasks."""

    def __init__(self, job: JobVertex, *, partitions: int = 3, tasks: int = 2) -> None:
        self.job = job
        self.operator: ReduceOperator[Any] = operator_for(job, SLOTS)
        self._partitions = partition_slots(SLOTS, partitions)
        self._tasks = tasks

    def epoch(self, records: Sequence[Any], time: int = 0) -> list[Any]:
        """Run and commit one epoch; give its outputs."""
        parts = [list(records[task :: self._tasks]) for task in range(self._tasks)]
        blocks = [b for part in parts if part for b in blocks_of_pairs(self.job, part)]
        return self.feed(blocks, time)

    def feed(self, blocks: Sequence[pa.RecordBatch], time: int = 0) -> list[Any]:
        """Commit one epoch of these blocks, partition by partition."""
        reduced = self._units(blocks, time)
        for unit in reduced:
            self.operator.state.apply(unit.fragment)
        return [
            record for unit in reduced for batch in unit.outputs for record in decode_records(batch)
        ]

    def fragments(self, blocks: Sequence[pa.RecordBatch], time: int) -> list[Any]:
        """What one epoch of these blocks would do, partition by partition; nothing is committed."""
        return [unit.fragment for unit in self._units(blocks, time)]

    def _units(self, blocks: Sequence[pa.RecordBatch], time: int) -> list[Reduced[Any]]:
        return [
            self.reduce([part for block in blocks for part in self._share(block, at)], at, time)
            for at in range(len(self._partitions))
        ]

    def reduce(self, blocks: Sequence[pa.RecordBatch], at: int, time: int) -> Reduced[Any]:
        slots = self._partitions[at]
        return self.operator.reduce(blocks, UnitContext(slots, time, self.job.output))

    def _share(self, block: pa.RecordBatch, at: int) -> list[pa.RecordBatch]:
        # Through bytes, as blocks travel.
        shares = cut(block, SLOTS, [slots.start for slots in self._partitions])
        return [from_bytes(to_bytes(rows)) for part, rows in shares if part == at]

    def state(self) -> dict[Any, Any]:
        """All committed keys with their state."""
        return dict(self.operator.state.items(ALL))

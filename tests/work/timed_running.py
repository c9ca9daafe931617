"""Running a job with timers without Spark, with event times and watermarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex
from millstream.state.records import decode_records
from millstream.times import BEGINNING, END
from millstream.work.chunk import Chunk
from millstream.work.event_time_meter import TimeMeter
from millstream.work.job_clock import JobClock
from millstream.work.keyed_values import keyed
from millstream.work.operators import operator_for
from millstream.work.packers.packer import packer_for
from millstream.work.unit import Reduced, ReduceOperator, UnitContext

from .running import ALL, HERE, SLOTS

SECOND = 1_000_000


def timed_job(reduce: object, on_timer: object, **options: Any) -> JobVertex:
    """A job called "job" with timers."""
    reducer = reducer_of(reduce, "job", on_timer=on_timer)
    return replace(JobVertex(HERE, name="job", reducer=reducer), **options)


def timed_blocks(job: JobVertex, chunk: Chunk) -> list[pa.RecordBatch]:
    """The blocks of one map task."""
    packer, meter = packer_for(job, SLOTS), TimeMeter(job, JobClock())
    for values in keyed(job, chunk):
        packer.add(values, meter.measure(values, 0))
    packed = packer.flush()
    return [] if packed is None else [packed]


class TimedRunning:
    """A job with timers on one node, fed epoch by epoch."""

    def __init__(self, job: JobVertex) -> None:
        self.job = job
        self.operator: ReduceOperator[Any] = operator_for(job, SLOTS)
        self.watermark = BEGINNING

    def reduce(
        self, records: Sequence[Any], time: int, watermark: int | None = None
    ) -> Reduced[Any]:
        """What an epoch would do; times are in seconds."""
        blocks = timed_blocks(self.job, Chunk(records=list(records))) if records else []
        return self._reduce(blocks, time, watermark)

    def _reduce(
        self, blocks: Sequence[pa.RecordBatch], time: int, watermark: int | None
    ) -> Reduced[Any]:
        closed = self.watermark
        mark = closed if watermark is None else min(END, max(closed, watermark * SECOND))
        clock = JobClock(closed, mark, timed=mark > BEGINNING)
        unit = UnitContext(range(SLOTS), time * SECOND, self.job.output, clock=clock)
        return self.operator.reduce(blocks, unit)

    def epoch(self, records: Sequence[Any], time: int, watermark: int | None = None) -> list[Any]:
        """Run and commit one epoch; give its outputs."""
        return self._commit(self.reduce(records, time, watermark), watermark)

    def feed(self, blocks: Sequence[pa.RecordBatch], time: int) -> list[Any]:
        """Run and commit one epoch of these blocks; give its outputs."""
        return self._commit(self._reduce(blocks, time, None), None)

    def _commit(self, reduced: Reduced[Any], watermark: int | None) -> list[Any]:
        if watermark is not None:
            self.watermark = max(self.watermark, watermark * SECOND)
        self.operator.state.apply(self.operator.state.decode(self._encoded(reduced)))
        return [record for batch in reduced.outputs for record in decode_records(batch)]

    def _encoded(self, reduced: Reduced[Any]) -> bytes:
        return self.operator.state.encode(reduced.fragment)

    def state(self) -> dict[Any, Any]:
        """All committed keys with their state."""
        return dict(self.operator.state.items(ALL))

"""The map side of a task: where its blocks go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.workflow import Workflow
from millstream.ring.ring import partition_slots
from millstream.work.chunk import Chunk
from millstream.work.job_clock import JobClock, tallies_of
from millstream.work.map_side import MapSide
from millstream.work.program import program_of

SLOTS = 3


class Blocks:
    """Keeps the blocks of each partition."""

    def __init__(self) -> None:
        self.found: list[tuple[int, pa.RecordBatch]] = []

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        self.found.extend(shares)

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        raise AssertionError("nothing goes to sinks")

    to_frame = to_sink


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7])
def test_no_block_goes_to_a_partition_without_slots(partitions: int) -> None:
    flow = Workflow("w")
    flow.source("in", ms.read.rate()).map_reduce(
        "job", map=iter_of, reduce=ms.count(), window=ms.tumbling(timedelta(seconds=1))
    )
    program = program_of(plan(flow), SLOTS, partitions)
    [job] = program.jobs
    blocks = Blocks()
    side = MapSide(program, blocks, time=0, clocks={job: JobClock()}, key_types={})
    time = datetime(1970, 1, 1, tzinfo=UTC)
    side.read(0, Chunk(records=[[(key, 1, time) for key in range(20)]]))
    side.finish()

    slots = partition_slots(SLOTS, partitions)
    assert all(slots[part] for part, _ in blocks.found)
    told = [tally for _, batch in blocks.found for tally in tallies_of(batch) or ()]
    assert [tally.rows for tally in told] == [20]


def iter_of(record: list[tuple[int, int, datetime]]) -> list[tuple[int, int, datetime]]:
    return record

"""The map side of a task: where its blocks go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.workflow import Workflow
from millstream.state.blocks import SLOT
from millstream.work.chunk import Chunk
from millstream.work.job_clock import JobClock, tallies_of
from millstream.work.map_side import MapSide
from millstream.work.program import program_of

SLOTS = 16


class Blocks:
    """Keeps the blocks of each partition."""

    def __init__(self) -> None:
        self.found: list[tuple[int, pa.RecordBatch]] = []

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        self.found.extend(shares)

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        raise AssertionError("nothing goes to sinks")

    to_frame = to_sink


def test_blocks_go_to_the_partitions_of_their_slots_and_tallies_to_the_first() -> None:
    flow = Workflow("w")
    flow.source("in", ms.read.rate()).map_reduce(
        "job", map=iter_of, reduce=ms.count(), window=ms.tumbling(timedelta(seconds=1))
    )
    program = program_of(plan(flow), SLOTS)
    [job] = program.jobs
    blocks = Blocks()
    clocks = {job: JobClock()}
    side = MapSide(program, blocks, time=0, clocks=clocks, key_types={}, partitions=(0, 1, 9))
    time = datetime(1970, 1, 1, tzinfo=UTC)
    side.read(0, Chunk(records=[[(key, 1, time) for key in range(200)]]))
    side.finish()

    *found, (first, tallies) = blocks.found
    assert first == 0
    assert [tally.rows for tally in tallies_of(tallies) or ()] == [200]
    ranges = (range(1), range(1, 9), range(9, SLOTS))
    assert {part for part, _ in found} == {0, 1, 2}
    assert all(set(batch.column(SLOT).to_pylist()) <= set(ranges[part]) for part, batch in found)
    assert sum(batch.num_rows for _, batch in found) == 200


def iter_of(record: list[tuple[int, int, datetime]]) -> list[tuple[int, int, datetime]]:
    return record

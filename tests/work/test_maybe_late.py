"""Values behind the watermark on their way to the reducer, and back if they are late."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.streams import Stream
from millstream.flow.workflow import Workflow
from millstream.work.chunk import Chunk
from millstream.work.job_clock import JobClock, Tally, tallies_of
from millstream.work.late_outputs import results_in
from millstream.work.map_side import MapSide
from millstream.work.maybe_late import ORIGIN, RECORD
from millstream.work.operators import operator_for
from millstream.work.packers.placing import LAST, START
from millstream.work.program import Program, program_of
from millstream.work.unit import UnitContext

SLOTS = 4
GAP = timedelta(microseconds=10)
INSTANT = pa.timestamp("us", "UTC")


def at(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


class Task:
    """A map task of one job in an epoch, in which windows until 100 are closed."""

    def __init__(self, program: Program) -> None:
        [self.job] = program.jobs
        self.clock = JobClock(closed=100, watermark=100)
        self.found: list[pa.RecordBatch] = []
        self.seen: list[Any] = []
        clocks = {self.job: self.clock}
        self.side = MapSide(program, self, time=0, clocks=clocks, key_types={}, partitions=(0,))

    def blocks(self, job: int, shares: Sequence[tuple[int, pa.RecordBatch]], count: int) -> None:
        self.found += [batch for _, batch in shares]

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        self.seen += chunk.records()

    to_frame = to_sink

    def run(self, chunk: Chunk) -> None:
        self.side.read(0, chunk)
        self.side.finish()

    @property
    def maybe_late(self) -> list[pa.RecordBatch]:
        return [block for block in self.found if ORIGIN in block.schema.names]

    @property
    def told(self) -> list[Tally]:
        return [tally for block in self.found for tally in tallies_of(block) or ()]


def flow_of(**options: Any) -> tuple[Workflow, Any]:
    flow = Workflow("w")
    source = flow.source("in", ms.read.rate())
    return flow, source.map_reduce("job", reduce=ms.count(), window=ms.session(GAP), **options)


def program_with(flow: Workflow, read: Stream | None = None) -> Program:
    if read is not None:
        read.sink("late", ms.write.callback(lambda rows, epoch: None))
    return program_of(plan(flow), SLOTS)


def pairs(*records: Any) -> Chunk:
    return Chunk(records=list(records))


def test_what_only_the_reducer_can_judge_travels_apart_and_is_not_counted() -> None:
    flow, job = flow_of()
    task = Task(program_with(flow, job.late))
    task.run(pairs(("a", 1, 9e-05), ("a", 2, 9.1e-05), ("b", 3, 4e-05), ("a", 4, 7e-05)))

    [block] = task.maybe_late
    by_time = dict(zip(block.column(LAST).to_pylist(), block.to_pylist(), strict=True))
    assert by_time.keys() == {90, 40, 70}
    assert all(row[START] == row[LAST] and row[ORIGIN] == 0 for row in by_time.values())
    assert by_time[40]["key"] == "b"
    assert task.told == [Tally(0, rows=1, latest=91)]
    assert not task.seen  # nobody knows yet whether they are late


def test_records_of_what_may_be_late_travel_only_if_somebody_reads_them() -> None:
    flow, _ = flow_of()
    task = Task(program_with(flow))
    task.run(pairs(("a", 1, at(90))))

    [block] = task.maybe_late
    assert RECORD not in block.schema.names


def test_late_rows_come_back_as_they_were_with_all_their_columns() -> None:
    flow, job = flow_of(key="name", time="at")
    program = program_with(flow, job.late)
    task = Task(program)
    rows = {"name": ["a", "b"], "note": ["x", None], "at": pa.array([90, 20], INSTANT)}
    task.run(Chunk(batch=pa.record_batch(rows)))
    unit = UnitContext(range(SLOTS), 0, None, True, task.clock)
    reduced = operator_for(program.jobs[task.job], SLOTS).reduce(
        [block for block in task.found if block.num_rows], unit
    )

    assert reduced.tallies == (Tally(0, late=2),)
    assert not reduced.fragment and not results_in(reduced.outputs)
    [output] = reduced.outputs
    task.side.results(task.job, output)
    assert sorted(map(tuple, task.seen)) == [
        ("a", "a", "x", at(90)),
        ("b", "b", None, at(20)),
    ]


def test_results_and_late_records_share_the_answer_to_a_feed() -> None:
    flow, job = flow_of()
    job.sink("out", ms.write.callback(lambda rows, epoch: None))
    program = program_with(flow, job.late)
    task = Task(program)
    task.run(pairs(("a", 1, 9.5e-05), ("b", 2, 4e-05)))
    task.clock = JobClock(closed=100, watermark=200)
    reduced = operator_for(program.jobs[task.job], SLOTS).reduce(
        [block for block in task.found if block.num_rows],
        UnitContext(range(SLOTS), 0, None, True, task.clock),
    )
    assert [batch.num_rows for batch in results_in(reduced.outputs)] == [1]
    [output] = reduced.outputs
    task.side.results(task.job, output)

    late, result = sorted(task.seen, key=len)
    assert late == ("b", 2, 4e-05)  # the time as it was given
    assert (result.key, result.value, result.window_end) == ("a", 1, at(105))


def test_what_is_late_for_sessions_is_found_behind_the_shuffle() -> None:
    flow, job = flow_of()
    job.ahead.sink("ahead", ms.write.callback(lambda rows, epoch: None))
    late = job.late
    late.sink("late", ms.write.callback(lambda rows, epoch: None))
    found = plan(flow)

    levels = dict(zip(found.vertices, found.levels, strict=True))
    assert levels[late._vertex] == 1 and min(levels.values()) == 0
    program = program_of(found, SLOTS)
    assert program.is_read(next(iter(program.jobs)))

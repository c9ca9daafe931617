from __future__ import annotations

from typing import Any

import pyarrow as pa

import millstream as ms
from millstream.errors import Place
from millstream.flow.vertices import BatchStep, JobVertex, RecordStep
from millstream.work.chunk import Chunk
from millstream.work.program import FRAME, SINK, SOURCE, UNION, Element, Program, pack, unpack
from millstream.work.routing import push
from tests.work.running import job_of

HERE = Place("here.py", 1)


class Collector:
    """An outlet that remembers what came out where."""

    def __init__(self) -> None:
        self.jobs: dict[int, list[Any]] = {}
        self.sinks: dict[int, list[Any]] = {}
        self.frames: dict[int, list[Any]] = {}

    def to_job(self, job: int, chunk: Chunk) -> None:
        self.jobs.setdefault(job, []).extend(chunk.records())

    def to_sink(self, sink: int, chunk: Chunk) -> None:
        self.sinks.setdefault(sink, []).extend(chunk.records())

    def to_frame(self, frame: int, chunk: Chunk) -> None:
        self.frames.setdefault(frame, []).extend(chunk.records())


def program_of(
    *elements: Element, reads: dict[int, tuple[int, ...]], levels: tuple[int, ...] = ()
) -> Program:
    consumers = tuple(
        tuple(at for at in sorted(reads) if source in reads[at]) for source in range(len(elements))
    )
    return Program("w", elements, consumers, levels or (0,) * len(elements), 16, 4)


def step(kind: str, function: Any) -> RecordStep:
    return RecordStep(HERE, kind=kind, function=function)


def test_a_chunk_reaches_everything_that_reads_the_stream() -> None:
    program = program_of(
        SOURCE,
        step("map", lambda n: n * 10),
        UNION,
        job_of(ms.count()),
        SINK,
        FRAME,
        reads={1: (0,), 2: (0, 1), 3: (2,), 4: (1,), 5: (0,)},
    )
    outlet = Collector()

    push(program, 0, Chunk(records=[1, 2]), outlet)

    assert sorted(outlet.jobs[3]) == [1, 2, 10, 20]
    assert outlet.sinks == {4: [10, 20]}
    assert outlet.frames == {5: [1, 2]}


def test_steps_behind_a_job_run_on_its_outputs_only() -> None:
    program = program_of(
        SOURCE, job_of(ms.count()), step("map", str), SINK, reads={1: (0,), 2: (1,), 3: (2,)}
    )
    outlet = Collector()

    push(program, 1, Chunk(records=[1]), outlet)

    assert outlet.sinks == {3: ["1"]} and outlet.jobs == {}


def test_what_is_filtered_away_goes_nowhere() -> None:
    called: list[Any] = []
    program = program_of(
        SOURCE,
        step("filter", lambda n: False),
        step("map", called.append),
        SINK,
        reads={1: (0,), 2: (1,), 3: (2,)},
    )
    outlet = Collector()

    push(program, 0, Chunk(records=[1]), outlet)

    assert (called, outlet.sinks) == ([], {})


def test_an_arrow_step_may_give_several_chunks() -> None:
    halves = BatchStep(HERE, function=lambda batch: [batch.slice(0, 1), batch.slice(1)])
    program = program_of(SOURCE, halves, SINK, reads={1: (0,), 2: (1,)})
    outlet = Collector()

    push(program, 0, Chunk(batch=pa.record_batch({"n": [1, 2, 3]})), outlet)

    assert outlet.sinks == {2: [1, 2, 3]}


def three_jobs() -> Program:
    job = job_of(ms.count())
    return program_of(
        SOURCE,
        job,
        job,
        job,
        SINK,
        reads={1: (0,), 2: (0,), 3: (1,), 4: (3,)},
        levels=(0, 1, 1, 2, 2),
    )


def test_jobs_of_one_level_share_a_stage() -> None:
    program = three_jobs()

    assert program.stages == ((), (1, 2), (3,))
    assert (program.last_stage, program.width(1), program.width(2)) == (2, 8, 4)
    assert [program.job_at(1, partition) for partition in (0, 3, 4, 7)] == [
        (1, 0),
        (1, 3),
        (2, 0),
        (2, 3),
    ]


def test_a_program_comes_back_from_its_packed_form_and_is_unpickled_once() -> None:
    packed = pack(three_jobs())

    program = unpack(packed)

    assert program.stages == three_jobs().stages
    assert isinstance(program.elements[1], JobVertex)
    assert unpack(packed) is program
    assert "bytes" in repr(packed) and len(repr(packed)) < 60

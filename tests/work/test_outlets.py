from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

import millstream as ms
from millstream.errors import Place
from millstream.flow.plan import Plan, plan
from millstream.flow.vertices import BatchStep, JobVertex, RecordStep, SideVertex
from millstream.flow.windows import TimeWindow, Windowing
from millstream.work.chunk import Chunk
from millstream.work.outlets import push
from millstream.work.program import FRAME, SINK, SOURCE, UNION, Element, Program, pack, unpack
from millstream.work.program import program_of as compiled
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
    return Program("w", elements, consumers, levels or (0,) * len(elements), 16)


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

    push(program, 0, Chunk(records=[1, 2]), outlet.to_job, outlet)

    assert sorted(outlet.jobs[3]) == [1, 2, 10, 20]
    assert outlet.sinks == {4: [10, 20]}
    assert outlet.frames == {5: [1, 2]}


def test_steps_behind_a_job_run_on_its_outputs_only() -> None:
    program = program_of(
        SOURCE, job_of(ms.count()), step("map", str), SINK, reads={1: (0,), 2: (1,), 3: (2,)}
    )
    outlet = Collector()

    push(program, 1, Chunk(records=[1]), outlet.to_job, outlet)

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

    push(program, 0, Chunk(records=[1]), outlet.to_job, outlet)

    assert (called, outlet.sinks) == ([], {})


def test_an_arrow_step_may_give_several_chunks() -> None:
    halves = BatchStep(HERE, function=lambda batch: [batch.slice(0, 1), batch.slice(1)])
    program = program_of(SOURCE, halves, SINK, reads={1: (0,), 2: (1,)})
    outlet = Collector()

    push(program, 0, Chunk(batch=pa.record_batch({"n": [1, 2, 3]})), outlet.to_job, outlet)

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
    assert (program.last_stage, program.width(1, 4), program.width(2, 4)) == (2, 8, 4)
    assert program.width(1, 3) == 6
    places = [(1, 0), (1, 3), (2, 0), (2, 3)]
    assert [program.job_at(1, route, 4) for route in (0, 3, 4, 7)] == places
    assert [program.route_of(*place, 4) for place in places] == [0, 3, 4, 7]


def test_a_program_comes_back_from_its_packed_form_and_is_unpickled_once() -> None:
    packed = pack(three_jobs())

    program = unpack(packed)

    assert program.stages == three_jobs().stages
    assert isinstance(program.elements[1], JobVertex)
    assert unpack(packed) is program
    assert "bytes" in repr(packed) and len(repr(packed)) < 60


# -- sides, origins and shared windows -------------------------------------------------------


def records(*items: Any) -> list[Any]:
    return list(items)


def windowed_flow() -> tuple[Plan, dict[str, int]]:
    """Two windowed jobs, one with its side, one behind the other; and where all of it is."""
    flow = ms.Workflow("w")
    minute = ms.tumbling(timedelta(minutes=1))
    source = flow.source("source", ms.read.text("/nowhere")).map(ms.sql("value AS key"))
    counts = source.map_reduce("counts", reduce=ms.count(), key="key")
    first = counts.map_reduce("first", reduce=ms.count(), key="key", window=minute, time="t")
    first.late.map(str).sink("late", ms.write.callback(records))
    first.map_reduce("second", reduce=ms.count(), key="key", window=minute)
    planned = plan(flow)
    names = {getattr(v, "name", type(v).__name__): at for at, v in enumerate(planned.vertices)}
    return planned, names


def test_a_side_runs_where_the_map_of_its_job_does() -> None:
    planned, at = windowed_flow()

    levels = {name: planned.levels[where] for name, where in at.items()}

    assert (levels["counts"], levels["first"], levels["second"]) == (1, 2, 3)
    assert (levels["SideVertex"], levels["RecordStep"], levels["late"]) == (1, 1, 1)


def test_results_do_not_go_to_sides_and_sides_do_not_read_them() -> None:
    planned, at = windowed_flow()
    program = compiled(planned, 16)
    outlet = Collector()

    push(program, at["first"], Chunk(records=[("a", 1)]), outlet.to_job, outlet)

    assert outlet.jobs == {at["second"]: [("a", 1)]} and outlet.sinks == {}
    push(program, at["SideVertex"], Chunk(records=[("a", 1, None)]), outlet.to_job, outlet)
    assert outlet.sinks == {at["late"]: [str(("a", 1, None))]}
    assert program.sides(at["first"]) == {at["SideVertex"]: "late"}
    assert program.sides(at["second"]) == {}


def test_a_job_of_which_only_a_side_is_read_need_not_give_its_results() -> None:
    job = replace(job_of(ms.count()), windowing=Windowing((TimeWindow(1, 1),)))
    late = SideVertex(HERE, side="late")

    unread = program_of(SOURCE, job, late, SINK, reads={1: (0,), 2: (1,), 3: (2,)})
    read = program_of(SOURCE, job, late, SINK, SINK, reads={1: (0,), 2: (1,), 3: (2,), 4: (1,)})

    assert not unread.is_read(1)
    assert read.is_read(1)


def test_rows_have_the_time_of_the_source_or_job_behind_them() -> None:
    planned, at = windowed_flow()

    origins = compiled(planned, 16).origins

    assert origins[at["source"]] == origins[at["FrameVertex"]] == at["source"]
    assert origins[at["counts"]] == at["counts"]
    assert origins[at["first"]] is None and origins[at["SideVertex"]] is None


def test_a_window_that_several_jobs_have_is_for_all_of_them() -> None:
    flow = ms.Workflow("w")
    source = flow.source("source", ms.read.text("/nowhere"))
    minute, hour = (ms.tumbling(timedelta(minutes=n)) for n in (1, 60))
    options: dict[str, Any] = {"reduce": ms.count(), "key": "value", "time": "t"}
    source.map_reduce("one", window=minute, **options)
    both = source.map_reduce("both", window=[minute, hour], **options)
    both.sink("out", ms.write.callback(records))
    planned = plan(flow)
    at = {getattr(v, "name", ""): n for n, v in enumerate(planned.vertices)}

    program = compiled(planned, 16)

    [host] = program.jobs
    jobs = program.jobs[host].windowing
    assert jobs is not None
    of = {window: set(program.readers_of(host, n)) for n, window in enumerate(jobs.windows)}
    assert of == {minute: {at["one"], at["both"]}, hour: {at["both"]}}
    assert program.is_read(host)
    assert program_of(SOURCE, job_of(ms.count()), reads={1: (0,)}).readers_of(1, 0) == (1,)


def test_the_time_of_a_chunk_stays_with_it_through_steps_and_unions() -> None:
    seen: list[int | None] = []

    class Watching(Collector):
        def to_job(self, job: int, chunk: Chunk) -> None:
            seen.append(chunk.time)

    program = program_of(
        SOURCE,
        step("map", lambda n: n),
        step("flat_map", lambda n: [n, n]),
        step("filter", lambda n: True),
        BatchStep(HERE, function=lambda batch: batch),
        step("filter", lambda n: True),
        UNION,
        job_of(ms.count()),
        reads={1: (0,), 2: (1,), 3: (2,), 4: (3,), 5: (4,), 6: (5,), 7: (6,)},
    )

    watching = Watching()
    push(program, 0, Chunk(records=[1, 2], time=42), watching.to_job, watching)

    assert seen == [42]

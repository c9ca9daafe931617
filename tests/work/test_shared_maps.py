"""Splits and shared maps, which both call a user's function once for several readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.vertices import JobVertex, SplitVertex
from millstream.flow.workflow import Workflow
from millstream.work.chunk import Chunk
from millstream.work.failures import UserFunctionError
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import keyed
from millstream.work.outlets import push
from millstream.work.program import Program, program_of
from millstream.work.shared_maps import SharedMaps
from millstream.work.steps import run_split
from tests.work.running import HERE
from tests.work.test_outlets import Collector

FRAME = pa.record_batch({"id": pa.array([1, 2, 3], pa.int32()), "s": ["a", "b", "c"]})


class Counting:
    """A function that knows how often it was called."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.calls: list[Any] = []

    def __call__(self, record: Any) -> Any:
        self.calls.append(record)
        return self.function(record)


def is_slow_path(number: int) -> bool:
    return number % 2 == 1


def planned(build: Callable[[ms.Stream], object]) -> Program:
    flow = Workflow("w")
    build(flow.source("in", ms.read.rate()))
    return program_of(plan(flow), slots=16)


# -- splits --------------------------------------------------------------------------------


def test_a_split_sends_each_record_to_one_side_and_asks_once() -> None:
    asked = Counting(is_slow_path)

    def build(stream: ms.Stream) -> None:
        odd, even = stream.split(asked)
        odd.sink("odd", ms.write.console())
        even.map(str).sink("even", ms.write.console())
        even.sink("even_too", ms.write.console())

    program, outlet = planned(build), Collector()

    push(program, 0, Chunk(records=[1, 2, 3, 4, 5]), outlet.to_job, outlet)

    assert sorted(outlet.sinks.values(), key=str) == [["2", "4"], [1, 3, 5], [2, 4]]
    assert asked.calls == [1, 2, 3, 4, 5]


def test_a_side_without_records_goes_nowhere() -> None:
    def build(stream: ms.Stream) -> None:
        odd, even = stream.split(is_slow_path)
        odd.map_reduce("odd", reduce=ms.count())
        even.map_reduce("even", reduce=ms.count())

    program, outlet = planned(build), Collector()

    push(program, 0, Chunk(records=[2, 4]), outlet.to_job, outlet)

    assert list(outlet.jobs.values()) == [[2, 4]]


def test_half_a_split_gets_its_half() -> None:
    program = planned(lambda stream: stream.split(is_slow_path)[1].sink("even", ms.write.console()))
    outlet = Collector()

    push(program, 0, Chunk(records=[1, 2, 3]), outlet.to_job, outlet)

    assert list(outlet.sinks.values()) == [[2]]


def test_the_sides_of_a_split_keep_types_and_time() -> None:
    split = SplitVertex(HERE, function=lambda row: row.s != "b")

    held, others = run_split(split, Chunk(batch=FRAME, time=5))

    assert held.batch().equals(FRAME.take(pa.array([0, 2])))
    assert others.batch().equals(FRAME.take(pa.array([1])))
    assert (held.time, others.time) == (5, 5)


def test_an_error_of_a_predicate_names_the_split() -> None:
    split = SplitVertex(HERE, function=lambda record: record.missing)

    with pytest.raises(UserFunctionError, match="split"):
        run_split(split, Chunk(records=[1]))


# -- shared maps ---------------------------------------------------------------------------


def pairs(record: Any) -> Iterator[tuple[Any, int]]:
    yield record, 1
    yield -record, 1


def shared(map: Any, *reducers: Any) -> tuple[Program, list[tuple[int, JobVertex]]]:
    def build(stream: ms.Stream) -> None:
        for number, reducer in enumerate(reducers):
            stream.map_reduce(f"job{number}", map=map, reduce=reducer)

    program = planned(build)
    return program, list(program.jobs.items())


def values(found: Iterator[Pairs | KeyedBatch]) -> list[Any]:
    flat: list[Any] = []
    for part in found:
        if isinstance(part, Pairs):
            flat += part.items
        else:
            flat += part.keys.to_pylist()
    return flat


def reduce(key: Any, ones: list[int], state: Any) -> Iterator[Any]:
    yield key


def test_a_shared_map_runs_once_for_each_chunk_and_gives_all_jobs_the_same() -> None:
    counting = Counting(pairs)
    program, jobs = shared(counting, ms.count(), ms.sum(), reduce)
    maps = SharedMaps(program.map_sharers)

    for records in ([1, 2], [3]):
        chunk = Chunk(records=records)
        found = [values(keyed(job, chunk, maps.results(at, job, chunk))) for at, job in jobs]
        assert found == [[pair for r in records for pair in ((r, 1), (-r, 1))]] * 3

    assert counting.calls == [1, 2, 3]


def test_a_shared_arrow_map_runs_once() -> None:
    def doubled(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [pa.record_batch({"key": batch["id"], "value": batch["s"]})] * 2

    counting = Counting(doubled)
    program, jobs = shared(ms.arrow(counting), ms.count(), ms.max())
    maps = SharedMaps(program.map_sharers)
    chunk = Chunk(batch=FRAME)

    found = [values(keyed(job, chunk, maps.results(at, job, chunk))) for at, job in jobs]

    assert found == [[1, 2, 3, 1, 2, 3]] * 2
    assert len(counting.calls) == 1


def test_results_of_a_shared_map_are_dropped_after_the_last_reader() -> None:
    program, jobs = shared(pairs, ms.count(), ms.sum())
    maps = SharedMaps(program.map_sharers)
    (first, job), (last, _) = jobs
    old, new = Chunk(records=[1]), Chunk(records=[2])

    maps.results(first, job, old)
    assert maps.results(last, job, new) == [(2, 1), (-2, 1)]
    assert maps._cached == {}


def test_a_map_that_no_other_job_has_is_left_to_the_job() -> None:
    program, ((at, job),) = shared(pairs, ms.count())

    assert SharedMaps(program.map_sharers).results(at, job, Chunk(records=[1])) is None


def test_fused_jobs_are_no_jobs_of_the_program() -> None:
    def build(stream: ms.Stream) -> None:
        for minutes in (1, 5):
            window = ms.tumbling(timedelta(minutes=minutes))
            stream.map_reduce(f"m{minutes}", map=pairs, reduce=ms.count(), window=window)

    program = planned(build)

    ((at, _),) = program.jobs.items()
    (fused,) = {reader for window in program.readers[at] for reader in window} - {at}
    assert program.readers_of(at, 0) == (at,)
    assert program.readers_of(at, 1) == (fused,)
    assert program.stages == ((), (at,))

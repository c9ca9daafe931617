"""Putting streams together: splits, unions of unequal sources, and workflows within workflows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.plan import plan
from millstream.flow.streams import Stream
from millstream.flow.time_origins import timings_of
from millstream.flow.vertices import BranchVertex, JobVertex, RecordStep, SplitVertex, UnionVertex
from millstream.flow.workflow import Workflow
from tests.flow.places import line_of_call

MINUTE = timedelta(minutes=1)


def is_long(line: str) -> bool:
    return len(line) > 80


def words(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def clean(line: str) -> str:
    return line.strip()


def over_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.fixture
def flow() -> Workflow:
    return Workflow("w")


@pytest.fixture
def lines(flow: Workflow) -> Stream:
    return flow.source("lines", ms.read.text("books"))


# -- splits --------------------------------------------------------------------------------


def test_a_split_asks_one_predicate_for_two_streams(flow: Workflow, lines: Stream) -> None:
    long, short = lines.split(is_long)
    long.sink("long", ms.write.console())
    short.sink("short", ms.write.console())

    planned = plan(flow)

    ((split, vertex),) = planned.of_kind(SplitVertex)
    assert vertex.function is is_long
    branches = dict(planned.of_kind(BranchVertex))
    assert {branch.holds for branch in branches.values()} == {True, False}
    assert set(planned.consumers[split]) == set(branches)
    for at, sink in planned.sinks:
        (branch,) = planned.inputs[at]
        assert branches[branch].holds == (sink.name == "long")


def test_half_a_split_is_enough(flow: Workflow, lines: Stream) -> None:
    lines.split(is_long)[1].sink("short", ms.write.console())

    ((_, branch),) = plan(flow).of_kind(BranchVertex)
    assert not branch.holds


def test_the_two_sides_of_a_split_are_in_one_stage(flow: Workflow, lines: Stream) -> None:
    long, short = lines.split(is_long)
    long.map_reduce("a", map=words, reduce=ms.count())
    short.map_reduce("b", map=words, reduce=ms.count())

    planned = plan(flow)

    assert [planned.levels[at] for at, _ in planned.of_kind(BranchVertex)] == [0, 0]
    assert [planned.levels[at] for at, _ in planned.jobs] == [1, 1]


@pytest.mark.parametrize(
    "predicate", [ms.arrow(over_batch), ms.sql(where="value = ''"), ms.dataframe(clean)]
)
def test_a_split_asks_about_single_records(lines: Stream, predicate: Any) -> None:
    with pytest.raises(WorkflowError, match=r"split got .*; give a function of the rec") as caught:
        lines.split(predicate)

    assert caught.value.place == line_of_call(caught)


def test_a_split_with_something_else_than_a_function_is_refused(lines: Stream) -> None:
    with pytest.raises(WorkflowError, match=r"split got 3 .*which cannot be called"):
        lines.split(3)  # type: ignore[arg-type]


# -- unions --------------------------------------------------------------------------------


def test_sources_of_unequal_pace_keep_their_timing_in_a_union(flow: Workflow) -> None:
    fast = flow.source("fast", ms.read.rate(rows_per_second=1000), lateness=timedelta(seconds=1))
    slow = flow.source(
        "slow",
        ms.read.rate(rows_per_second=1),
        lateness=timedelta(seconds=9),
        idle_after=timedelta(minutes=5),
    )
    rare = flow.source("rare", ms.read.text("books", follow=True))
    fast.union(slow, rare.map(clean)).map_reduce(
        "n", key="value", time="timestamp", reduce=ms.count(), window=ms.tumbling(MINUTE)
    )

    planned = plan(flow)

    ((union, _),) = planned.of_kind(UnionVertex)
    assert [planned.levels[at] for at in planned.inputs[union]] == [0, 0, 0]
    (timing,) = timings_of(planned)
    assert [(t.name, t.lateness, t.idle) for t in timing.tracked] == [
        ("fast", 1_000_000, 30_000_000),
        ("slow", 9_000_000, 300_000_000),
        ("rare", 0, 30_000_000),
    ]


def test_a_union_of_a_source_and_a_job_is_as_late_as_the_job(flow: Workflow, lines: Stream) -> None:
    counts = lines.map_reduce("counts", map=words, reduce=ms.count())
    flow.source("more", ms.read.text("papers")).union(counts).map_reduce("all", reduce=ms.count())

    planned = plan(flow)

    ((union, _),) = planned.of_kind(UnionVertex)
    assert planned.levels[union] == 1
    assert [(job.name, planned.levels[at]) for at, job in planned.jobs] == [
        ("counts", 1),
        ("all", 2),
    ]


def test_results_of_a_fused_job_have_the_watermark_of_the_job_it_is_fused_into(
    flow: Workflow, lines: Stream
) -> None:
    for name, size in (("a", MINUTE), ("b", 2 * MINUTE)):
        lines.map_reduce(name, map=words, reduce=ms.count(), window=ms.tumbling(size))
    flow.stream("b").map_reduce("behind", reduce=ms.count(), window=ms.tumbling(MINUTE))

    planned = plan(flow)

    _, behind = timings_of(planned)
    (lead, _), _ = planned.jobs
    assert behind.inherited == (lead,)


# -- workflows within workflows ------------------------------------------------------------


def word_counts(lines: Stream, name: str) -> Stream:
    """A part of a workflow that several have use for."""
    return lines.map(clean).map_reduce(name, map=words, reduce=ms.count())


def test_a_function_of_streams_is_a_part_of_a_workflow(flow: Workflow, lines: Stream) -> None:
    both = word_counts(lines, "books").union(
        word_counts(flow.source("more", ms.read.text("papers")), "papers")
    )
    word_counts(both.map(str), "of_counts").sink("out", ms.write.console())

    planned = plan(flow)

    assert [(job.name, planned.levels[at]) for at, job in planned.jobs] == [
        ("books", 1),
        ("papers", 1),
        ("of_counts", 2),
    ]


def test_a_part_that_is_used_twice_on_one_stream_does_its_steps_once(
    flow: Workflow, lines: Stream
) -> None:
    word_counts(lines, "a")
    word_counts(lines, "b")

    planned = plan(flow)

    ((step, _),) = planned.of_kind(RecordStep)
    assert planned.consumers[step] == tuple(at for at, _ in planned.of_kind(JobVertex))
    assert planned.shared_maps == (planned.consumers[step],)


def test_a_part_needs_a_name_of_its_own_each_time(lines: Stream) -> None:
    word_counts(lines, "a")

    with pytest.raises(WorkflowError, match="the name 'a' is taken"):
        word_counts(lines, "a")

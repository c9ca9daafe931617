"""What is written several times and done once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.flow.plan import Plan, plan
from millstream.flow.streams import JobStream, Stream
from millstream.flow.vertices import (
    BatchStep,
    BranchVertex,
    FrameVertex,
    FusedVertex,
    JobVertex,
    RecordStep,
    SideVertex,
    SinkVertex,
    SourceVertex,
    SplitVertex,
    UnionVertex,
    Vertex,
)
from millstream.flow.windows import TimeWindow, Window
from millstream.flow.workflow import Workflow
from tests.flow.places import next_line

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
H, M = 3_600_000_000, 60_000_000


def double(record: int) -> int:
    return 2 * record


def is_even(record: int) -> bool:
    return record % 2 == 0


def pairs(line: str) -> Iterator[tuple[str, int, datetime]]:
    yield line, 1, datetime.now()


def other_pairs(line: str) -> Iterator[tuple[str, int, datetime]]:
    yield line, 2, datetime.now()


def values_of(key: str, values: list[int], window: Any) -> Iterator[int]:
    yield from values


def adder(amount: int) -> Callable[[int], int]:
    def add(record: int) -> int:
        return record + amount

    return add


class Scaled:
    """A callable that is the same as another if it holds the same."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, record: int) -> int:
        return self.factor * record


@pytest.fixture
def flow() -> Workflow:
    return Workflow("w")


@pytest.fixture
def lines(flow: Workflow) -> Stream:
    return flow.source("lines", ms.read.text("books"))


def keep(stream: Stream, name: str) -> None:
    stream.sink(name, ms.write.console())


def count_of(planned: Plan, kind: type[Vertex]) -> int:
    return len(planned.of_kind(kind))


def at(planned: Plan, name: str) -> int:
    return next(i for i, v in enumerate(planned.vertices) if getattr(v, "name", None) == name)


# -- steps ---------------------------------------------------------------------------------


def test_steps_with_one_function_and_one_input_become_one(flow: Workflow, lines: Stream) -> None:
    keep(lines.map(double), "a")
    keep(lines.map(double), "b")

    planned = plan(flow)

    ((step, _),) = planned.of_kind(RecordStep)
    assert planned.inputs[at(planned, "a")] == planned.inputs[at(planned, "b")] == (step,)
    assert planned.consumers[step] == (at(planned, "a"), at(planned, "b"))


@pytest.mark.parametrize("make", [adder, Scaled])
def test_functions_that_would_be_shipped_alike_are_the_same(
    flow: Workflow, lines: Stream, make: Callable[[int], Callable[[int], int]]
) -> None:
    keep(lines.map(make(1)), "a")
    keep(lines.map(make(1)), "b")
    keep(lines.map(make(2)), "c")

    planned = plan(flow)

    assert count_of(planned, RecordStep) == 2
    assert planned.inputs[at(planned, "a")] == planned.inputs[at(planned, "b")]
    assert planned.inputs[at(planned, "a")] != planned.inputs[at(planned, "c")]


def test_whole_chains_become_one(flow: Workflow, lines: Stream) -> None:
    for name in ("a", "b"):
        even, odd = lines.map(double).split(is_even)
        keep(even.map(ms.arrow(double)).union(odd).map(ms.sql("value")), name)

    planned = plan(flow)

    kinds = (RecordStep, SplitVertex, BatchStep, UnionVertex, FrameVertex)
    assert [count_of(planned, kind) for kind in kinds] == [1] * 5
    assert count_of(planned, BranchVertex) == 2
    assert count_of(planned, SinkVertex) == 2


def test_what_differs_stays_apart(flow: Workflow, lines: Stream) -> None:
    more = flow.source("more", ms.read.text("books"))
    keep(lines.map(double), "map")
    keep(lines.flat_map(double), "flat_map")
    keep(lines.filter(double), "filter")
    keep(lines.map(double, output={"n": int}), "declared")
    keep(lines.map(double).map(double), "twice")
    keep(more.map(double), "elsewhere")
    keep(lines.map(ms.sql("value")), "sql")
    keep(lines.map(ms.sql("value AS v")), "other_sql")

    planned = plan(flow)

    assert count_of(planned, RecordStep) == 6
    assert count_of(planned, FrameVertex) == 2


def test_equal_sources_and_sinks_stay_apart(flow: Workflow, lines: Stream) -> None:
    keep(lines.union(flow.source("again", ms.read.text("books"))), "a")
    keep(lines, "b")

    planned = plan(flow)

    assert count_of(planned, SourceVertex) == 2
    assert count_of(planned, SinkVertex) == 2


def test_frame_steps_are_the_same_only_as_objects(flow: Workflow, lines: Stream) -> None:
    step = ms.dataframe(double)
    keep(lines.map(step), "a")
    keep(lines.map(step), "b")
    keep(lines.map(ms.dataframe(double)), "c")

    assert count_of(plan(flow), FrameVertex) == 2


def test_a_union_of_equal_steps_still_has_every_record_twice(flow: Workflow, lines: Stream) -> None:
    keep(lines.map(double).union(lines.map(double)), "a")

    planned = plan(flow)

    ((step, _),), ((union, _),) = planned.of_kind(RecordStep), planned.of_kind(UnionVertex)
    assert planned.consumers[step] == (union, union)


def test_the_plan_says_where_else_a_step_was_written(flow: Workflow, lines: Stream) -> None:
    keep(lines.map(double), "a")
    again = next_line()
    keep(lines.map(double), "b")

    planned = plan(flow)

    ((step, _),) = planned.of_kind(RecordStep)
    assert planned.merged == {step: (again,)}


def test_functions_are_shipped_only_where_two_steps_meet(
    flow: Workflow, lines: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped: list[object] = []
    keep(lines.map(double).filter(is_even).map(adder(1)), "a")
    keep(lines.map(double), "b")
    monkeypatch.setattr("millstream.flow.fusion.ship", shipped.append)

    plan(flow)

    assert shipped == []


# -- maps ----------------------------------------------------------------------------------


def test_jobs_with_one_map_on_one_stream_share_it(flow: Workflow, lines: Stream) -> None:
    lines.map_reduce("a", map=pairs, reduce=ms.count())
    lines.map_reduce("b", map=other_pairs, reduce=ms.count())
    lines.map_reduce("c", map=pairs, reduce=ms.sum())
    lines.filter(is_even).map_reduce("elsewhere", map=pairs, reduce=ms.count())
    lines.map_reduce("none", reduce=ms.count())
    lines.map_reduce("none_either", reduce=ms.sum())

    planned = plan(flow)

    assert planned.shared_maps == ((at(planned, "a"), at(planned, "c")),)


def test_an_arrow_map_is_not_the_same_as_a_record_map(flow: Workflow, lines: Stream) -> None:
    lines.map_reduce("a", map=pairs, reduce=ms.count())
    lines.map_reduce("b", map=ms.arrow(pairs), reduce=ms.count())
    lines.map_reduce("c", map=ms.arrow(pairs), reduce=ms.count())

    planned = plan(flow)

    assert planned.shared_maps == ((at(planned, "b"), at(planned, "c")),)


# -- panes ---------------------------------------------------------------------------------


SUM = ms.sum()


def windowed(
    stream: Stream,
    name: str,
    *windows: Window,
    map: Any = pairs,
    reduce: object = SUM,
    key: str | None = None,
    key_type: object = None,
    ordered: bool = False,
    durable: bool = True,
    share: bool = True,
    **options: Any,
) -> JobStream:
    mapped = stream if map is None else stream.flat_map(map)
    divided = mapped.key_by(key, type=key_type).window(*windows, **options)
    return divided.reduce(name, reduce, ordered=ordered, durable=durable, share=share)


def test_jobs_that_differ_in_their_windows_are_fused_into_the_first(
    flow: Workflow, lines: Stream
) -> None:
    keep(windowed(lines, "hours", ms.tumbling(HOUR)), "a")
    keep(windowed(lines, "minutes", ms.tumbling(MINUTE), ms.tumbling(HOUR)), "b")

    planned = plan(flow)

    hours, minutes = at(planned, "hours"), at(planned, "minutes")
    host, fused = planned.vertices[hours], planned.vertices[minutes]
    assert isinstance(host, JobVertex)
    assert isinstance(fused, FusedVertex)
    assert host.windowing is not None
    assert host.windowing.windows == (TimeWindow(H, H), TimeWindow(M, M))
    assert planned.readers == {hours: ((hours, minutes), (minutes,))}
    assert planned.jobs == [(hours, host)]


def test_results_of_a_fused_job_reach_its_consumers_and_no_others(
    flow: Workflow, lines: Stream
) -> None:
    keep(windowed(lines, "a", ms.tumbling(HOUR)), "of_a")
    windowed(lines, "b", ms.tumbling(MINUTE)).map_reduce("behind", reduce=ms.count())

    planned = plan(flow)

    a, b = at(planned, "a"), at(planned, "b")
    assert planned.consumers[a] == (at(planned, "of_a"),)
    assert planned.consumers[b] == (at(planned, "behind"),)
    assert planned.inputs[b] == (a,)
    assert planned.levels[a] == planned.levels[b] == 1
    assert planned.levels[at(planned, "behind")] == 2


def test_a_fused_job_is_still_found_by_name(flow: Workflow, lines: Stream) -> None:
    keep(flow.stream("b"), "out")
    windowed(lines, "a", ms.tumbling(HOUR))
    windowed(lines, "b", ms.tumbling(MINUTE))

    planned = plan(flow)

    assert planned.inputs[at(planned, "out")] == (at(planned, "b"),)
    assert len(planned.jobs) == 1


def test_three_jobs_are_fused_into_one(flow: Workflow, lines: Stream) -> None:
    for name, window in (("a", MINUTE), ("b", HOUR), ("c", MINUTE)):
        windowed(lines, name, ms.tumbling(window))

    planned = plan(flow)

    a, b, c = (at(planned, name) for name in "abc")
    assert planned.readers == {a: ((a, c), (b,))}


@pytest.mark.parametrize(
    "options",
    [
        {"map": other_pairs},
        {"map": None, "key": "k", "time": "t"},
        {"reduce": ms.count()},
        {"reduce": values_of},
        {"lateness": MINUTE},
        {"early_every": MINUTE},
        {"panes": True},
        {"time": ms.processing_time},
        {"durable": False},
        {"key_type": bytes},
        {"share": False},
    ],
    ids=lambda options: "-".join(options),
)
def test_jobs_that_differ_otherwise_are_reduced_apart(
    flow: Workflow, lines: Stream, options: dict[str, Any]
) -> None:
    windowed(lines, "a", ms.tumbling(HOUR))
    windowed(lines, "b", ms.tumbling(MINUTE), **options)

    planned = plan(flow)

    assert len(planned.jobs) == 2
    assert planned.readers == {}


def test_the_order_of_values_is_part_of_what_a_function_gets(flow: Workflow, lines: Stream) -> None:
    windowed(lines, "a", ms.tumbling(HOUR), reduce=values_of)
    windowed(lines, "b", ms.tumbling(MINUTE), reduce=values_of, ordered=True)
    windowed(lines, "c", ms.tumbling(MINUTE), reduce=values_of)

    planned = plan(flow)

    assert planned.readers == {at(planned, "a"): ((at(planned, "a"),), (at(planned, "c"),))}


def test_other_windows_than_those_of_time_are_not_shared(flow: Workflow, lines: Stream) -> None:
    for name in ("a", "b"):
        windowed(lines, f"{name}1", ms.session(HOUR))
        windowed(lines, f"{name}2", ms.count_window(5))
        windowed(lines, f"{name}3", ms.global_window(ms.every(3)))

    assert len(plan(flow).jobs) == 6


def test_a_job_whose_late_values_are_read_shares_only_equal_windows(
    flow: Workflow, lines: Stream
) -> None:
    keep(windowed(lines, "a", ms.tumbling(MINUTE)).late, "late")
    windowed(lines, "b", ms.tumbling(HOUR))
    windowed(lines, "c", ms.tumbling(MINUTE))
    windowed(lines, "d", ms.sliding(HOUR, MINUTE))

    planned = plan(flow)

    a, b, c, d = (at(planned, name) for name in "abcd")
    assert planned.readers == {a: ((a, c),), b: ((b,), (d,))}


def test_jobs_with_more_windows_are_not_fused_once_late_values_are_read(
    flow: Workflow, lines: Stream
) -> None:
    windowed(lines, "a", ms.tumbling(MINUTE))
    keep(windowed(lines, "b", ms.tumbling(MINUTE)).late, "late")
    windowed(lines, "c", ms.tumbling(HOUR))

    planned = plan(flow)

    a, b = at(planned, "a"), at(planned, "b")
    assert planned.readers == {a: ((a, b),)}
    assert [job.name for _, job in planned.jobs] == ["a", "c"]


def test_jobs_on_different_streams_are_reduced_apart(flow: Workflow, lines: Stream) -> None:
    windowed(lines, "a", ms.tumbling(MINUTE))
    windowed(lines.filter(is_even), "b", ms.tumbling(MINUTE))

    assert len(plan(flow).jobs) == 2


def test_jobs_are_fused_into_the_one_written_first_whatever_reads_it(
    flow: Workflow, lines: Stream
) -> None:
    windowed(lines, "a", ms.tumbling(MINUTE))
    other = windowed(lines.filter(is_even), "other", ms.tumbling(MINUTE))
    keep(windowed(lines, "b", ms.tumbling(HOUR)).map(double).union(other), "of_b")
    keep(lines.map(double), "x")
    keep(lines.map(double), "y")

    planned = plan(flow)

    a, b = at(planned, "a"), at(planned, "b")
    assert planned.readers == {a: ((a,), (b,))}
    assert all(max(inputs, default=-1) < i for i, inputs in enumerate(planned.inputs))
    (merged,) = planned.merged
    assert planned.inputs[at(planned, "x")] == planned.inputs[at(planned, "y")] == (merged,)
    ((union, _),) = planned.of_kind(UnionVertex)
    (step, of_other) = planned.inputs[union]
    assert planned.inputs[step] == (b,)
    assert of_other == at(planned, "other")


def test_fused_jobs_have_the_same_side_outputs(flow: Workflow, lines: Stream) -> None:
    windowed(lines, "a", ms.tumbling(MINUTE))
    keep(windowed(lines, "b", ms.tumbling(HOUR)).untimed, "untimed")

    planned = plan(flow)

    ((side, _),) = planned.of_kind(SideVertex)
    lead = at(planned, "a")
    assert planned.inputs[side] == (lead,)
    assert side in planned.consumers[lead]

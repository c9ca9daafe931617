"""Where the event times of windowed jobs come from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.flow.plan import Plan, plan
from millstream.flow.streams import Stream
from millstream.flow.time_origins import JobTiming, Tracked, timings_of
from millstream.flow.vertices import SourceTiming
from millstream.flow.workflow import Workflow

SECOND = 1_000_000
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def same(record: Any) -> Any:
    return record


@pytest.fixture
def flow() -> Workflow:
    return Workflow("w")


def windowed(stream: Stream, name: str, **options: Any) -> Any:
    reduce, window = options.pop("reduce", ms.count()), options.pop("window", ms.tumbling(MINUTE))
    windows = window if isinstance(window, list) else [window]
    return stream.key_by("k").window(*windows, **options).reduce(name, reduce)


def timings(flow: Workflow) -> tuple[Plan, dict[str, JobTiming]]:
    planned = plan(flow)
    names = {at: job.name for at, job in planned.jobs}
    return planned, {names[timing.job]: timing for timing in timings_of(planned)}


def names(planned: Plan, positions: tuple[int, ...]) -> list[str]:
    return [getattr(planned.vertices[at], "name", "") for at in positions]


def test_without_windows_there_is_no_timing(flow: Workflow) -> None:
    flow.source("s", ms.read.rate()).map_reduce("j", reduce=ms.count(), key="k")

    assert timings_of(plan(flow)) == ()


def test_a_source_is_tracked_with_its_own_options(flow: Workflow) -> None:
    source = flow.source(
        "s",
        ms.read.rate(),
        lateness=timedelta(seconds=3),
        idle_after=timedelta(seconds=7),
        max_ahead=timedelta(seconds=9),
    )
    windowed(source.map(same).filter(same), "j")

    planned, found = timings(flow)
    [tracked] = found["j"].tracked

    assert names(planned, (tracked.at,)) == ["s"]
    assert tracked == Tracked(tracked.at, "s", False, 3 * SECOND, 7 * SECOND, 9 * SECOND)
    assert found["j"].inherited == ()


def test_the_lateness_of_a_job_goes_before_that_of_its_sources(flow: Workflow) -> None:
    source = flow.source("s", ms.read.rate(), lateness=timedelta(seconds=3))
    windowed(source, "own", lateness=timedelta(0))
    windowed(source, "sources")

    _, found = timings(flow)

    assert found["own"].tracked[0].lateness == 0
    assert found["sources"].tracked[0].lateness == 3 * SECOND


def test_unions_have_every_origin_once(flow: Workflow) -> None:
    left, right = flow.source("left", ms.read.rate()), flow.source("right", ms.read.rate())
    both = left.map(same).union(right, left.filter(same))
    windowed(both, "j")

    planned, found = timings(flow)

    tracked = found["j"].tracked
    assert sorted(names(planned, tuple(origin.at for origin in tracked))) == ["left", "right"]


def test_a_job_without_windows_is_tracked_and_hides_its_sources(flow: Workflow) -> None:
    source = flow.source("s", ms.read.rate(), lateness=HOUR, idle_after=HOUR, max_ahead=MINUTE)
    plain = source.map_reduce("plain", reduce=ms.count(), key="k")
    windowed(plain, "j")

    _, found = timings(flow)
    [tracked] = found["j"].tracked

    assert (tracked.name, tracked.is_job, tracked.lateness) == ("plain", True, 0)
    assert (tracked.idle, tracked.max_ahead) == (SourceTiming().idle, SourceTiming().max_ahead)


def test_the_watermark_of_a_windowed_job_is_inherited_by_whatever_reads_it(flow: Workflow) -> None:
    source = flow.source("s", ms.read.rate())
    first = windowed(source, "first")
    windowed(first.map(same).union(source), "second")
    windowed(first.late, "third")

    planned, found = timings(flow)

    assert names(planned, found["second"].inherited) == ["first"]
    assert [origin.name for origin in found["second"].tracked] == ["s"]
    assert names(planned, found["third"].inherited) == ["first"]
    assert found["third"].tracked == ()


def test_timings_come_after_those_that_they_inherit_from(flow: Workflow) -> None:
    last = windowed(flow.stream("middle"), "last")
    windowed(flow.stream("first"), "middle")
    windowed(flow.source("s", ms.read.rate()), "first")
    assert last is not None

    order = [timing.job for timing in timings_of(plan(flow))]

    assert order == sorted(order)
    for timing in timings_of(plan(flow)):
        assert all(job in order[: order.index(timing.job)] for job in timing.inherited)


@pytest.mark.parametrize(
    ("options", "foldable", "measured"),
    [
        ({"window": ms.sliding(HOUR, MINUTE)}, True, True),
        ({"window": ms.sliding(HOUR, MINUTE), "panes": True}, True, False),
        ({"window": ms.sliding(HOUR, MINUTE), "panes": False}, True, False),
        ({"window": ms.tumbling(HOUR)}, True, False),
        ({"window": [ms.sliding(HOUR, MINUTE), ms.tumbling(HOUR)]}, True, True),
        ({"window": [ms.sliding(HOUR, MINUTE), ms.sliding(2 * HOUR, MINUTE)]}, True, True),
        ({"window": ms.session(HOUR)}, False, False),
        ({"window": ms.count_window(5, 2)}, False, False),
        ({"window": ms.sliding(HOUR, MINUTE), "reduce": lambda key, values: None}, False, False),
    ],
)
def test_rates_decide_only_where_folding_may_not_pay(
    flow: Workflow, options: dict[str, Any], foldable: bool, measured: bool
) -> None:
    windowed(flow.source("s", ms.read.rate()), "j", **options)

    [timing] = timings_of(plan(flow))

    assert (timing.foldable, timing.is_measured) == (foldable, measured)

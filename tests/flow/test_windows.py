"""What windows users can describe, and what is refused, with the line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError, WorkflowError
from millstream.flow.streams import Stream
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import (
    CountWindow,
    EveryCount,
    EveryTime,
    GlobalWindow,
    SessionWindow,
    TimeWindow,
    Window,
    length_text,
)
from millstream.flow.workflow import Workflow
from tests.flow.places import line_of_call

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def stream() -> Stream:
    return Workflow("w").source("rows", ms.read.rate())


def job_of(stream: Stream) -> JobVertex:
    assert isinstance(stream._vertex, JobVertex)
    return stream._vertex


def test_lengths_are_microseconds() -> None:
    assert ms.sliding(MINUTE, SECOND) == TimeWindow(60_000_000, 1_000_000)
    assert ms.tumbling(SECOND) == TimeWindow(1_000_000, 1_000_000)
    assert ms.session(timedelta(milliseconds=5)) == SessionWindow(5000)
    assert ms.count_window(6) == CountWindow(6, 6) and ms.count_window(6, 4) == CountWindow(6, 4)
    assert ms.global_window(ms.every(3)) == GlobalWindow(EveryCount(3))
    assert ms.global_window(ms.every(SECOND)) == GlobalWindow(EveryTime(1_000_000))


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (ms.tumbling, [timedelta(0)], "size must be a positive"),
        (ms.tumbling, [5], "size must be a positive"),
        (ms.sliding, [MINUTE, timedelta(-1)], "slide must be a positive"),
        (ms.sliding, [SECOND, MINUTE], "slide must be at most size"),
        (ms.session, ["1s"], "gap must be a positive"),
        (ms.count_window, [0], "size must be a whole number"),
        (ms.count_window, [2, 3], "slide must be at most size"),
        (ms.count_window, [True], "size must be a whole number"),
        (ms.every, [1.5], "every must be a whole number"),
        (ms.global_window, [5], r"ms\.every.*ms\.on_watermark"),
    ],
)
def test_windows_that_make_no_sense(make: Callable[..., Any], given: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(*given)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0s"),
        (90_000_000, "1m30s"),
        (5_400_000_000, "1h30m"),
        (250_000, "250ms"),
        (90_061_000_001, "1d1h1m1s1us"),
    ],
)
def test_lengths_as_people_write_them(micros: int, text: str) -> None:
    assert length_text(micros) == text


@pytest.mark.parametrize(
    ("windows", "pane"),
    [
        ([ms.sliding(HOUR, MINUTE)], MINUTE),
        ([ms.sliding(10 * SECOND, 4 * SECOND)], 2 * SECOND),
        ([ms.tumbling(HOUR)], HOUR),
        ([ms.sliding(15 * MINUTE, 5 * MINUTE), ms.tumbling(12 * MINUTE)], MINUTE),
    ],
)
def test_a_pane_divides_all_sizes_and_slides(
    stream: Stream, windows: list[TimeWindow], pane: timedelta
) -> None:
    windowing = job_of(stream.map_reduce("j", reduce=ms.count(), window=windows)).windowing
    assert windowing is not None and timedelta(microseconds=windowing.pane) == pane


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 5}, "window must be"),
        ({"window": []}, "window must be"),
        ({"window": [ms.session(SECOND), ms.tumbling(SECOND)]}, "must all be sliding or tumbling"),
        ({"window": [ms.tumbling(SECOND)] * 2}, "must differ"),
        ({"lateness": SECOND}, "lateness but no window"),
        ({"time": ms.processing_time}, "processing_time but no window"),
        ({"window": ms.tumbling(SECOND), "lateness": -SECOND}, "lateness is"),
        ({"window": ms.tumbling(SECOND), "ttl": SECOND}, "a ttl beside tumbling 1s"),
    ],
)
def test_what_does_not_go_with_windows_is_refused_with_its_line(
    stream: Stream, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(WorkflowError, match=said) as caught:
        stream.map_reduce("j", reduce=ms.count(), **options)
    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize(
    ("window", "options", "said"),
    [
        (ms.tumbling(SECOND), {"early_every": timedelta(0)}, "early_every is"),
        (ms.tumbling(SECOND), {"panes": 3}, "panes=3"),
        (ms.count_window(3), {"early_every": SECOND}, "no early results: count 3 every 3"),
    ],
)
def test_options_that_make_no_sense_for_a_window_are_refused(
    stream: Stream, window: Window, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(WorkflowError, match=said) as caught:
        stream.key_by().window(window, **options).reduce("j", ms.count())
    assert caught.value.place == line_of_call(caught)


def test_a_window_that_is_left_out_is_refused(stream: Stream) -> None:
    with pytest.raises(WorkflowError, match="window must be"):
        stream.key_by().window().reduce("j", ms.count())


def test_reducers_that_do_not_go_with_windows(stream: Stream) -> None:
    window = ms.tumbling(SECOND)
    with pytest.raises(WorkflowError, match="'timing', as a column of its window is"):
        stream.map_reduce("a", reduce=ms.aggregate(timing=ms.count()), window=window)
    over_tables = ms.arrow(lambda rows, window: rows)
    stream.map_reduce("b", reduce=over_tables, window=window)
    with pytest.raises(WorkflowError, match="neither sliding nor tumbling: session, gap 1s"):
        stream.map_reduce("c", reduce=over_tables, window=ms.session(SECOND))


def test_only_windows_have_sides(stream: Stream) -> None:
    plain = stream.map_reduce("j", reduce=ms.count(), key="value")
    with pytest.raises(WorkflowError, match="has no window, and so includes every value") as caught:
        plain.late.sink("late", ms.write.console())
    assert caught.value.place == line_of_call(caught)


@pytest.mark.parametrize("option", ["lateness", "idle_after", "max_ahead"])
def test_event_time_options_of_a_source_are_validated(option: str) -> None:
    flow = Workflow("w")
    with pytest.raises(WorkflowError, match=f"{option} is") as caught:
        flow.source("rows", ms.read.rate(), **{option: -SECOND})
    assert caught.value.place == line_of_call(caught)

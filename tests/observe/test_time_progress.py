"""Event time in progress reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from millstream.coordinator.epochs import EpochResult
from millstream.coordinator.watermarks import Counted
from millstream.flow.windows import TimeWindow, Windowing
from millstream.observe.progress import EpochProgress, JobProgress
from millstream.observe.time_progress import moment, time_progress
from millstream.times import BEGINNING, END, since_epoch
from millstream.work.job_clock import Tally
from tests.coordinator.timings import FIRST, LEFT, RIGHT, SECOND, Story, seen, timing, tracked

SLIDING = Windowing((TimeWindow(60 * SECOND, 10 * SECOND),))


def result(story: Story, *tallies: Tally) -> EpochResult:
    return EpochResult(story.record, [], {}, {FIRST: Counted(tallies, 1)}, story.clocks)


def test_times_go_there_and_back() -> None:
    there = datetime(2026, 11, 15, 12, 30, 1, 7, tzinfo=UTC)

    assert moment(since_epoch(there)) == there
    assert since_epoch(there.astimezone(timezone(timedelta(hours=5)))) == since_epoch(there)
    assert moment(-1) == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@pytest.mark.parametrize("time", [BEGINNING, END])
def test_the_beginning_and_the_end_are_no_times(time: int) -> None:
    assert moment(time) is None


def test_a_job_without_windows_reports_no_event_time() -> None:
    story = Story(timing(tracked(LEFT)))
    story.epoch(0)

    assert time_progress(result(story), 99) == {}


def test_a_windowed_job_reports_rejected_values_and_its_watermark() -> None:
    story = Story(timing(tracked(LEFT)))
    story.epoch(1000, seen(LEFT, 900))
    tallies = (Tally(LEFT, 5, 1, late=1, ahead=2, untimed=3), Tally(RIGHT, late=10))
    story.epoch(1001, *tallies)

    reported = time_progress(result(story, *tallies), FIRST)

    assert reported == {
        "late": 11,
        "ahead": 2,
        "untimed": 3,
        "watermark": datetime(1970, 1, 1, 0, 14, 58, tzinfo=UTC),
        "lag": timedelta(seconds=1001 - 898),
        "panes": None,
        "rate": None,
    }
    job = JobProgress(5, 1, 1, 0.0, 1, **reported)
    assert EpochProgress(0, 1, 1.0, {"a": job, "b": replace(job, late=0)}).rejected == 16 + 5


@pytest.mark.parametrize("asked", [BEGINNING, END])
def test_there_is_no_lag_before_the_first_event_time_and_after_the_end(asked: int) -> None:
    story = Story(timing(tracked(LEFT)))
    story.epoch(1000, asked=asked)

    reported = time_progress(result(story), FIRST)

    assert (reported["watermark"], reported["lag"]) == (None, None)


@pytest.mark.parametrize(("rows", "panes", "rate"), [(40, "shared", 0.4), (5, "values", 0.05)])
def test_panes_are_reported_with_the_rate_that_decides(rows: int, panes: str, rate: float) -> None:
    story = Story(timing(tracked(LEFT), windowing=SLIDING, foldable=True))
    reported: dict[str, Any] = {}
    for at in range(0, 300, 10):
        story.epoch(at, seen(LEFT, at, rows=rows), keys=10)
        reported = time_progress(result(story), FIRST)

    assert reported["panes"] == panes
    assert reported["rate"] == pytest.approx(rate)

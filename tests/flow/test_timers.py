"""Jobs with timers: which may have them, and what a plan makes of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.identity import reducer_text
from millstream.flow.plan import plan
from millstream.flow.time_origins import timings_of
from millstream.flow.workflow import Workflow


def reduce(key: Any, values: list[Any], state: Any) -> None:
    state.timers.set("x", after=timedelta(seconds=1))


def on_timer(key: Any, timer: ms.Timer, state: Any) -> None:
    pass


def keyed(flow: Workflow | None = None) -> ms.KeyedStream:
    flow = flow or Workflow("w")
    return flow.source("s", ms.read.rate(), lateness=timedelta(seconds=3)).key_by("value")


@pytest.mark.parametrize(
    "reducer",
    [
        ms.count(),
        ms.combinable(zero=int, add=max, merge=max),
        ms.arrow(lambda rows, state: (state, rows)),
    ],
)
def test_only_functions_with_state_have_timers(reducer: Any) -> None:
    with pytest.raises(WorkflowError, match="'j' has on_timer= beside such a reducer") as caught:
        keyed().reduce("j", reducer, on_timer=on_timer)

    assert caught.value.place is not None and caught.value.place.file == __file__


def test_windows_have_no_timers() -> None:
    def of_window(key: Any, values: list[Any]) -> None:
        pass

    source = Workflow("w").source("s", ms.read.rate())
    with pytest.raises(WorkflowError, match="on_timer= beside windows"):
        source.map_reduce(
            "j",
            key="value",
            reduce=of_window,
            window=ms.tumbling(timedelta(minutes=1)),
            time="timestamp",
            on_timer=on_timer,
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (5, "cannot be called"),
        (ms.Timer, "cannot be called"),
        (lambda key, timer: None, "give it 3 positional arguments"),
    ],
)
def test_a_wrong_on_timer_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        keyed().reduce("j", reduce, on_timer=wrong)


def test_lateness_without_windows_is_for_timers() -> None:
    with pytest.raises(WorkflowError, match="lateness but no window"):
        keyed().reduce("j", reduce, lateness=timedelta(seconds=1))


@pytest.mark.parametrize(("given", "lateness"), [(None, 3_000_000), (timedelta(0), 0)])
def test_a_job_with_timers_has_a_watermark(given: timedelta | None, lateness: int) -> None:
    flow = Workflow("w")
    keyed(flow).reduce("j", reduce, on_timer=on_timer, time="timestamp", lateness=given)
    [timing] = timings_of(plan(flow))

    assert timing.windowing is None and not timing.by_arrival
    assert [(origin.name, origin.lateness) for origin in timing.tracked] == [("s", lateness)]


def test_a_job_without_timers_has_none() -> None:
    flow = Workflow("w")
    keyed(flow).reduce("j", reduce)
    [(_, job)] = plan(flow).jobs

    assert timings_of(plan(flow)) == ()
    assert reducer_text(job) == "a function (key, values, state)"


def test_an_explanation_names_the_function_and_the_watermark() -> None:
    flow = Workflow("w")
    keyed(flow).reduce("j", reduce, on_timer=on_timer, time="timestamp")

    text = str(flow.explain())

    assert "on_timer" in text and "event time in column timestamp; watermark: s less 3s" in text

"""``Run.advance``: the user's own word on how far event time has come."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.flow.plan import plan
from millstream.flow.workflow import Workflow
from millstream.spark.handle import Run
from millstream.times import END


class Coordinator:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def advance(self, to: int) -> None:
        self.asked.append(to)


def run_of(coordinator: Coordinator, **options: Any) -> Run:
    flow = Workflow("w")
    flow.source("s", ms.read.rate()).map_reduce("j", reduce=ms.count(), key="value", **options)
    nothing: Any = None
    return Run(
        plan(flow),
        coordinator,  # type: ignore[arg-type]
        nothing,
        nothing,
        nothing,
        nothing,
        contextlib.ExitStack(),
        nothing,
        nothing,
    )


def test_event_time_advances_to_a_moment_or_to_the_end() -> None:
    coordinator = Coordinator()
    run = run_of(coordinator, window=ms.tumbling(timedelta(minutes=1)))

    run.advance(datetime(1970, 1, 1, 0, 0, 2, 5, tzinfo=UTC))
    run.advance(None)

    assert coordinator.asked == [2_000_005, END]


@pytest.mark.parametrize("to", [datetime(2026, 1, 1), 17, "now"])
def test_a_moment_without_a_zone_is_rejected(to: Any) -> None:
    coordinator = Coordinator()
    run = run_of(coordinator, window=ms.tumbling(timedelta(minutes=1)))

    with pytest.raises(ConfigError, match="time zone"):
        run.advance(to)
    assert coordinator.asked == []


def test_without_windows_and_timers_there_is_nothing_to_advance() -> None:
    with pytest.raises(ConfigError, match="windows or timers"):
        run_of(Coordinator()).advance(None)

"""When bounded input has been read, and what is done then."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.flow.plan import plan
from millstream.flow.workflow import Workflow
from millstream.spark.bounded_input import Ending, ending_of
from millstream.spark.compile import HEARTBEAT
from millstream.spark.replay import ReplayEnd


@dataclass
class Source:
    """What Spark reports of a source in an epoch."""

    startOffset: Any  # noqa: N815
    endOffset: Any  # noqa: N815


QUIET, BUSY = Source('{"logOffset":3}', '{"logOffset":3}'), Source(None, '{"logOffset":0}')
BEAT = Source("3", "4")
HALF, WHOLE = Source('{"row":0}', '{"row":5}'), Source('{"row":5}', '{"row":10}')
RECORDING = ReplayEnd(10)


@pytest.mark.parametrize(
    ("ends", "sources", "read"),
    [
        ([None], [QUIET, BEAT], True),
        ([None], [BUSY, BEAT], False),
        ([None, None], [QUIET, BUSY, BEAT], False),
        ([RECORDING], [HALF, BEAT], False),
        ([RECORDING], [Source('{"row":5}', '{"row":5}'), BEAT], False),  # none is due yet
        ([RECORDING], [WHOLE, BEAT], True),
        ([RECORDING, None], [WHOLE, BUSY, BEAT], False),
        ([RECORDING, None], [WHOLE, QUIET, BEAT], True),
        ([None], [QUIET, QUIET, BEAT], True),  # a frame of the user's that reads two sources
        ([None], [QUIET, BUSY, BEAT], False),
    ],
)
def test_with_windows_every_source_must_have_ended(
    ends: list[ReplayEnd | None], sources: list[Source], read: bool
) -> None:
    assert Ending(tuple(ends), windows=True).has_read(sources) is read


@pytest.mark.parametrize(
    ("ends", "sources", "read"),
    [
        ([RECORDING], [HALF], False),
        ([RECORDING], [WHOLE], True),
        ([RECORDING, None], [WHOLE, BUSY], True),
        ([RECORDING], [WHOLE, BUSY], False),
    ],
)
def test_without_windows_recordings_must_have_ended(
    ends: list[ReplayEnd | None], sources: list[Source], read: bool
) -> None:
    assert Ending(tuple(ends), windows=False).has_read(sources) is read


def test_sources_are_known_in_the_order_of_branches_and_heartbeats_are_none() -> None:
    flow = Workflow("w")
    recording = flow.source("recording", ms.read.replay([{"n": 1}, {"n": 2}], rate=5.0))
    files = flow.source("files", ms.read.text("/nowhere"))
    for number, stream in enumerate((files.map(ms.sql("value")), recording, files)):
        stream.map_reduce(f"j{number}", reduce=ms.count(), key="k")
    planned = plan(flow)
    at = {getattr(v, "name", type(v).__name__): n for n, v in enumerate(planned.vertices)}
    branches = [at["FrameVertex"], at["recording"], at["files"], HEARTBEAT]

    assert ending_of(planned, branches, windows=True) == Ending((None, ReplayEnd(2)), windows=True)


@dataclass
class Query:
    """A query whose epochs end as a test has written down."""

    reports: list[list[Source]]
    available: list[bool] = field(default_factory=list)
    isActive: bool = True  # noqa: N815

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        sources = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        return SimpleNamespace(sources=sources)

    @property
    def status(self) -> dict[str, bool]:
        return {"isDataAvailable": self.available.pop(0) if self.available else False}


class Engine:
    def __init__(self, query: Query, closes: int) -> None:
        self.events: list[str] = []
        self.ended = self
        self._query = query
        self._closes = closes

    def wait(self, seconds: float) -> bool:
        """Some epochs pass before one has closed the windows."""
        self.events.append("wait")
        self._closes -= 1
        return self._closes < 0

    def close_windows(self) -> None:
        self.events.append("close")

    def stop(self, query: Any) -> None:
        self.events.append("stop")
        query.isActive = False


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.spark.bounded_input._POLL", 0.0)


def stopped(ending: Ending, query: Query, closes: int = 0) -> list[str]:
    engine = Engine(query, closes)
    ending.stop_when_read(query, engine)  # type: ignore[arg-type]
    return engine.events


def test_windows_are_closed_before_the_run_is_stopped() -> None:
    query = Query([[BUSY, BEAT], [BUSY, BEAT], [QUIET, BEAT]])

    assert stopped(Ending((None,), windows=True), query, 2) == [
        "close",
        "wait",
        "wait",
        "wait",
        "stop",
    ]
    assert query.reports == [[QUIET, BEAT]]


def test_without_windows_the_run_is_stopped_when_nothing_is_left() -> None:
    query = Query([[HALF], [WHOLE]], available=[True, True])

    assert stopped(Ending((RECORDING,), windows=False), query) == ["stop"]
    assert query.available == []


def test_a_query_that_has_ended_is_left_alone() -> None:
    assert stopped(Ending((None,), windows=True), Query([[QUIET, BEAT]], isActive=False)) == []

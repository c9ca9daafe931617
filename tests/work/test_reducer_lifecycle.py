"""Reducers that are classes are opened once per node and job, and closed with the node."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import millstream as ms
from millstream.flow.function_shipping import ship
from millstream.work.reducer_lifecycle import OpenReducers
from tests.work.running import job_of


class Recording(ms.Reducer):
    def __init__(self, fails: str = "") -> None:
        self.calls: list[Any] = []
        self.fails = fails

    def open(self, context: ms.ReducerContext) -> None:
        self.calls.append((context.job, context.node, context.slots))
        if self.fails == "open":
            raise OSError("no model")

    def reduce(self, key: Any, values: Any, state: Any) -> None: ...

    def close(self) -> None:
        self.calls.append("close")
        if self.fails == "close":
            raise OSError("no connection")


def test_a_reducer_is_opened_once_and_closed_once() -> None:
    made = Recording()
    reducers = OpenReducers("node-1", {3: job_of(made), 4: job_of(ms.count())}, 16)

    for job in (3, 3, 4):
        reducers.open(job)
    reducers.close()
    reducers.close()

    assert made.calls == [("job", "node-1", 16), "close"]


def test_what_was_never_opened_is_not_closed() -> None:
    made = Recording()
    OpenReducers("node-1", {3: job_of(made)}, 16).close()

    assert made.calls == []


def test_an_error_in_open_names_the_users_line_and_open_is_tried_again() -> None:
    made = Recording("open")
    reducers = OpenReducers("node-1", {3: job_of(made)}, 16)

    for _ in range(2):
        with pytest.raises(ms.UserFunctionError) as caught:
            reducers.open(3)
        assert caught.value.place is not None
        assert caught.value.place.file == __file__
        assert "open of the reducer of job 'job', Recording.open, raised OSError: no model" in str(
            caught.value
        )
    assert len(made.calls) == 2


def test_an_error_in_close_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    reducers = OpenReducers("node-1", {3: job_of(Recording("close"))}, 16)
    reducers.open(3)

    reducers.close()

    assert "OSError: no connection" in capsys.readouterr().err


class Named(ms.Reducer):
    """Knows its job."""

    def open(self, context: ms.ReducerContext) -> None:
        self.job = context.job

    def reduce(self, key: Any, values: Any, state: Any) -> Any:
        yield self.job


def test_two_jobs_of_one_reducer_are_opened_each_on_their_own() -> None:
    flow, made = ms.Workflow("w"), Named()
    rows = flow.source("rows", ms.read.json("in", schema="id string")).key_by("id")
    names = ["one", "two"]
    for name in names:
        rows.reduce(name, made)
    jobs: dict[int, Any] = {at: flow._vertices[name] for at, name in enumerate(names)}
    shipped = pickle.loads(ship(jobs))
    reducers = OpenReducers("node-1", shipped, 16)
    for at in shipped:
        reducers.open(at)

    found = [list(job.reducer.function("key", [], {})) for job in shipped.values()]

    assert found == [["one"], ["two"]]

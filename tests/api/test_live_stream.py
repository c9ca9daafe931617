from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from millstream.api import live_stream
from millstream.api.live_stream import LiveStreams, change
from millstream.errors import MillstreamError
from tests.api.conftest import Clock
from tests.api.stand_in import StandInRun


def messages(
    run: StandInRun, count: int, *, since: int | None = None, expires: float = 2e9
) -> list[tuple[str, Any]]:
    """The first messages of a stream; the run changes before each look at it but the first."""

    async def read() -> list[bytes]:
        found: list[bytes] = []
        stream = LiveStreams(run, Clock()).messages(since, expires)
        async for message in stream:
            found.append(message)
            if len(found) == count:
                break
        return found

    parsed = []
    for message in anyio.run(read):
        fields = dict(line.split(": ", 1) for line in message.decode().strip().split("\n"))
        parsed.append((fields.get("event", ""), json.loads(fields.get("data", "null"))))
    return parsed


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_stream, "_EVERY", 0.0)


def test_a_stream_begins_with_everything_and_continues_with_what_changed() -> None:
    run = StandInRun()
    looks = iter(range(10))
    run.on_snapshot = lambda: run.change() if next(looks) else None

    (first, whole), (second, part) = messages(run, 2)

    assert (first, second) == ("snapshot", "snapshot")
    assert set(whole["parts"]) >= {"run", "graph", "nodes", "ring", "throughput"}
    assert set(part["parts"]) == {"run"}
    assert part["parts"]["run"]["committed"] == 8
    assert part["number"] == whole["number"] + 1


def test_a_stream_sends_events_that_follow() -> None:
    run = StandInRun()
    run.add_event("join", "old")
    looks = iter(range(10))
    run.on_snapshot = lambda: run.add_event("scale", "new") if next(looks) else None

    new = messages(run, 2)
    all_of_them = messages(run, 3, since=0)

    assert [kind for kind, _ in new] == ["snapshot", "event"]
    assert new[1][1]["text"] == "new"
    assert [data["text"] for kind, data in all_of_them if kind == "event"] == ["old", "new"]


def test_a_stream_ends_with_its_token_and_with_the_run() -> None:
    run = StandInRun()
    assert messages(run, 1, expires=1e9) == []
    run.failure = MillstreamError("ended")

    assert messages(run, 5) == [("", None)]


def test_equal_parts_are_not_sent_again() -> None:
    run = StandInRun()
    before = run.now
    run.change()

    assert set(change(before, run.now).parts) == {"run"}
    assert change(run.now, run.now).parts == {}


def test_a_stream_ends_when_its_server_ends() -> None:
    run, ending = StandInRun(), [False]
    run.on_snapshot = lambda: ending.__setitem__(0, True)

    async def read() -> int:
        stream = LiveStreams(run, Clock(), lambda: ending[0]).messages(None, 2e9)
        return len([message async for message in stream])

    assert anyio.run(read) == 1

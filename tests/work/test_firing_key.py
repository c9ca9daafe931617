"""Keys that several timers fire for in one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from millstream.state import timers
from millstream.state.timers import Timer
from millstream.times import EPOCH
from millstream.work import firing_key

from .timed_running import TimedRunning, timed_job


def set_many(key: str, values: list[int], state: Any) -> None:
    """Set as many timers as a value says, a second apart."""
    for number in range(values[0]):
        state.timers.set(f"{number:04}", at=EPOCH + timedelta(seconds=10 + number))


def count(key: str, timer: Timer, state: Any) -> Iterator[Any]:
    state["n"] = state.get("n", 0) + 1
    yield key, state


def test_a_timer_that_fires_does_not_visit_the_others_of_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = TimedRunning(timed_job(set_many, count))
    run.epoch([("a", 300)], 1)
    visited = 0
    is_timer = timers.is_timer

    def counted(name: object) -> bool:
        nonlocal visited
        visited += 1
        return is_timer(name)

    for module in (timers, firing_key):
        monkeypatch.setattr(module, "is_timer", counted)
    outputs = run.reduce([], 1000).outputs

    assert sum(batch.num_rows for batch in outputs) == 300
    assert visited < 10 * 300


def test_state_in_an_output_is_as_it_was_when_its_timer_fired() -> None:
    run = TimedRunning(timed_job(set_many, count))
    run.epoch([("a", 4)], 1)

    assert run.epoch([], 1000) == [("a", {"n": n}) for n in (1, 2, 3, 4)]
    assert run.state() == {"a": {"n": 4}}


def test_each_call_sees_what_the_earlier_ones_changed_and_removed() -> None:
    def change(key: str, timer: Timer, state: Any) -> Iterator[Any]:
        before = deepcopy(dict(state))
        match timer.name:
            case "0000":
                state.update(kept=[1], removed=1)
            case "0001":
                state["kept"].append(2)
                del state["removed"]
            case "0002":
                state.clear()
                state["new"] = 1
                state.timers.cancel("0004")
        yield timer.name, before

    run = TimedRunning(timed_job(set_many, change))

    assert run.epoch([("a", 6)], 1000) == [
        ("0000", {}),
        ("0001", {"kept": [1], "removed": 1}),
        ("0002", {"kept": [1, 2]}),
        ("0003", {"new": 1}),
        ("0005", {"new": 1}),
    ]
    assert run.state() == {"a": {"new": 1}}

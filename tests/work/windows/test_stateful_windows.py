"""Windowed reduce functions with state: each window of a key sees what the ones before it left."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.errors import WorkflowError
from millstream.flow.windows import (
    CountWindow,
    EveryCount,
    GlobalWindow,
    SessionWindow,
    TimeWindow,
)
from millstream.work.job_clock import JobClock
from millstream.work.unit import UnitContext
from millstream.work.windows.choice import window_operator
from millstream.work.windows.forms import Window
from tests.work.windows.rig import SLOTS, Rig, block_of, expected, job_of
from tests.work.windows.test_time_windows import micros, stream

ALL = range(SLOTS)
EVERY = np.ones(SLOTS, bool)


def numbered(key: str, values: list[int], window: Window, state: Any) -> tuple[Any, ...]:
    """Number the windows of a key, and remember all sums so far in a list."""
    state["n"] = state.get("n", 0) + 1
    state.setdefault("sums", []).append(sum(values))
    return key, micros(window.start), micros(window.end), state["n"], sum(state["sums"])


def counted(key: str, values: list[int], state: Any) -> tuple[str, int, int]:
    state["n"] = state.get("n", 0) + 1
    return key, state["n"], sum(values)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "windows",
    [
        (TimeWindow(10, 10),),
        (TimeWindow(12, 4),),
        (TimeWindow(6, 6), TimeWindow(12, 4)),
    ],
    ids=str,
)
def test_windows_of_a_key_share_its_state_in_the_order_of_their_ends(
    windows: tuple[TimeWindow, ...], seed: int
) -> None:
    rng = random.Random(f"{seed} {windows}")
    rig = Rig(job_of(numbered, *windows), rng)
    epochs = list(stream(rng, 14))
    for rows, watermark in epochs:
        rig.run(rows, watermark)

    sums: dict[Any, Any] = {}
    for window in windows:
        sums |= expected(epochs, window, lambda rows: sum(value for _, _, value in rows))
    by_key: dict[Any, list[tuple[int, ...]]] = defaultdict(list)
    for key, start, end, number, total in rig.results:
        by_key[key].append((end, start, number, total))
    assert {(key, s, e) for key, s, e, _, _ in rig.results} == sums.keys()
    for key, found in by_key.items():
        found.sort(key=lambda row: row[2])
        assert [number for _, _, number, _ in found] == list(range(1, len(found) + 1))
        assert [end for end, _, _, _ in found] == sorted(end for end, _, _, _ in found)
        so_far = np.cumsum([sums[key, start, end] for end, start, _, _ in found])
        assert [total for _, _, _, total in found] == so_far.tolist()


@pytest.mark.parametrize(
    "window",
    [SessionWindow(5), CountWindow(3, 3), GlobalWindow(EveryCount(2))],
    ids=lambda window: type(window).__name__,
)
@pytest.mark.parametrize("seed", range(4))
def test_every_kind_of_window_numbers_its_results(window: Any, seed: int) -> None:
    rng = random.Random(f"{seed} {window}")
    rig = Rig(job_of(counted, window), rng)
    for rows, watermark in stream(rng, 12):
        rig.run(rows, watermark)

    numbers: dict[Any, list[int]] = defaultdict(list)
    for key, number, _ in rig.results:
        numbers[key].append(number)
    assert numbers
    for found in numbers.values():
        assert sorted(found) == list(range(1, len(found) + 1))
    left = {key: value for owner in rig.owners for key, value in owner.state.items(EVERY)}
    state = {key: value["state"]["n"] for key, value in left.items() if "state" in value}
    assert state == {key: len(found) for key, found in numbers.items()}
    for owner in rig.owners:
        by_slot = [owner.state.count(np.arange(SLOTS) == slot) for slot in ALL]
        assert any(by_slot) and owner.state.counts(EVERY).tolist() == by_slot


def one_epoch(operator: Any, rows: Any, unit: UnitContext, job: Any) -> Any:
    reduced = operator.reduce(block_of(job, rows, True), unit)
    operator.state.apply(operator.state.decode(operator.state.encode(reduced.fragment)))
    return reduced


def unit_of(epoch: int, closed: int, watermark: int, **more: Any) -> UnitContext:
    clock = JobClock(closed, watermark, {}, True, False)
    return UnitContext(ALL, more.pop("time", 1000 + epoch), None, True, clock, epoch, **more)


def test_state_changes_also_if_nobody_reads_the_results() -> None:
    job = job_of(counted, TimeWindow(10, 10))
    operator = window_operator(job, SLOTS)
    unread = replace(unit_of(0, 0, 10), read=False)

    reduced = one_epoch(operator, [("a", 1, 5)], unread, job)

    assert reduced.outputs == []
    assert dict(operator.state.items(EVERY)) == {"a": {"state": {"n": 1}}}


def test_a_failed_attempt_leaves_no_trace_in_the_state() -> None:
    def fragile(key: str, values: list[int], state: Any) -> None:
        state["n"] = state.get("n", 0) + 1
        if values == [13]:
            raise ValueError("unlucky")

    job = job_of(fragile, TimeWindow(10, 10))
    operator = window_operator(job, SLOTS)
    with pytest.raises(ms.UserFunctionError, match="unlucky"):
        operator.reduce(block_of(job, [("a", 1, 1), ("b", 1, 13)], True), unit_of(0, 0, 10))

    one_epoch(operator, [("c", 1, 1)], unit_of(0, 0, 10), job)

    assert dict(operator.state.items(EVERY)) == {"c": {"state": {"n": 1}}}


def test_state_expires_when_no_window_of_its_key_has_fired() -> None:
    job = replace(job_of(counted, TimeWindow(10, 10)), ttl=timedelta(microseconds=50))
    operator = window_operator(job, SLOTS)
    one_epoch(operator, [("a", 1, 1), ("b", 2, 1)], unit_of(0, 0, 10, time=100), job)
    one_epoch(operator, [("b", 11, 1)], unit_of(1, 10, 20, time=140), job)

    one_epoch(operator, [], unit_of(2, 20, 20, time=160), job)

    assert dict(operator.state.items(EVERY)) == {"b": {"state": {"n": 2}}}


def test_a_cleared_state_is_gone() -> None:
    def until_three(key: str, values: list[int], state: Any) -> int:
        state["n"] = state.get("n", 0) + 1
        found: int = state["n"]
        if found == 3:
            state.clear()
        return found

    job = job_of(until_three, TimeWindow(10, 10))
    operator = window_operator(job, SLOTS)
    for epoch in range(3):
        rows = [("a", 10 * epoch + 1, 1)]
        one_epoch(operator, rows, unit_of(epoch, 10 * epoch, 10 * epoch + 10), job)

    assert dict(operator.state.items(EVERY)) == {}


def test_early_results_and_state_are_rejected_together() -> None:
    stream_ = ms.Workflow("w").source("s", ms.read.rate(10))
    windows = stream_.key_by("value").window(
        ms.tumbling(timedelta(minutes=1)), time="timestamp", early_every=timedelta(seconds=1)
    )

    with pytest.raises(WorkflowError, match="early_every= and a reducer with state"):
        windows.reduce("job", counted)


def test_jobs_with_state_are_not_fused() -> None:
    flow = ms.Workflow("w")
    keyed = flow.source("s", ms.read.rate(10)).key_by("value")
    for name, minutes in (("one", 1), ("two", 2)):
        window = ms.tumbling(timedelta(minutes=minutes))
        keyed.window(window, time="timestamp").reduce(name, counted).sink(
            f"to-{name}", ms.write.console()
        )

    assert "fuse" not in flow.explain().lower() and "leads" not in flow.explain()


def test_results_of_one_window_do_not_change_with_the_next() -> None:
    def history(key: str, values: list[int], state: Any) -> tuple[str, list[int]]:
        state.setdefault("seen", []).extend(values)
        return key, state["seen"]

    rig = Rig(job_of(history, TimeWindow(10, 10)), random.Random(1), nodes=1)
    rig.run([("a", 1, 1), ("a", 11, 2), ("a", 21, 3)], 30)

    assert [seen for _, seen in rig.results] == [[1], [1, 2], [1, 2, 3]]


def test_state_that_has_expired_is_not_seen_by_the_window_that_fires_next() -> None:
    job = replace(job_of(counted, TimeWindow(10, 10)), ttl=timedelta(microseconds=50))
    operator = window_operator(job, SLOTS)
    one_epoch(operator, [("a", 1, 1)], unit_of(0, 0, 10, time=100), job)

    one_epoch(operator, [("a", 11, 1)], unit_of(1, 10, 20, time=1000), job)

    assert dict(operator.state.items(EVERY)) == {"a": {"state": {"n": 1}}}


def test_a_value_that_cannot_be_pickled_is_the_users_error_and_leaves_nothing_behind() -> None:
    def locked(key: str, values: list[int], state: Any) -> None:
        state["value"] = threading.Lock() if values == [13] else values

    job = job_of(locked, TimeWindow(10, 10))
    operator = window_operator(job, SLOTS)
    with pytest.raises(ms.UserFunctionError, match="locked"):
        operator.reduce(block_of(job, [("a", 1, 13)], True), unit_of(0, 0, 10))

    one_epoch(operator, [("a", 1, 5)], unit_of(0, 0, 10), job)

    assert dict(operator.state.items(EVERY)) == {"a": {"state": {"value": [5]}}}

"""Whoever reads windowed state while an epoch is reduced sees the committed epoch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import (
    CountWindow,
    GlobalWindow,
    SessionWindow,
    TimeWindow,
    WithinWindow,
)
from millstream.ring.hashing import hash_key
from millstream.state.panes import keys as key_ids
from millstream.times import BEGINNING
from millstream.work.job_clock import JobClock
from millstream.work.unit import ReduceOperator, UnitContext
from millstream.work.windows.choice import window_operator
from tests.work.windows.join_rig import join_of
from tests.work.windows.rig import SLOTS, Row, block_of, job_of, packed

ALL = np.ones(SLOTS, bool)
SECOND = 1_000_000
_SOURCE = Path(ms.__file__).parent
_FOLDERS = (str(_SOURCE / "state" / "panes"), str(_SOURCE / "work" / "windows"))


def total(key: Any, values: list[Any], window: Any) -> Iterator[Any]:
    yield key, sum(values)


JOBS = {
    "panes": job_of(ms.sum(), TimeWindow(40, 10)),
    "loose rows": job_of(total, TimeWindow(40, 10)),
    "sessions": job_of(ms.sum(), SessionWindow(30)),
    "counts": job_of(ms.sum(), CountWindow(4, 2)),
    "global": job_of(ms.sum(), GlobalWindow(ms.on_watermark())),
    "join": join_of(WithinWindow(30)),
}


@contextmanager
def at_every_line(look: Callable[[], None]) -> Iterator[list[int]]:
    """Do something before every line that reduces: where threads may take turns."""
    looks = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_FOLDERS):
            return None
        if event == "line":
            looks[0] += 1
            look()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield looks
    finally:
        sys.settrace(before)


def rows(job: JobVertex, first: int, number: int, time: int) -> list[Row]:
    """A value for each of so many keys."""
    values = [("left" if at % 2 else "right", at) for at in range(number)]
    joins = job is JOBS["join"]
    return [(f"k{first + at}", time, values[at] if joins else at) for at in range(number)]


def epoch(
    operator: ReduceOperator[Any], job: JobVertex, given: list[Row], at: int, closed: int
) -> Any:
    clock = JobClock(closed - 10 if at else BEGINNING, closed, {}, True, False)
    pack = packed if job is JOBS["join"] else block_of
    unit = UnitContext(range(SLOTS), at, None, True, clock, at)
    return operator.reduce(pack(job, given, True), unit).fragment


@pytest.mark.parametrize("kind", JOBS)
def test_a_read_at_any_line_of_a_reduction_is_of_the_committed_epoch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ids, "_SPARE", 0)
    monkeypatch.setattr(key_ids, "_LEAST", 8)  # so that arrays grow meanwhile
    job = JOBS[kind]
    operator = window_operator(job, SLOTS)
    # Keys that are gone when the last epoch is reduced, and so are numbered anew in it.
    operator.state.apply(epoch(operator, job, rows(job, 0, 30, 0), 0, 0))
    operator.state.apply(epoch(operator, job, rows(job, 100, 12, 8 * SECOND), 1, 7 * SECOND))
    committed, counted = dict(operator.state.items(ALL)), operator.state.count(ALL)
    by_slot = Counter(hash_key(key, pa.string()) % SLOTS for key in committed)
    odd = np.arange(SLOTS) % 2 == 1
    generation = operator.state.keys.generation  # type: ignore[attr-defined]
    assert committed

    def look() -> None:
        assert dict(operator.state.items(ALL)) == committed
        assert operator.state.count(ALL) == counted
        assert operator.state.counts(odd).tolist() == [by_slot[at] for at in range(1, SLOTS, 2)]
        for key in ("k100", "k111", "k130", "k7"):
            assert operator.state.get(hash_key(key, pa.string()) % SLOTS, key) == committed.get(key)

    given = rows(job, 110, 30, 9 * SECOND)
    with at_every_line(look) as looks:
        fragment = epoch(operator, job, given, 2, 8 * SECOND)

    assert looks[0] > 50
    look()
    if kind not in ("counts", "global"):  # of those no key is ever given up
        assert operator.state.keys.generation is not generation  # type: ignore[attr-defined]
    operator.state.apply(fragment)
    assert dict(operator.state.items(ALL)) != committed

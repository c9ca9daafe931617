"""Event times on the map side of jobs with timers: what is counted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa
import pytest

from millstream.flow.row_reducer import RowReducer
from millstream.times import EPOCH
from millstream.work.chunk import Chunk
from millstream.work.event_time_meter import TimeMeter
from millstream.work.job_clock import JobClock, Tally
from millstream.work.keyed_values import keyed
from tests.work.running import job_of

SOURCE = 3
CLOCK = JobClock(closed=20, watermark=30, limits={SOURCE: 99})


class Rows(RowReducer):
    """A reducer of rows that is not called."""

    output = pa.schema([("id", pa.string())])
    title = "Rows"

    def __init__(self, drops_late: bool) -> None:
        self.drops_late = drops_late

    def begin(self, epoch: int, time: int, watermark: int) -> None: ...

    def reduce(self, key: Any, values: Any, state: Any) -> None: ...

    def read(self, rows: pa.RecordBatch, cuts: Sequence[int]) -> list[Any]:
        raise NotImplementedError

    read_initial = read

    def encode(self, outputs: Sequence[Any]) -> pa.RecordBatch:
        raise NotImplementedError

    def users_function(self, method: str) -> object:
        return self.reduce

    def for_job(self) -> Self:
        return self


def counted(job_reducer: RowReducer, times: Sequence[int | None]) -> tuple[Tally, ...]:
    job = job_of(job_reducer, key="id", time="t")
    column = [None if time is None else EPOCH + dt.timedelta(microseconds=time) for time in times]
    batch = pa.RecordBatch.from_pydict(
        {"id": ["a"] * len(times), "t": pa.array(column, pa.timestamp("us", "UTC"))}
    )
    meter = TimeMeter(job, CLOCK)
    for values in keyed(job, Chunk(batch=batch)):
        meter.measure(values, SOURCE)
    return meter.tallies


@pytest.mark.parametrize(
    ("drops_late", "expected"),
    [
        (True, Tally(SOURCE, rows=2, latest=40, late=2, ahead=1, untimed=1)),
        (False, Tally(SOURCE, rows=4, latest=40, ahead=1, untimed=1)),
    ],
)
def test_rows_that_the_reducer_drops_are_counted_as_late(drops_late: bool, expected: Tally) -> None:
    assert counted(Rows(drops_late), [20, 21, 5, 40, 100, None]) == (expected,)


def test_when_all_rows_are_late_no_time_is_measured() -> None:
    assert counted(Rows(True), [20, 5]) == (Tally(SOURCE, late=2),)

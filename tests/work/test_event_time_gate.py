from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.flow.vertices import JobVertex, Side
from millstream.flow.windows import SessionWindow, TimeWindow, Window, Windowing
from millstream.state.blocks import TIME, WINDOW
from millstream.times import BEGINNING, END
from millstream.work.chunk import Chunk
from millstream.work.event_time_gate import Admitted, Gate, runs_of
from millstream.work.failures import RecordError
from millstream.work.job_clock import JobClock, Tally
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import keyed
from tests.state.python_values import untimed
from tests.work.running import job_of

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
TEN = TimeWindow(10, 10)
SIDES: tuple[Side, ...] = ("late", "ahead", "untimed")
SOURCE = 3
CLOCK = JobClock(closed=20, watermark=30, limits={SOURCE: 99})


def at(time: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=time)


def windowed(*windows: Window, **options: Any) -> JobVertex:
    return job_of(ms.count(), windowing=Windowing(windows or (TEN,)), **options)


def admit(job: JobVertex, gate: Gate, chunk: Chunk, origin: int | None = SOURCE) -> Admitted:
    [values] = keyed(job, chunk)
    return gate.admit(values, origin, chunk.time)


def pairs(*items: tuple[Any, ...]) -> Chunk:
    return Chunk(records=list(items))


def rows(**columns: Any) -> Chunk:
    return Chunk(batch=pa.record_batch(columns))


MIXED = (
    ("a", 1, at(25)),
    ("b", 2, None),
    ("c", 3, at(19)),
    ("d", 4, at(100)),
    ("e", 5, at(20)),
    ("f", 6, at(99)),
    ("g", 7, at(-5)),
)


# -- which values are taken ------------------------------------------------------------------


def test_values_that_are_late_ahead_or_untimed_go_to_their_sides() -> None:
    job = windowed()
    gate = Gate(job, CLOCK, 0, SIDES)

    found = admit(job, gate, pairs(*MIXED))

    assert isinstance(found.taken.values, Pairs)
    assert [item[0] for item in found.taken.values.items] == ["a", "e", "f"]
    assert found.taken.times.tolist() == [25, 20, 99]
    assert {side: list(chunk.records()) for side, chunk in found.sides.items()} == {
        "late": [("c", 3, at(19)), ("g", 7, at(-5))],
        "ahead": [("d", 4, at(100))],
        "untimed": [("b", 2, None)],
    }
    assert gate.tallies == (Tally(SOURCE, rows=3, latest=99, late=2, ahead=1, untimed=1),)


def test_columns_go_to_sides_as_columns() -> None:
    job = windowed(key=("user", "site"), time="at")
    gate = Gate(job, CLOCK, 0, SIDES)
    keys, values, stamps = zip(*MIXED, strict=True)
    chunk = rows(user=list(keys), site=[1] * 7, n=list(values), at=pa.array(stamps, UTC))

    found = admit(job, gate, chunk)

    assert isinstance(found.taken.values, KeyedBatch)
    assert found.taken.values.values["n"].to_pylist() == [1, 5, 6]
    assert found.taken.values.times is not None
    assert found.taken.values.times.to_pylist() == [at(25), at(20), at(99)]
    late = found.sides["late"].batch()
    assert late.schema.names == ["key", "user", "site", "n", "time"]
    assert late.column("n").to_pylist() == [3, 7]
    assert late.column("time").to_pylist() == [at(19), at(-5)]
    assert found.sides["ahead"].batch().column("time").to_pylist() == [at(100)]
    untimed_rows = found.sides["untimed"].batch()
    assert untimed_rows.column("time").to_pylist() == [None]
    assert untimed_rows.schema.field("time").type == UTC


def test_a_row_of_a_side_can_be_unpacked_as_key_value_and_time() -> None:
    job = windowed(time="at")
    gate = Gate(job, CLOCK, 0, ["late"])

    found = admit(job, gate, rows(key=["a"], value=[1], at=pa.array([at(3)], UTC)))

    [(key, value, time)] = found.sides["late"].records()
    assert (key, value, time) == ("a", 1, at(3))


def test_unread_side_outputs_are_only_counted() -> None:
    job = windowed()
    gate = Gate(job, CLOCK, 0, ["ahead"])

    found = admit(job, gate, pairs(*MIXED))

    assert set(found.sides) == {"ahead"}
    assert gate.tallies[0].late == 2


def test_times_come_back_as_they_were_given() -> None:
    job = windowed()
    gate = Gate(job, CLOCK, 0, SIDES)
    beyond = 9e12  # seconds that no datetime can tell

    found = admit(job, gate, pairs(("a", 1, 0.000001), ("b", 2, beyond), ("c", 3, float("nan"))))

    assert {side: list(chunk.records()) for side, chunk in found.sides.items()} == {
        "late": [("a", 1, 0.000001)],
        "ahead": [("b", 2, beyond)],
        "untimed": [("c", 3, None)],
    }


@pytest.mark.parametrize("window", [TEN, ms.session(dt.timedelta(1)), ms.count_window(2)], ids=str)
def test_times_beyond_datetimes_are_never_admitted(window: Window) -> None:
    job = windowed(window)
    gate = Gate(job, JobClock(limits={SOURCE: END}), 0)

    found = admit(job, gate, pairs(("a", 1, 9e12), ("a", 2, -9e12), ("a", 3, 0)))

    assert found.taken.times.tolist() == [0]
    assert gate.tallies == (Tally(SOURCE, rows=1, latest=0, late=1, ahead=1),)


DAY = 86_400_000_000
FIRST, LAST = (
    (edge.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)
    for edge in (dt.datetime.min, dt.datetime.max)
)


def bounds(window: Window, time: int) -> list[int]:
    """The bounds of all windows that a time lies in."""
    if isinstance(window, SessionWindow):
        return [time, time + window.gap]
    assert isinstance(window, TimeWindow)
    last = time // window.slide * window.slide
    starts = range(last, time - window.size, -window.slide)
    return [bound for start in starts for bound in (start, start + window.size)]


@pytest.mark.parametrize(
    "window",
    [
        TimeWindow(20_000_000, 10_000_000),
        TimeWindow(420_000_000, 420_000_000),
        TimeWindow(7 * DAY, 7 * DAY),
        TimeWindow(7 * DAY, 3 * DAY),
        TimeWindow(3000 * 365 * DAY, 3000 * 365 * DAY),
        SessionWindow(DAY),
    ],
    ids=str,
)
def test_values_are_admitted_if_datetimes_represent_all_their_windows(window: Window) -> None:
    job = windowed(window)
    gate = Gate(job, JobClock(limits={SOURCE: END}), 0)
    steps = [0, 1, 9_999_999, 10_000_000, 419_999_999, DAY - 1, DAY, 4 * DAY, 7 * DAY, 14 * DAY]
    near = {*(FIRST + step for step in steps), *(LAST - step for step in steps), at_noon()}
    # Where taking begins and ends, to the microsecond.
    near |= {bound + more for time in near for bound in bounds(window, time) for more in (-1, 0)}
    times = sorted(time for time in near if FIRST <= time <= LAST)

    found = admit(job, gate, pairs(*(("a", 1, at(time)) for time in times)))

    assert found.taken.times.tolist() == [
        time
        for time in times
        if FIRST < time < LAST and all(FIRST <= bound <= LAST for bound in bounds(window, time))
    ]
    assert at_noon() in found.taken.times
    [tally] = gate.tallies
    assert tally.late and tally.ahead
    assert tally.rows + tally.late + tally.ahead == len(times)


def at_noon() -> int:
    return (dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)


@pytest.mark.parametrize("window", [TEN, ms.session(dt.timedelta(1)), ms.count_window(2)], ids=str)
@pytest.mark.parametrize("far", [float("inf"), 1e14, 1.7e18])
def test_numbers_beyond_timestamps_are_late_or_ahead(window: Window, far: float) -> None:
    job = windowed(window)
    gate = Gate(job, JobClock(limits={SOURCE: END}), 0, SIDES)

    found = admit(
        job, gate, pairs(("a", 1, -far), ("a", 2, far), ("a", 3, float("nan")), ("a", 4, 0))
    )

    assert found.taken.times.tolist() == [0]
    assert {side: list(chunk.records()) for side, chunk in found.sides.items()} == {
        "late": [("a", 1, -far)],
        "ahead": [("a", 2, far)],
        "untimed": [("a", 3, None)],
    }
    assert gate.tallies == (Tally(SOURCE, rows=1, latest=0, late=1, ahead=1, untimed=1),)


def test_rows_of_a_side_that_no_calendar_has_can_be_read() -> None:
    job = windowed(time="at")
    gate = Gate(job, JobClock(limits={SOURCE: END}), 0, SIDES)
    far = pa.array([-(2**60), 2**60, 5], UTC)

    found = admit(job, gate, rows(key=["a", "b", "c"], at=far))

    assert found.taken.times.tolist() == [5]
    sides = {side: list(chunk.records()) for side, chunk in found.sides.items()}
    assert sides == {"late": [("a", at(FIRST))], "ahead": [("b", at(LAST))]}


def test_a_value_is_counted_on_one_side_only() -> None:
    job = windowed()
    gate = Gate(job, JobClock(closed=END, limits={SOURCE: 10}), 0, SIDES)

    found = admit(job, gate, pairs(("a", 1, at(50))))

    assert set(found.sides) == {"late"}
    assert gate.tallies == (Tally(SOURCE, late=1),)


def test_a_value_column_called_time_cannot_stand_beside_the_time_of_a_side() -> None:
    job = windowed(time="at")
    chunk = rows(key=["a"], time=[1], at=pa.array([at(50)], UTC))

    assert len(admit(job, Gate(job, CLOCK, 0), chunk).taken.times) == 1
    with pytest.raises(RecordError, match=r"value column 'time'.*rename"):
        admit(job, Gate(job, CLOCK, 0, ["late"]), chunk)


@untimed
@given(
    time=st.integers(-100, 100),
    closed=st.integers(-120, 120) | st.just(BEGINNING) | st.just(END),
    windows=st.lists(
        st.builds(lambda slide, more: TimeWindow(slide + more, slide), *[st.integers(1, 15)] * 2),
        min_size=1,
        max_size=3,
    ),
)
def test_a_value_is_late_when_all_its_windows_were_closed(
    time: int, closed: int, windows: list[TimeWindow]
) -> None:
    ends = [
        start + window.size
        for window in windows
        for start in range(-200 // window.slide * window.slide, 201, window.slide)
        if start <= time < start + window.size
    ]

    late = time < Windowing(tuple(windows)).earliest_on_time(closed)

    assert late == all(end <= closed for end in ends)


@untimed
@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 20))
def test_a_value_is_late_for_sessions_when_its_own_was_closed(
    time: int, closed: int, gap: int
) -> None:
    late = time < Windowing((SessionWindow(gap),)).earliest_on_time(closed)

    assert late == (time + gap <= closed)


@pytest.mark.parametrize("window", [ms.count_window(2), ms.global_window(ms.on_watermark())])
def test_nothing_is_late_where_windows_do_not_close_by_time(window: Window) -> None:
    job = windowed(window)

    found = admit(job, Gate(job, JobClock(closed=END), 0), pairs(("a", 1, at(-7))))

    assert found.taken.times.tolist() == [-7]


# -- where times come from -------------------------------------------------------------------


def test_a_chunk_says_the_time_of_values_without_one() -> None:
    job = windowed()
    gate = Gate(job, CLOCK, 0, SIDES)
    fresh, old = (Chunk(records=[("a", 1)], time=time) for time in (50, 5))

    assert admit(job, gate, fresh, None).taken.times.tolist() == [50]
    late = admit(job, gate, old, None).sides["late"]
    assert list(late.records()) == [("a", 1, at(5))]


def test_a_time_of_its_own_goes_before_that_of_the_chunk() -> None:
    job = windowed()
    chunk = Chunk(records=[("a", 1, at(40))], time=50)

    assert admit(job, Gate(job, CLOCK, 0), chunk).taken.times.tolist() == [40]


def test_in_processing_time_every_value_is_of_now_and_none_is_late() -> None:
    job = job_of(ms.count(), windowing=Windowing((TEN,), processing_time=True))
    gate = Gate(job, JobClock(closed=END), 77, SIDES)

    found = admit(job, gate, pairs(("a", 1, None), ("b", 2, at(3))))

    assert found.taken.times.tolist() == [77, 77]
    assert not found.sides
    assert gate.tallies == (Tally(SOURCE, rows=2, latest=77),)


@pytest.mark.parametrize(
    "job", [windowed(map=lambda record: [record]), windowed(), windowed(key=lambda record: 1)]
)
def test_values_without_any_time_are_refused(job: JobVertex) -> None:
    with pytest.raises(RecordError, match=r"job 'job'.*without an event time") as caught:
        admit(job, Gate(job, CLOCK, 0), pairs(("a", 1)))

    assert "ms.processing_time" in str(caught.value)
    assert "(key, value, timestamp)" in str(caught.value)


def test_a_time_that_is_none_is_refused_by_name() -> None:
    job = windowed()

    with pytest.raises(RecordError, match=r"'noon'.*for a timestamp"):
        admit(job, Gate(job, CLOCK, 0), pairs(("a", 1, "noon")))


# -- counting --------------------------------------------------------------------------------


def test_each_origin_has_a_limit_and_a_tally_of_its_own() -> None:
    job = windowed()
    gate = Gate(job, replace(CLOCK, limits={3: 50, 1: 70}), 0)
    chunk = pairs(("a", 1, at(60)), ("a", 1, at(45)))

    for origin in (3, 1, 3):
        admit(job, gate, chunk, origin)

    assert gate.tallies == (
        Tally(1, rows=2, latest=60),
        Tally(3, rows=2, latest=45, ahead=2),
    )


def test_what_comes_from_windows_has_no_tally_and_no_limit() -> None:
    job = windowed()
    gate = Gate(job, CLOCK, 0)

    found = admit(job, gate, Chunk(records=[("a", 1)], time=1000), None)

    assert found.taken.times.tolist() == [1000]
    assert gate.tallies == ()


def test_an_empty_batch_counts_nothing() -> None:
    job = windowed(time="at")
    gate = Gate(job, CLOCK, 0, SIDES)
    empty = rows(key=pa.array([], pa.string()), at=pa.array([], UTC))

    found = admit(job, gate, empty)

    assert not len(found.taken.times) and not found.sides and not gate.tallies


def test_a_batch_of_which_nothing_is_taken_is_counted() -> None:
    job = windowed()
    gate = Gate(job, CLOCK, 0)

    found = admit(job, gate, pairs(("a", 1, at(0))))

    assert not len(found.taken.times)
    assert gate.tallies == (Tally(SOURCE, late=1),)
    assert gate.tallies[0].latest == BEGINNING


# -- results of windows ----------------------------------------------------------------------


def test_results_are_handed_on_window_by_window_with_their_time() -> None:
    columns = {
        "key": list("abcde"),
        WINDOW: np.array([0, 0, 0, 1, 0], np.int32),
        TIME: [9, 9, 19, 19, 19],
    }
    output = pa.record_batch(columns).replace_schema_metadata({"kept": "yes"})

    found = list(runs_of(output, timed=True))

    assert [(w, c.time, c.batch().column("key").to_pylist()) for w, c in found] == [
        (0, 9, ["a", "b"]),
        (0, 19, ["c"]),
        (1, 19, ["d"]),
        (0, 19, ["e"]),
    ]
    assert found[0][1].batch().schema.names == ["key"]
    assert found[0][1].batch().schema.metadata == {b"kept": b"yes"}


def test_results_without_readers_of_their_time_form_one_chunk() -> None:
    columns = {"key": list("abc"), WINDOW: np.array([0, 0, 1], np.int32), TIME: [9, 19, 19]}

    found = list(runs_of(pa.record_batch(columns), timed=False))

    assert [(w, c.time, c.batch().column("key").to_pylist()) for w, c in found] == [
        (0, None, ["a", "b"]),
        (1, None, ["c"]),
    ]


def test_no_results_are_no_chunks() -> None:
    empty = pa.schema([("key", pa.string()), (WINDOW, pa.int32()), (TIME, pa.int64())])

    assert list(runs_of(pa.RecordBatch.from_pylist([], schema=empty), timed=True)) == []

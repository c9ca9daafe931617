"""The plain answer to windows, against what is worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from millstream.sim.event_time import EventTimeAnswer, Job, Origin, Session, Sliding
from millstream.sim.windowed import VARIANTS, windowed
from millstream.sim.workload import SECOND, Moment, Pair
from millstream.times import END
from millstream.work.job_clock import Tally

SOURCE, SLIDES, SESSIONS, LATE, AHEAD, UNTIMED = range(6)
ORIGIN = Origin(lateness=1 * SECOND, idle=10 * SECOND, max_ahead=20 * SECOND)


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def read(record: Pair) -> tuple[int, str, int, int | None, Any]:
    key, (value, seconds) = record
    return SOURCE, key, value, None if seconds is None else seconds * SECOND, seconds


def answer() -> EventTimeAnswer:
    sides = {"late": LATE, "ahead": AHEAD, "untimed": UNTIMED}
    slides = Job(
        SLIDES, {SOURCE: ORIGIN}, [Sliding(4 * SECOND, 2 * SECOND)], sorted_values, sides=sides
    )
    sessions = Job(SESSIONS, {SOURCE: ORIGIN}, [Session(2 * SECOND)], sorted_values)
    return EventTimeAnswer((slides, sessions), read)


def sorted_values(values: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(values))


def test_windows_close_by_the_watermark_of_the_epochs_before() -> None:
    given = answer()
    given.add([[("k", (1, 1)), ("k", (2, 3))]], Moment(0))
    given.add([[("k", (3, 8))]], Moment(1 * SECOND))  # 3 s - 1 s: closes what ends by 2 s
    given.add([[]], Moment(2 * SECOND))  # 8 s - 1 s

    assert given.outputs[0][SLIDES] == []
    assert given.outputs[1][SLIDES] == [("k", (1,), at(-2), at(2))]
    assert given.outputs[2][SLIDES] == [
        ("k", (1, 2), at(0), at(4)),
        ("k", (2,), at(2), at(6)),
    ]
    assert given.state(2, SLIDES) == {"k": {at(8): (3,)}}


def test_early_results_are_of_open_windows_that_have_news() -> None:
    job = Job(
        SLIDES,
        {SOURCE: ORIGIN},
        [Sliding(4 * SECOND, 2 * SECOND)],
        sorted_values,
        early=2 * SECOND,
    )
    given = EventTimeAnswer((job,), read)
    given.add([[("k", (1, 1))]], Moment(0))
    given.add([[("l", (2, 1))]], Moment(1 * SECOND))
    given.add([[]], Moment(2 * SECOND))
    given.add([[]], Moment(4 * SECOND))
    given.add([[("k", (3, 1))]], Moment(5 * SECOND))
    given.add([[("l", (4, 5))]], Moment(7 * SECOND))

    both = [("k", (1,)), ("l", (2,))]
    ends = [(at(-2), at(2)), (at(0), at(4))]
    assert [epoch[SLIDES] for epoch in given.outputs[:5]] == [
        [],
        [],
        [(*one, *end) for one in both for end in ends],
        [],
        [],
    ]
    # The pane of 0 s has news, and so have all keys in its slot; that of 5 s, too.
    assert ("k", (1, 3), at(0), at(4)) in given.outputs[5][SLIDES]
    assert ("l", (2,), at(0), at(4)) in given.outputs[5][SLIDES]
    assert ("l", (4,), at(4), at(8)) in given.outputs[5][SLIDES]


def test_sessions_end_a_gap_after_their_last_value() -> None:
    given = answer()
    given.add([[("k", (2, 2)), ("k", (1, 1)), ("k", (3, 4))]], Moment(0))
    given.add([[("k", (4, 5))]], Moment(1 * SECOND))
    given.add([[]], Moment(2 * SECOND, asked=END))

    assert given.state(0, SESSIONS) == {"k": {at(1): (1, 2), at(4): (3,)}}
    assert given.outputs[1][SESSIONS] == []
    assert given.outputs[2][SESSIONS] == [("k", (1, 2), at(1), at(4)), ("k", (3, 4), at(4), at(7))]


def test_values_that_windows_cannot_take_go_to_sides_and_are_counted() -> None:
    given = answer()
    given.add([[("k", (1, 10))]], Moment(0))
    given.add([[]], Moment(1 * SECOND))
    given.add(
        [[("k", (2, 4)), ("k", (3, 99)), ("k", (4, None)), ("k", (5, 6))]], Moment(1 * SECOND)
    )

    assert given.outputs[2][LATE] == [("k", 2, 4)]
    assert given.outputs[2][AHEAD] == [("k", 3, 99)]
    assert given.outputs[2][UNTIMED] == [("k", 4, None)]
    assert given.counted[2][SLIDES] == (Tally(SOURCE, 1, 6 * SECOND, late=1, ahead=1, untimed=1),)


def test_a_session_that_is_open_takes_late_values() -> None:
    sessions = Job(SESSIONS, {SOURCE: ORIGIN}, [Session(2 * SECOND)], sorted_values)
    given = EventTimeAnswer((replace(sessions, sides={"late": LATE}),), read)
    given.add([[("k", (n, n)) for n in range(10)]], Moment(0))
    given.add([[]], Moment(1 * SECOND))  # 9 s - 1 s
    given.add([[("k", (20, 4)), ("l", (30, 4)), ("k", (40, -1)), ("k", (50, -3))]], Moment(SECOND))

    assert given.outputs[2][LATE] == [("k", 50, -3), ("l", 30, 4)]
    assert given.state(2, SESSIONS) == {"k": {at(-1): (*range(10), 20, 40)}}
    assert given.counted[2][SESSIONS] == (Tally(SOURCE, 2, 4 * SECOND, late=2),)


def test_only_the_clock_decides_what_is_too_far_ahead() -> None:
    given = answer()
    for n in range(4):
        given.add([[("k", (n, 100 * n)), ("l", (n, 1021 + n))]], Moment((1000 + n) * SECOND))

    assert [epoch[AHEAD] for epoch in given.outputs] == [[("l", n, 1021 + n)] for n in range(4)]


def test_an_idle_source_advances_with_the_clock_but_not_right_after_a_restart() -> None:
    given = answer()
    given.add([[("k", (1, 1))]], Moment(0))
    given.add([[]], Moment(12 * SECOND, incarnation=2))
    waiting = given.outputs[1][SLIDES]
    given.add([[]], Moment(24 * SECOND, incarnation=2))
    given.add([[]], Moment(25 * SECOND, incarnation=2))

    assert waiting == given.outputs[2][SLIDES] == []
    assert len(given.outputs[3][SLIDES]) == 2


@pytest.mark.parametrize("variant", range(VARIANTS))
def test_the_input_of_a_workload_leaves_nothing_out(variant: int) -> None:
    workload = windowed(variant)
    seen: dict[int, int] = {}
    for seed in range(20):
        given = workload.answer(8)
        for now, tasks in islice(workload.epochs(random.Random(seed), 2), 7):
            given.add(tasks, Moment(now))
        for outputs in given.outputs:
            for vertex, rows in outputs.items():
                seen[vertex] = seen.get(vertex, 0) + len(rows)

    assert len(seen) == 7
    assert all(seen.values())

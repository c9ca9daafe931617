"""The plain answer to count windows, global windows and joins, against what is known by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from millstream.sim.keyed_windows import Count, Global, Join, Moment, Value
from millstream.times import BEGINNING, END

LEFT, RIGHT = 0, 1
EARLY = Moment(BEGINNING, BEGINNING, is_due=False)


def at(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=seconds)


def values(key: str, *given: int) -> list[Value]:
    return [Value(key, value, time=value) for value in given]


def test_count_windows_end_after_every_slide_and_the_first_are_shorter() -> None:
    window = Count(4, 2, folded=False)
    rows, kept = window.close(tuple, [], values("k", 1, 2, 3), EARLY)
    more, kept = window.close(tuple, kept, values("k", 4, 5, 6), EARLY)

    assert rows == [("k", (1, 2), 0, 2)]
    assert more == [("k", (1, 2, 3, 4), 0, 4), ("k", (3, 4, 5, 6), 2, 6)]
    assert window.state(tuple, kept) == (5, 6)
    assert Count(4, 4, folded=True).state(sum, kept[:4]) is None


def test_global_windows_fire_once_for_new_values() -> None:
    by_number, by_clock, by_watermark = Global(2), Global("clock"), Global("watermark")
    due, passed = Moment(0, 3, is_due=True), Moment(0, 4, is_due=False)

    rows, kept = by_number.close(tuple, [], values("k", 3, 1), EARLY)
    assert rows == [("k", (3, 1), None, None)]
    assert by_number.close(tuple, kept, values("k", 2), EARLY)[0] == []
    assert by_clock.close(tuple, kept, [], due)[0] == []
    assert by_clock.close(tuple, kept, values("k", 2), due)[0] == [("k", (3, 1, 2), None, None)]
    assert by_watermark.close(tuple, [], values("k", 3), due)[0] == []
    assert by_watermark.close(tuple, [], values("k", 3), passed)[0] == [("k", (3,), None, None)]


def test_values_meet_within_a_distance_and_are_alone_when_it_has_passed() -> None:
    join = Join(LEFT, size=2, slide=None, outer=True, pane=1)
    one, far = Value("k", "a", 5, LEFT), Value("k", "b", 9, LEFT)
    rows, kept = join.close(tuple, [], [one, far], EARLY)
    assert rows == []

    rows, kept = join.close(tuple, kept, [Value("k", "c", 7, RIGHT)], Moment(0, 11, is_due=False))
    assert rows == [("k", "a", "c", at(7)), ("k", "b", "c", at(9))]
    rows, kept = join.close(tuple, kept, [Value("k", "d", 20, LEFT)], Moment(11, END, is_due=False))
    assert rows == [("k", "d", None, at(20))]
    assert kept == []


def test_values_meet_only_in_a_window_that_was_open() -> None:
    join = Join(LEFT, size=4, slide=2, outer=False, pane=2)
    one, other = Value("k", "a", 3, LEFT), Value("k", "b", 5, RIGHT, closed=5)

    assert join.close(tuple, [one], [other], EARLY)[0] == [("k", "a", "b", at(5))]
    assert join.close(tuple, [one], [Value("k", "b", 5, RIGHT, closed=6)], EARLY)[0] == []
    assert join.close(tuple, [one], [Value("k", "b", 6, RIGHT)], EARLY)[0] == []

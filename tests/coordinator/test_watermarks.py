"""The bookkeeping of event time: watermarks, limits, and what a restart makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.watermarks import Counted, Watermarks
from millstream.flow.time_origins import JobTiming
from millstream.flow.windows import (
    CountWindow,
    EveryTime,
    GlobalWindow,
    SessionWindow,
    TimeWindow,
    Window,
    Windowing,
)
from millstream.times import BEGINNING, END
from millstream.work.job_clock import JobClock, Tally
from tests.coordinator.timings import (
    AHEAD,
    FIRST,
    IDLE,
    IDS,
    LATENESS,
    LEFT,
    RIGHT,
    SECOND,
    SECOND_JOB,
    TUMBLING,
    Story,
    seen,
    tally,
    timing,
    tracked,
)

LATE = LATENESS / SECOND
PROCESSING = Windowing(TUMBLING.windows, processing_time=True)


def one() -> Story:
    return Story(timing(tracked(LEFT)))


def two(**options: Any) -> Story:
    return Story(timing(tracked(LEFT), tracked(RIGHT, **options)))


# -- the watermark -----------------------------------------------------------------------------


def test_the_watermark_follows_the_newest_event_time_of_earlier_epochs() -> None:
    story = one()

    assert story.watermark(0, seen(LEFT, 100)) is None
    assert story.watermark(1, seen(LEFT, 105)) == 100 - LATE
    assert story.watermark(2) == 105 - LATE


def test_windows_are_closed_up_to_the_watermark_of_the_epoch_before() -> None:
    story = one()
    clocks = [story.epoch(at, seen(LEFT, 100 + at)) for at in range(4)]

    assert clocks[0].closed == BEGINNING
    for before, after in pairwise(clocks):
        assert after.closed == before.watermark


def test_an_older_event_time_does_not_put_the_watermark_back() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.epoch(1, seen(LEFT, 60))

    assert story.watermark(2) == 100 - LATE


def test_the_slowest_origin_holds_the_watermark_back() -> None:
    story = two(lateness=0)
    story.epoch(0, seen(LEFT, 100), seen(RIGHT, 50))

    assert story.watermark(1, seen(LEFT, 110), seen(RIGHT, 99)) == 50
    assert story.watermark(2, seen(LEFT, 110), seen(RIGHT, 200)) == 99
    assert story.watermark(3) == 110 - LATE


def test_tallies_of_several_tasks_are_put_together() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 90), seen(LEFT, 100), seen(LEFT, 80))

    assert story.watermark(1) == 100 - LATE


def test_origins_that_are_not_tracked_change_nothing() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100), seen(7, 500))

    assert story.watermark(1) == 100 - LATE


def test_late_values_leave_the_newest_event_time_as_it_is() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.epoch(1, tally(LEFT, late=5))

    assert story.watermark(2) == 100 - LATE


# -- origins without data ----------------------------------------------------------------------


def test_an_origin_that_never_had_data_holds_the_job_back_for_a_while() -> None:
    story = two()
    story.epoch(0, seen(LEFT, 100))

    assert story.watermark(29, seen(LEFT, 120)) is None
    assert story.watermark(30, seen(LEFT, 130)) is None
    assert story.watermark(31) == 130 - LATE


def test_without_data_no_watermark_advances() -> None:
    story = two()

    assert [story.watermark(at) for at in (0, 100, 200)] == [None, None, None]
    story.epoch(300, seen(LEFT, 5))
    assert story.watermark(301) is None  # the other one has only now been waited for


def test_an_idle_origin_does_not_hold_others_back() -> None:
    story = two()
    story.epoch(0, seen(LEFT, 100), seen(RIGHT, 50))
    story.epoch(15, seen(LEFT, 115))

    assert story.watermark(29, seen(LEFT, 129)) == 50 - LATE
    assert story.watermark(30, seen(LEFT, 130)) == 50 - LATE
    assert story.watermark(31) == 130 - LATE


def test_a_slow_epoch_does_not_make_origins_idle() -> None:
    story = two()
    story.epoch(0, seen(LEFT, 100), seen(RIGHT, 50))
    assert story.watermark(45, seen(LEFT, 145), seen(RIGHT, 95)) == 50 - LATE
    assert story.watermark(90, seen(LEFT, 190)) == 95 - LATE  # nothing of the right one so far
    assert story.watermark(91) == 190 - LATE


def test_a_slow_epoch_is_no_silence_before_the_first_value_either() -> None:
    story = two()
    story.epoch(0, seen(LEFT, 100))

    assert story.watermark(45, seen(RIGHT, 70)) is None
    assert story.watermark(46) == 70 - LATE


def test_an_origin_that_wakes_up_counts_again_but_puts_nothing_back() -> None:
    story = two()
    story.epoch(0, seen(LEFT, 100), seen(RIGHT, 50))
    story.epoch(40, seen(LEFT, 140))
    assert story.watermark(41, seen(LEFT, 141), seen(RIGHT, 60)) == 140 - LATE

    assert story.watermark(42, seen(LEFT, 300), seen(RIGHT, 200)) == 140 - LATE
    assert story.watermark(43) == 200 - LATE


def test_when_all_origins_are_idle_the_watermark_advances_with_the_clock() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))

    assert story.watermark(30) == 100 - LATE
    assert story.watermark(31) == 131 - LATE
    assert story.watermark(77) == 177 - LATE


def test_when_all_are_idle_the_furthest_origin_advances() -> None:
    story = two(lateness=0)
    story.epoch(0, seen(LEFT, 1000), seen(RIGHT, 50))
    story.epoch(5, seen(RIGHT, 60))

    story.epoch(31, seen(RIGHT, 60))
    assert story.watermark(32, seen(RIGHT, 61)) == 60  # the left one is idle, the right not
    story.epoch(99)
    assert story.watermark(100) == 1000 - LATE + 100


def test_late_values_are_a_sign_of_life() -> None:
    """A stream that comes back with old values must not find the clock running away from it."""
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.epoch(59)
    assert story.watermark(60, tally(LEFT, late=3)) == 160 - LATE
    assert story.watermark(80, tally(LEFT, late=3)) == 160 - LATE
    assert story.watermark(100, seen(LEFT, 165)) == 160 - LATE
    assert story.watermark(101) == 165 - LATE


def test_the_clock_does_not_move_a_job_whose_other_origin_may_still_begin() -> None:
    story = two(idle=3600 * SECOND)
    story.epoch(0, seen(LEFT, 100))

    assert story.watermark(60) is None


# -- inherited ---------------------------------------------------------------------------------


def chain(*origins: Any) -> Story:
    return Story(
        timing(tracked(LEFT)),
        timing(*origins, job=SECOND_JOB, inherited=(FIRST,)),
    )


def test_a_watermark_is_inherited_in_the_same_epoch() -> None:
    story = chain()
    story.epoch(0, seen(LEFT, 100))
    clock = story.epoch(1)

    assert story.record.clocks[SECOND_JOB].watermark == clock.watermark == 98 * SECOND


def test_inherited_watermarks_count_among_the_origins() -> None:
    story = chain(tracked(RIGHT, lateness=0))
    other = {SECOND_JOB: Counted((seen(RIGHT, 60),))}
    story.epoch(0, seen(LEFT, 100), others=other)
    story.epoch(1, seen(LEFT, 100), others={SECOND_JOB: Counted((seen(RIGHT, 500),))})
    assert story.record.clocks[SECOND_JOB].watermark == 60 * SECOND
    story.epoch(2)

    assert story.record.clocks[SECOND_JOB].watermark == 98 * SECOND
    story.epoch(101)
    story.epoch(102)  # both are silent: what is inherited goes on with the clock
    assert story.record.clocks[SECOND_JOB].watermark == (100 + 101 - 2) * SECOND


def test_an_idle_origin_does_not_hold_back_inherited_watermarks() -> None:
    story = chain(tracked(RIGHT, lateness=0))
    story.epoch(0, seen(LEFT, 100), others={SECOND_JOB: Counted((seen(RIGHT, 60),))})
    for at in range(10, 200, 10):
        story.epoch(at, seen(LEFT, 100 + 10 * at))

    assert story.record.clocks[SECOND_JOB].watermark == (100 + 10 * 180 - 2) * SECOND


def test_an_inherited_watermark_that_has_not_begun_holds_back_even_idle_jobs() -> None:
    story = chain(tracked(RIGHT))
    story.epoch(0, others={SECOND_JOB: Counted((seen(RIGHT, 60),))})
    story.epoch(1000)

    assert story.record.clocks[SECOND_JOB].watermark == BEGINNING


def test_an_advance_leaves_time_for_results_that_are_older_than_it() -> None:
    late = timing(job=SECOND_JOB, inherited=(FIRST,), delays={FIRST: 30 * SECOND})
    third = timing(job=9, inherited=(SECOND_JOB,), delays={SECOND_JOB: 5 * SECOND})
    story = Story(timing(tracked(LEFT)), late, third)
    story.epoch(0, seen(LEFT, 100))
    story.epoch(1, asked=150 * SECOND)
    marks = [story.record.clocks[job].watermark for job in (FIRST, SECOND_JOB, 9)]
    assert marks == [150 * SECOND, 120 * SECOND, 115 * SECOND]

    story.epoch(2, asked=END)
    assert {clock.watermark for clock in story.record.clocks.values()} == {END}


def test_after_the_end_a_job_rests_where_older_results_still_count() -> None:
    late = timing(job=SECOND_JOB, inherited=(FIRST,), delays={FIRST: 3600 * SECOND})
    story = Story(timing(tracked(LEFT)), late)
    story.epoch(0, seen(LEFT, 36_300))
    story.epoch(1, asked=END)

    first, second = (story.clocks.jobs[job].watermark for job in (FIRST, SECOND_JOB))
    assert second == TUMBLING.last_end(first - 3600 * SECOND - 1) < first


def test_after_the_end_a_job_without_windows_still_takes_values_within_the_lateness() -> None:
    story = Story(timing(tracked(LEFT, lateness=10 * SECOND), windowing=None))
    story.epoch(0, seen(LEFT, 100))
    assert story.watermark(1, seen(LEFT, 105)) == 90
    assert story.epoch(2, asked=END).watermark == END
    story.restart()

    assert story.epoch(3, seen(LEFT, 101)) == JobClock(
        95 * SECOND, 95 * SECOND, {LEFT: 3 * SECOND + AHEAD}, timed=True
    )


def test_after_the_end_a_job_without_windows_waits_for_the_slower_origin() -> None:
    origins = (tracked(LEFT, lateness=10 * SECOND), tracked(RIGHT, lateness=0))
    story = Story(timing(*origins, windowing=None))
    story.epoch(0, seen(LEFT, 105), seen(RIGHT, 70))
    story.epoch(1, asked=END)

    assert story.epoch(2).closed == 70 * SECOND


def test_after_the_end_a_job_without_windows_rests_with_the_windows_upstream() -> None:
    timers = timing(job=SECOND_JOB, windowing=None, inherited=(FIRST,), delays={FIRST: SECOND})
    story = Story(timing(tracked(LEFT)), timers)
    story.epoch(0, seen(LEFT, 101))
    story.epoch(1, asked=END)

    first, second = (story.clocks.jobs[job].watermark for job in (FIRST, SECOND_JOB))
    assert (first, second) == (110 * SECOND, 109 * SECOND)


def test_a_watermark_is_delayed_by_results_older_than_the_upstream_watermark() -> None:
    late = timing(job=SECOND_JOB, inherited=(FIRST,), delays={FIRST: 30 * SECOND})
    story = Story(timing(tracked(LEFT)), late)
    story.epoch(0, seen(LEFT, 100))
    assert story.record.clocks[SECOND_JOB].watermark == BEGINNING
    story.epoch(1)

    assert story.record.clocks[SECOND_JOB].watermark == 68 * SECOND


# -- processing time ---------------------------------------------------------------------------


def test_processing_time_is_the_time_of_the_records() -> None:
    story = Story(timing(tracked(LEFT), windowing=PROCESSING))

    assert story.epoch(5) == JobClock(BEGINNING, 5 * SECOND)
    assert story.epoch(9, seen(LEFT, 700)) == JobClock(5 * SECOND, 9 * SECOND)


def test_a_clock_that_is_set_back_does_not_move_time_back() -> None:
    story = Story(timing(windowing=PROCESSING))
    story.epoch(9)

    assert story.epoch(3) == JobClock(9 * SECOND, 9 * SECOND)
    story.restart()
    assert story.epoch(4) == JobClock(9 * SECOND, 9 * SECOND)


# -- too far ahead -----------------------------------------------------------------------------


def test_the_clock_of_the_epoch_sets_the_limit() -> None:
    story = one()
    assert story.epoch(7).limits == {LEFT: 7 * SECOND + AHEAD}
    story.epoch(10, seen(LEFT, 100))
    assert story.epoch(13).limits == {LEFT: 13 * SECOND + AHEAD}
    story.epoch(14, tally(LEFT, late=1))

    assert story.epoch(20).limits == {LEFT: 20 * SECOND + AHEAD}


def test_events_of_the_past_are_never_ahead_however_far_apart_they_are() -> None:
    week, now = 7 * 86_400, 60 * 86_400
    story = one()
    for n in range(5):
        clock = story.epoch(now + n, seen(LEFT, n * week))
        assert clock.limits[LEFT] >= 5 * week * SECOND


def test_a_time_at_the_limit_does_not_raise_the_limit_of_the_next_epoch() -> None:
    story = one()
    for at in range(4):
        clock = story.epoch(at, seen(LEFT, at + AHEAD // SECOND))
        assert clock.limits == {LEFT: at * SECOND + AHEAD}


def test_an_origin_that_is_ahead_in_two_epochs_is_accepted_in_the_next() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.epoch(1, tally(LEFT, ahead=3))
    assert story.epoch(2).limits[LEFT] < END  # an epoch without values says nothing
    story.epoch(3, tally(LEFT, ahead=1))
    assert story.epoch(4, seen(LEFT, 9000)).limits == {LEFT: END}

    # From then on it has a time of its own, until the clock has caught up with it.
    assert story.epoch(5).limits == {LEFT: 9001 * SECOND + AHEAD}
    assert story.epoch(8500).limits == {LEFT: 8500 * SECOND + AHEAD}


@pytest.mark.parametrize(
    "between", [seen(LEFT, 101), tally(LEFT, late=1), tally(LEFT, late=1, ahead=1)]
)
def test_an_origin_with_other_values_between_has_not_moved_on(between: Tally) -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.epoch(1, tally(LEFT, ahead=3))
    story.epoch(2, between)
    story.epoch(3, tally(LEFT, ahead=3))

    assert story.epoch(4).limits[LEFT] < END


def test_values_ahead_beside_others_do_not_move_an_origin() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    for at in range(1, 5):
        story.epoch(at, seen(LEFT, 100 + at, ahead=50))

    assert story.epoch(5).limits[LEFT] < END


def test_values_without_time_do_not_advance_the_watermark() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.epoch(20, tally(LEFT, untimed=9))

    story.epoch(30)
    assert story.watermark(31) == 131 - LATE  # still silent


# -- on demand ---------------------------------------------------------------------------------


def test_an_advance_holds_for_all_jobs_and_from_then_on() -> None:
    story = chain(tracked(RIGHT))
    story.epoch(0, seen(LEFT, 100))
    clock = story.epoch(1, asked=150 * SECOND)

    assert clock.watermark == story.record.clocks[SECOND_JOB].watermark == 150 * SECOND
    assert clock.closed == BEGINNING
    assert story.watermark(2, seen(LEFT, 120)) == 150
    assert story.watermark(3, seen(LEFT, 190)) == 150
    assert story.watermark(4) == 190 - LATE


def test_an_advance_behind_the_watermark_changes_nothing() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))

    assert story.watermark(1, asked=5 * SECOND) == 100 - LATE


def test_processing_time_windows_reopen_after_the_end() -> None:
    story = Story(timing(windowing=PROCESSING))
    story.epoch(5)

    assert story.epoch(9, asked=END) == JobClock(5 * SECOND, END)
    assert story.epoch(12) == JobClock(9 * SECOND, 12 * SECOND)


# -- restarts ----------------------------------------------------------------------------------


def test_time_between_incarnations_does_not_make_origins_idle() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.restart()

    assert story.watermark(10_000) == 100 - LATE
    assert story.watermark(10_030) == 100 - LATE
    assert story.watermark(10_031) == 131 - LATE


def test_after_a_restart_an_origin_without_data_is_waited_for_again() -> None:
    story = two()
    story.epoch(0, seen(LEFT, 100))
    story.restart()

    assert [story.watermark(at) for at in (3600, 3629, 3630)] == [None, None, None]
    assert story.watermark(3631, seen(LEFT, 110)) is not None


def test_values_after_a_long_pause_are_not_too_far_ahead() -> None:
    story = one()
    story.epoch(0, seen(LEFT, 100))
    story.restart()

    assert story.epoch(10_000).limits == {LEFT: 10_000 * SECOND + AHEAD}


def test_a_manifest_without_clocks_starts_from_the_beginning() -> None:
    timings = (timing(tracked(LEFT)),)

    assert Watermarks.from_manifest(timings, {}, IDS) == Watermarks(timings)


def test_time_does_not_go_back_after_a_restart_also_without_windows() -> None:
    record = replace(Story().record, time=7 * SECOND)
    stored = json.loads(json.dumps(Watermarks().commit(record, {}).to_manifest({})))

    assert Watermarks.from_manifest((), stored, {}).moment(2 * SECOND) == 7 * SECOND


def test_clocks_survive_other_job_positions_and_drop_removed_jobs() -> None:
    story = Story(timing(tracked(LEFT), tracked(RIGHT), inherited=()))
    story.epoch(0, seen(LEFT, 100), seen(RIGHT, 200))
    story.epoch(1)
    stored = json.loads(json.dumps(story.clocks.to_manifest(IDS)))
    moved = JobTiming(9, TUMBLING, (tracked(RIGHT),))
    fresh = JobTiming(11, TUMBLING, (tracked(RIGHT),))

    found = Watermarks.from_manifest((moved, fresh), stored, {9: IDS[FIRST], 11: "new@2"})

    assert found.jobs[9].watermark == 98 * SECOND
    assert found.jobs[9].origins == {RIGHT: story.clocks.jobs[FIRST].origins[RIGHT]}
    assert 11 not in found.jobs


def test_a_job_as_an_origin_is_known_by_its_id() -> None:
    plain = tracked(4, is_job=True)
    story = Story(timing(plain))
    story.epoch(0, seen(4, 100))
    stored = story.clocks.to_manifest({**IDS, 4: "plain@1"})
    renamed = JobTiming(FIRST, TUMBLING, (tracked(6, is_job=True),))

    found = Watermarks.from_manifest((renamed,), stored, {**IDS, 6: "plain@1"})

    assert found.jobs[FIRST].origins[6].newest == 100 * SECOND


# -- early results -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "windowing",
    [
        Windowing(TUMBLING.windows, early=5 * SECOND),
        Windowing((GlobalWindow(EveryTime(5 * SECOND)),)),
    ],
)
def test_early_results_are_due_every_so_often(windowing: Windowing) -> None:
    story = Story(timing(tracked(LEFT), windowing=windowing))
    early = [at for at in (0, 3, 5, 7, 9, 11, 15) if story.epoch(at).early]
    story.restart()

    assert early == [5, 11]
    assert [at for at in (15, 16, 17) if story.epoch(at).early] == [16]


def test_jobs_without_early_results_have_none_due() -> None:
    story = one()

    assert not any(story.epoch(at).early for at in range(0, 1000, 100))


# -- folding -----------------------------------------------------------------------------------

SLIDING = Windowing((TimeWindow(60 * SECOND, 10 * SECOND),))
"""Six panes; two windows have 50 seconds in common: panes pay from 0.12 values a second on."""


def folding(rows: int, keys: int, story: Story | None = None, epochs: int = 40) -> Story:
    """Epochs of ten seconds of event time with so many values and keys each."""
    story = story or Story(timing(tracked(LEFT), windowing=SLIDING, foldable=True))
    for _ in range(epochs):
        at = story.number * 10
        story.epoch(at, seen(LEFT, at, rows=rows), keys=keys)
    return story


def folds_now(story: Story) -> bool:
    return story.epoch(story.number * 10).folding


def test_values_are_folded_until_rates_are_known() -> None:
    assert [folding(1, 1, epochs=n).epoch(99).folding for n in range(4)] == [True] * 4


@pytest.mark.parametrize(("rows", "keys", "folded"), [(30, 10, True), (5, 10, False)])
def test_panes_pay_when_windows_share_more_values_than_they_have_panes(
    rows: int, keys: int, folded: bool
) -> None:
    assert folds_now(folding(rows, keys)) is folded


def test_decisions_change_with_the_rate_and_not_with_its_noise() -> None:
    story = folding(5, 10)
    assert not folds_now(story)
    assert not folds_now(folding(13, 10, story))  # would pay, by little
    assert folds_now(folding(40, 10, story))
    assert folds_now(folding(11, 10, story))  # would not pay, by little
    assert not folds_now(folding(2, 10, story))


@pytest.mark.parametrize(
    ("options", "folded"),
    [
        ({"windowing": TUMBLING, "foldable": True}, True),
        ({"windowing": Windowing(SLIDING.windows, panes=True), "foldable": True}, True),
        ({"windowing": Windowing(SLIDING.windows, panes=False), "foldable": True}, False),
        ({"windowing": SLIDING, "foldable": False}, True),
    ],
)
def test_jobs_without_measured_rates_do_not_change(options: dict[str, Any], folded: bool) -> None:
    story = folding(1, 10, Story(timing(tracked(LEFT), **options)))

    assert folds_now(story) is folded


# -- whatever happens --------------------------------------------------------------------------

MOMENTS = st.integers(0, 40 * SECOND)
EVENTS = st.integers(0, 500 * SECOND)
COUNTS = st.builds(
    lambda origin, latest, rows, late, ahead, untimed: Tally(
        origin, rows, latest if rows else BEGINNING, late, ahead, untimed
    ),
    st.sampled_from([LEFT, RIGHT]),
    EVENTS,
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
)
EPOCHS = st.lists(
    st.tuples(
        MOMENTS,
        st.lists(COUNTS, max_size=3),
        st.lists(COUNTS, max_size=2),
        st.one_of(st.just(BEGINNING), EVENTS),
        st.integers(0, 9),
    ),
    max_size=15,
)
FLOW = (
    timing(
        tracked(LEFT),
        tracked(RIGHT, idle=5 * SECOND),
        windowing=Windowing(SLIDING.windows, early=20 * SECOND),
        foldable=True,
    ),
    timing(tracked(RIGHT, lateness=0), job=SECOND_JOB, inherited=(FIRST,)),
)


def clocks_of(
    epochs: list[Any], clocks: Watermarks, start: int = 0
) -> tuple[list[Any], list[Watermarks]]:
    """The clocks of each epoch, and the states after them."""
    story = Story(clocks=clocks)
    time, found, states = start, [], []
    for wait, first, second, asked, keys in epochs:
        time += wait
        story.epoch(
            time / SECOND,
            *first,
            keys=keys,
            asked=asked,
            others={SECOND_JOB: Counted(tuple(second), keys)},
        )
        found.append(story.record.clocks)
        states.append(story.clocks)
    return found, states


@given(EPOCHS)
def test_watermarks_never_go_back(epochs: list[Any]) -> None:
    found, _ = clocks_of(epochs, Watermarks(FLOW))

    for job in (FIRST, SECOND_JOB):
        marks = [BEGINNING, *(clocks[job].watermark for clocks in found)]
        assert marks == sorted(marks)
        assert [clocks[job].closed for clocks in found] == marks[:-1]


@given(EPOCHS, st.data())
def test_epochs_that_run_again_from_a_note_have_the_same_clocks(
    epochs: list[Any], data: st.DataObject
) -> None:
    found, states = clocks_of(epochs, Watermarks(FLOW))
    if not epochs:
        return
    at = data.draw(st.integers(0, len(epochs) - 1))
    stored = json.loads(json.dumps(states[at].to_manifest(IDS)))
    start = sum(wait for wait, *_ in epochs[: at + 1])

    again, ends = clocks_of(epochs[at + 1 :], Watermarks.from_manifest(FLOW, stored, IDS), start)

    assert again == found[at + 1 :]
    assert ends[-1:] == (states[-1:] if at + 1 < len(epochs) else [])


@given(EPOCHS)
def test_no_watermark_overtakes_an_active_origin_unless_requested(epochs: list[Any]) -> None:
    """Beyond what was reached before, an origin with values a moment ago bounds the watermark."""
    plain = [(wait, first, second, BEGINNING, keys) for wait, first, second, _, keys in epochs]
    found, states = clocks_of(plain, Watermarks(FLOW))
    time = 0
    for number, (wait, *_) in enumerate(plain):
        time += wait
        if number == 0:
            continue
        before = states[number - 1].jobs[FIRST]
        for origin in FLOW[0].tracked:
            known = before.origins[origin.at]
            if known.newest is not None and states[number - 1].time - known.alive < origin.idle:
                bound = max(found[number - 1][FIRST].watermark, known.newest - origin.lateness)
                assert found[number][FIRST].watermark <= bound


@given(EPOCHS)
def test_a_silent_stream_closes_its_windows(epochs: list[Any]) -> None:
    _, states = clocks_of(epochs, Watermarks((FLOW[0],)))
    if not states or states[-1].jobs[FIRST].newest is None:
        return
    last = states[-1]
    newest = last.jobs[FIRST].newest
    assert newest is not None

    story = Story(clocks=last)
    story.epoch(last.time / SECOND + IDLE / SECOND)
    clock = story.clocks.at(last.time + IDLE + newest + LATENESS, 1)[FIRST]

    assert clock.watermark >= newest


@pytest.mark.parametrize(
    ("window", "last"),
    [
        (TimeWindow(10, 10), 30),
        (TimeWindow(10, 4), 34),
        (SessionWindow(7), 32),
        (CountWindow(3, 3), 25),
    ],
    ids=str,
)
def test_windows_are_over_after_the_last_that_a_value_can_be_in(window: Window, last: int) -> None:
    assert Windowing((window,)).last_end(25) == last

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.state.timers import KeyEntries, Timer
from millstream.times import END, EPOCH
from millstream.work import timer_operator
from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError, UserFunctionError
from millstream.work.timer_operator import TimerLoopError

from .running import ALL, SLOTS, Running, job_of
from .timed_running import TimedRunning, timed_blocks, timed_job


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def after(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def fired(key: str, timer: Timer, state: Any) -> Iterator[Any]:
    yield key, timer.name, (timer.at - EPOCH).total_seconds()


def commands(key: str, values: list[Any], state: Any) -> None:
    """Do what values say: set and cancel timers."""
    for value in values:
        match value:
            case ("after", name, seconds):
                state.timers.set(name, after=after(seconds))
            case ("at", name, seconds):
                state.timers.set(name, at=at(seconds))
            case ("event", name, seconds):
                state.timers.set(name, at=at(seconds), time="event")
            case ("cancel", name):
                state.timers.cancel(name)
            case ("write", name):
                state[name] = 1
            case ("clear",):
                state.clear()


def running(on_timer: Any = fired, reduce: Any = commands, **options: Any) -> TimedRunning:
    return TimedRunning(timed_job(reduce, on_timer, **options))


def test_a_timer_fires_in_the_first_epoch_that_has_reached_its_time_and_once() -> None:
    run = running()

    run.epoch([("a", ("after", "idle", 5))], time=10)

    assert run.epoch([], time=14) == []
    assert run.epoch([], time=15) == [("a", "idle", 15.0)]
    assert run.epoch([], time=16) == []
    assert run.state() == {}


def test_timers_fire_by_time_then_key_then_name() -> None:
    run = running()
    keys = [f"k{n}" for n in range(40)]
    # As blocks are ordered.
    in_order = [out[0] for out in run.epoch([(key, ("at", "x", 0)) for key in keys], time=1)]
    assert sorted(in_order) == sorted(keys)

    sets = [
        (key, ("at", name, when)) for key in keys for name in "ba" for when in [3 - (name == "b")]
    ]
    run.epoch([*sets, ("k7", ("at", "c", 3))], time=1)

    expected = [(key, "b", 2.0) for key in in_order]
    for key in in_order:
        expected += [(key, "a", 3.0), *([(key, "c", 3.0)] if key == "k7" else [])]
    assert run.epoch([], time=9) == expected


def test_values_are_reduced_before_timers_fire() -> None:
    run = running()
    run.epoch([("a", ("at", "x", 5)), ("b", ("at", "x", 5))], time=1)

    assert run.epoch([("a", ("cancel", "x")), ("b", ("at", "x", 7))], time=6) == []
    assert run.epoch([], time=7) == [("b", "x", 7.0)]


def test_setting_a_timer_again_replaces_it_and_cancelling_is_idempotent() -> None:
    run = running()
    run.epoch([("a", ("after", "x", 5))], time=0)
    run.epoch([("a", ("after", "x", 5)), ("b", ("cancel", "x"))], time=3)

    assert run.epoch([], time=5) == []
    assert run.epoch([], time=8) == [("a", "x", 8.0)]


def test_a_timer_for_a_time_already_reached_fires_in_the_same_epoch() -> None:
    run = running()

    assert run.epoch([("a", ("at", "x", 3)), ("a", ("after", "y", 0))], time=4) == [
        ("a", "x", 3.0),
        ("a", "y", 4.0),
    ]


def test_a_timer_that_on_timer_sets_for_a_time_already_reached_fires_in_its_place() -> None:
    def again(key: str, timer: Timer, state: Any) -> Iterator[Any]:
        yield key, timer.name, (timer.at - EPOCH).total_seconds()
        if timer.name == "every" and timer.at < at(6):
            state.timers.set("every", at=timer.at + after(2))

    run = running(again)
    run.epoch([("a", ("at", "every", 2)), ("a", ("at", "once", 5))], time=1)

    assert run.epoch([], time=60) == [
        ("a", "every", 2.0),
        ("a", "every", 4.0),
        ("a", "once", 5.0),
        ("a", "every", 6.0),
    ]


def test_timers_that_set_each_other_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(key: str, timer: Timer, state: Any) -> None:
        state.timers.set("loop", after=after(0))

    monkeypatch.setattr(timer_operator, "MOST_IN_AN_EPOCH", 50)
    run = running(forever)

    with pytest.raises(TimerLoopError) as raised:
        run.epoch([("a", ("at", "x", 0))], time=1)

    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.job, error.key, error.timer) == ("job", "'a' (str)", "loop")
    assert "test_timers.py" in str(error) and "forever" in str(error)


def test_on_timer_reads_and_writes_the_state_of_its_key() -> None:
    def count(key: str, timer: Timer, state: Any) -> Iterator[Any]:
        state["fired"] = state.get("fired", 0) + 1
        state.setdefault("names", []).append(timer.name)
        yield key, state["fired"], list(state)

    run = running(count)
    run.epoch([("a", ("write", "n")), ("a", ("at", "x", 5)), ("a", ("at", "y", 6))], time=1)
    out = run.epoch([], time=6)

    assert out == [("a", 1, ["n", "fired", "names"]), ("a", 2, ["n", "fired", "names"])]
    assert run.state() == {"a": {"n": 1, "fired": 2, "names": ["x", "y"]}}


def test_timers_are_not_among_the_entries_of_state() -> None:
    def reduce(key: str, values: list[Any], state: Any) -> Iterator[Any]:
        yield len(state), list(state), state == {}, dict(state), state.timers.get("x")
        state.timers.set("x", at=at(50))

    run = running(reduce=reduce)

    assert run.epoch([("a", 1)], time=1) == [(0, [], True, {}, None)]
    assert run.epoch([("a", 1)], time=2) == [(0, [], True, {}, at(50))]
    assert run.state() == {"a": {}}


def test_a_key_with_only_a_timer_is_a_key_and_its_timers_are_read_beside_its_entries() -> None:
    run = running()
    run.epoch([("a", ("after", "x", 9)), ("b", ("write", "n")), ("b", ("event", "y", 3))][:1], 1)

    found = run.state()["a"]
    copied = pickle.loads(pickle.dumps(found))

    assert found == {} and copied == found
    assert copied.timers == [Timer("x", at(10), "processing")]
    assert found != KeyEntries({}, [])
    assert run.operator.state.count(ALL) == 1


def test_clearing_the_state_of_a_key_cancels_no_timer() -> None:
    run = running()
    run.epoch([("a", ("write", "n")), ("a", ("after", "x", 5))], time=1)
    run.epoch([("a", ("clear",))], time=2)

    assert run.state() == {"a": {}}
    assert run.epoch([], time=6) == [("a", "x", 6.0)]


def test_reads_list_get_and_replace_within_an_epoch() -> None:
    seen: list[Any] = []

    def reduce(key: str, values: list[Any], state: Any) -> None:
        timers = state.timers
        timers.set("b", at=at(7))
        timers.set("a", at=at(7))
        timers.set("c", at=at(5))
        timers.set("c", at=at(8))
        timers.cancel("a")
        timers.cancel("a")
        seen.append((timers.list(), timers.get("c"), timers.get("a"), timers.get("z")))

    running(reduce=reduce).epoch([("k", 1)], time=0)

    assert seen == [([Timer("b", at(7)), Timer("c", at(8))], at(8), None, None)]


def test_event_timers_fire_with_the_watermark() -> None:
    run = running()
    run.epoch([("a", ("event", "x", 30), at(20))], time=100)

    assert run.epoch([], time=500, watermark=29) == []
    assert run.epoch([], time=501, watermark=30) == [("a", "x", 30.0)]


def test_after_in_event_time_counts_from_the_newest_value_or_the_watermark() -> None:
    def reduce(key: str, values: list[Any], state: Any) -> Iterator[Any]:
        state.timers.set("x", after=after(10), time="event")
        yield state.timers.get("x", time="event")

    run = running(reduce=reduce)

    assert run.epoch([("a", 1, at(20)), ("a", 2, at(25)), ("a", 3, at(5))], time=1) == [at(35)]
    assert run.epoch([("a", 1, at(20))], time=1, watermark=24) == [at(34)]


def test_an_event_timer_without_event_time_says_how_to_declare_it() -> None:
    run = running()

    with pytest.raises(UserFunctionError, match=r"time= beside on_timer=") as raised:
        run.epoch([("a", ("event", "x", 30))], time=1)

    assert raised.value.place is not None and raised.value.place.file == __file__


def test_timers_of_both_clocks_have_names_of_their_own() -> None:
    run = running()
    run.epoch([("a", ("event", "x", 30), at(1)), ("a", ("after", "x", 5), at(1))], time=1)

    assert run.epoch([], time=6, watermark=30) == [("a", "x", 6.0), ("a", "x", 30.0)]


def test_the_end_of_the_stream_fires_event_timers_but_not_those_that_they_set() -> None:
    def again(key: str, timer: Timer, state: Any) -> Iterator[Any]:
        yield key, (timer.at - EPOCH).total_seconds()
        state.timers.set("x", at=timer.at + after(10), time="event")

    run = running(again)
    run.epoch([("a", ("event", "x", 30), at(1))], time=1)

    assert run.epoch([], time=2, watermark=END) == [("a", 30.0)]


def test_a_key_that_expires_loses_its_timers_but_one_that_is_due_fires_first() -> None:
    run = running(ttl=timedelta(seconds=10))
    run.epoch([("a", ("after", "x", 60)), ("b", ("after", "x", 12))], time=0)

    assert run.epoch([], time=20) == [("b", "x", 12.0)]
    assert run.state() == {}
    assert run.epoch([], time=99) == []


def test_a_reduction_that_is_repeated_gives_the_same_and_changes_nothing() -> None:
    run = running()
    run.epoch([(f"k{n}", ("after", "x", n % 7)) for n in range(100)], time=0)

    first, second = run.reduce([], time=5), run.reduce([], time=5)

    assert first.outputs == second.outputs
    encode = run.operator.state.encode
    assert encode(first.fragment) == encode(second.fragment)


def test_a_snapshot_fires_as_the_state_does_that_it_is_of() -> None:
    run, copy = running(), running()
    run.epoch([(f"k{n}", ("after", "x", n % 7 + 1)) for n in range(100)], time=0)
    run.epoch([("k3", ("cancel", "x"))], time=0)
    state = run.operator.state
    copy.operator.state.apply(state.decode(state.encode(state.snapshot(range(SLOTS)))))

    assert copy.epoch([], time=5) == run.epoch([], time=5)
    assert copy.state() == run.state()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither at= nor after="),
        ({"at": at(1), "after": after(1)}, "both at= and after="),
        ({"after": after(-1)}, "0 or more"),
        ({"after": 5}, "0 or more"),
        ({"after": timedelta.max}, "years 1 and 9999"),
        ({"at": datetime(2026, 1, 1)}, "with a time zone"),
        ({"at": 5}, "with a time zone"),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))}, "years 1 and 9999"),
        ({"after": after(1), "time": "wall"}, "'processing' or 'event'"),
    ],
)
def test_a_wrong_time_is_an_error_at_the_users_line(arguments: Any, message: str) -> None:
    def reduce(key: str, values: list[Any], state: Any) -> None:
        state.timers.set("x", **arguments)

    with pytest.raises(UserFunctionError, match=message) as raised:
        running(reduce=reduce).epoch([("a", 1)], time=1)

    assert raised.value.place is not None and raised.value.place.file == __file__


@pytest.mark.parametrize("name", ["", 5, None, ("a",)])
def test_a_name_that_is_no_text_is_an_error(name: Any) -> None:
    def reduce(key: str, values: list[Any], state: Any) -> None:
        state.timers.cancel(name)

    with pytest.raises(UserFunctionError, match="non-empty string"):
        running(reduce=reduce).epoch([("a", 1)], time=1)


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=1))), 3600),
        (np.datetime64(3, "s"), None),
        (datetime(1960, 1, 1, tzinfo=UTC), -315619200),
        (datetime(9999, 12, 31, tzinfo=UTC), 253402214400),
    ],
)
def test_zones_and_distant_times_are_converted(moment: Any, seconds: float | None) -> None:
    def reduce(key: str, values: list[Any], state: Any) -> Iterator[Any]:
        state.timers.set("x", at=moment)
        yield state.timers.get("x")

    run = running(reduce=reduce, on_timer=lambda key, timer, state: None)
    if seconds is None:
        with pytest.raises(UserFunctionError, match="time zone"):
            run.epoch([("a", 1)], time=1)
    else:
        assert run.epoch([("a", 1)], time=1) == [at(seconds)]


def test_a_job_without_on_timer_has_no_timers() -> None:
    def reduce(key: str, values: list[Any], state: Any) -> None:
        state.timers.set("x", after=after(1))

    with pytest.raises(UserFunctionError, match="give it on_timer=") as raised:
        Running(job_of(reduce)).epoch([("a", 1)])

    assert raised.value.place is not None and raised.value.place.file == __file__


def test_an_error_in_on_timer_names_its_line_and_key() -> None:
    def broken(key: str, timer: Timer, state: Any) -> None:
        raise ValueError("no")

    run = running(broken)

    with pytest.raises(UserFunctionError, match="on_timer of job 'job'") as raised:
        run.epoch([("a", ("at", "x", 0))], time=1)

    assert raised.value.key == "'a' (str)"


def test_an_output_of_the_wrong_type_names_the_function_that_gave_it() -> None:
    def texts(key: str, timer: Timer, state: Any) -> Iterator[Any]:
        yield (key, "text")

    output = pa.schema([("key", pa.string()), ("n", pa.int64())])
    run = running(texts, output=output)

    with pytest.raises(RecordError, match=r"on_timer of job 'job', .*texts"):
        run.epoch([("a", ("at", "x", 0))], time=1)


def test_rows_keep_the_column_of_their_event_times() -> None:
    seen: list[Any] = []

    def reduce(key: str, rows: list[Any], state: Any) -> None:
        seen.extend((row.n, row.at) for row in rows)
        state.timers.set("x", after=after(5), time="event")

    job = timed_job(reduce, fired, key="user", time="at")
    run = TimedRunning(job)
    instants = pa.array([at(1), at(7)], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"user": ["a", "a"], "n": [1, 2], "at": instants})

    run.feed(timed_blocks(job, Chunk(batch=batch)), time=1)

    assert seen == [(1, at(1)), (2, at(7))]
    assert run.state()["a"].timers == [Timer("x", at(12), "event")]


def test_keys_with_one_hash_have_an_order_of_their_own() -> None:
    """Nulls leave the hash of a struct as it is: both keys have one hash."""
    keys = [("a", None), (None, "a")]

    def reduce(key: Any, values: list[int], state: Any) -> None:
        for name in ("y", "x"):
            state.timers.set(name, at=at(10))

    def on_timer(key: Any, timer: Timer, state: Any) -> Iterator[tuple[str, str]]:
        yield repr(key), timer.name

    found = []
    for order in (keys, keys[::-1]):
        run = running(on_timer, reduce)
        for time, key in enumerate(order):
            run.epoch([(key, 0)], time)
        found.append(run.epoch([], 20))

    assert found[0] == found[1] == [(repr(key), name) for key in keys for name in "xy"]


def test_timers_that_wait_while_a_key_is_cleared_are_not_set_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer_operator, "MOST_IN_AN_EPOCH", 3)

    def reduce(key: str, values: list[int], state: Any) -> None:
        for number in range(20):
            state.timers.set(f"t{number:02d}", at=at(10 + number))

    def on_timer(key: str, timer: Timer, state: Any) -> Iterator[tuple[str, str]]:
        state.clear()
        yield key, timer.name

    run = running(on_timer, reduce)
    run.epoch([("a", 1)], 1)

    assert run.epoch([], 100) == [("a", f"t{number:02d}") for number in range(20)]


def test_a_member_of_an_enumeration_names_the_timer_of_its_value() -> None:
    class Kind(str, Enum):  # noqa: UP042  (the text of a StrEnum is its value)
        IDLE = "idle"

    def reduce(key: str, values: list[int], state: Any) -> None:
        state.timers.set(Kind.IDLE, at=at(10))
        assert state.timers.get("idle") == at(10)

    def on_timer(key: str, timer: Timer, state: Any) -> Iterator[tuple[str, bool]]:
        yield key, timer.name == Kind.IDLE

    run = running(on_timer, reduce)
    run.epoch([("a", 1)], 1)

    assert run.epoch([], 20) == [("a", True)]

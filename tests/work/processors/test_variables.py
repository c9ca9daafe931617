"""State variables of Spark's processors over the entries of a key."""

from __future__ import annotations

import datetime
import math
import time
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from millstream.state.timers import TimedView, TimerClock
from millstream.work.processors.handle import TTL_TIMER, ProcessorHandle, TimeMode

SECOND = 1_000_000


class Key:
    """A handle, bound to one key epoch after epoch."""

    def __init__(self, mode: TimeMode = "none") -> None:
        self.handle = ProcessorHandle(mode)
        self.entries: dict[Any, Any] = {}

    def at(self, milliseconds: int, epoch: int = 0) -> Any:
        """Begin to work on the key."""
        self.handle.initialized()
        self.handle.scope.now, self.handle.scope.epoch = milliseconds, epoch
        clock = TimerClock(milliseconds * 1000)
        self.view = TimedView(self.entries, clock)
        self.handle.bind(self.view)
        return self

    def done(self) -> dict[Any, Any]:
        """Commit the changes of the key."""
        self.handle.release()
        change = self.view.close()
        if change is not None:
            merged = change.writes if change.cleared else {**self.entries, **change.writes}
            self.entries = {k: v for k, v in merged.items() if repr(v) != "GONE"}
        return {name: v for name, v in self.entries.items() if isinstance(name, str)}


def test_the_field_of_a_value_is_an_entry() -> None:
    key = Key()
    one = key.handle.getValueState("one", "n bigint")
    two = key.handle.getValueState("two", "n int, text string")

    key.at(0)
    assert one.get() is None and two.get() is None and not two.exists()
    one.update((1,))
    two.update((2, None))

    assert key.done() == {"one": 1, "two.n": 2, "two.text": None}
    key.at(1)
    assert one.get() == (1,) and two.get() == (2, None) and two.exists()
    one.clear()
    two.clear()
    assert key.done() == {}


def test_what_is_read_is_a_copy_that_is_not_written_back() -> None:
    key = Key()
    lists = key.handle.getValueState("lists", "l array<int>")
    key.at(0)
    lists.update(([1],))
    lists.get()[0].append(2)

    assert lists.get() == ([1],)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("x double", 1.5),
        ("x boolean", True),
        ("x binary", b"\0"),
        ("x date", datetime.date(2026, 1, 1)),
        ("x timestamp", datetime.datetime(2026, 1, 1)),
        ("x timestamp", datetime.datetime.min),
        ("x timestamp", datetime.datetime.max),
        ("x timestamp_ntz", datetime.datetime(2026, 1, 1)),
        ("x decimal(10,2)", Decimal("1.25")),
        ("x decimal(38,10)", Decimal("1234567890123456789012345678.0123456789")),
        ("x struct<a:int,b:array<string>>", (1, ["p", None])),
        ("x map<string,struct<a:int>>", {"k": (1,)}),
        ("x array<array<bigint>>", [[1], [], None]),
        ("`a b` string NOT NULL COMMENT 'c'", "text"),
    ],
)
def test_values_come_back_as_they_were(schema: str, value: Any) -> None:
    key = Key()
    state = key.handle.getValueState("state", schema)
    key.at(0)
    state.update((value,))
    key.done()
    key.at(1)

    assert state.get() == (value,)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("n int", (2**31,)),
        ("n bigint", ("1",)),
        ("n bigint", (1.0,)),
        ("n bigint", (True,)),
        ("s string", (b"s",)),
        ("n int", (1, 2)),
        ("n int", None),
        ("n int", "1"),
        ("l array<int>", (["a"],)),
        ("d decimal(3,2)", (Decimal("123.45"),)),
        ("d decimal(3,2)", (Decimal("9.995"),)),
        ("d decimal(3,2)", (Decimal("NaN"),)),
        ("d decimal(3,2)", (Decimal("Infinity"),)),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_with_the_name_of_the_state(
    schema: str, value: Any
) -> None:
    key = Key()
    state = key.handle.getValueState("state", schema)
    key.at(0)

    with pytest.raises(TypeError, match="value state 'state' was given"):
        state.update(value)


def test_scalars_of_numpy_are_converted() -> None:
    key = Key()
    state = key.handle.getValueState("state", "n bigint, x double, l array<bigint>")
    key.at(0)
    state.update((np.int64(1), np.float32(0.5), np.array([1, 2])))

    assert state.get() == (1, 0.5, [1, 2])


def test_a_list_is_appended_to_segment_by_segment() -> None:
    key = Key()
    items = key.handle.getListState("items", "n int")
    for number in range(130):
        key.at(number)
        items.appendValue((number,))
        stored = key.done()

    assert sorted(stored) == ["items", "items[0]", "items[1]", "items[2]"]
    key.at(200)
    assert list(items.get()) == [(number,) for number in range(130)]
    items.put([(1,)])
    assert sorted(key.done()) == ["items", "items[0]"]
    with pytest.raises(ValueError, match="empty list"):
        key.at(201).handle and items.put([])


def test_keys_of_a_map_are_entries_and_never_mistaken_for_one_another() -> None:
    key = Key()
    plain = key.handle.getMapState("plain", "k string", "n int")
    pairs = key.handle.getMapState("pairs", "k string, n int", "n int")
    key.at(0)
    for name in ("a", "a]", "", "None", "(", None):
        plain.updateValue((name,), (1,))
    pairs.updateValue(("a", 1), (2,))
    key.done()

    key.at(1)
    assert {name for (name,), _ in plain.iterator()} == {"a", "a]", "", "None", "(", None}
    assert plain.getValue((None,)) == (1,) and plain.getValue(("b",)) is None
    assert list(pairs.iterator()) == [(("a", 1), (2,))]
    plain.removeKey(("None",))
    assert plain.containsKey((None,)) and not plain.containsKey(("None",))
    plain.clear()
    assert not plain.exists() and pairs.exists()


def test_names_of_variables_do_not_collide() -> None:
    key = Key()
    states = [key.handle.getValueState(name, "b int, c int") for name in ("a", "a.b", "a[0]", "%")]
    key.at(0)
    for number, state in enumerate(states):
        state.update((number, number))

    assert [state.get() for state in states] == [(n, n) for n in range(4)]
    assert len(key.done()) == 8


def test_a_value_expires_exactly_when_its_time_is_reached() -> None:
    key = Key("processingtime")
    value = key.handle.getValueState("value", "n int", ttlDurationMs=10)
    items = key.handle.getListState("items", "n int", ttlDurationMs=10)
    pairs = key.handle.getMapState("pairs", "k int", "n int", ttlDurationMs=10)
    key.at(100)
    value.update((1,))
    items.appendValue((1,))
    pairs.updateValue((1,), (1,))
    key.done()
    key.at(105)
    items.appendValue((2,))
    pairs.updateValue((2,), (2,))
    key.done()

    key.at(109)
    assert value.get() == (1,) and len(list(items.get())) == 2 and len(list(pairs.keys())) == 2
    key.at(110)
    assert value.get() is None and not value.exists()
    assert list(items.get()) == [(2,)] and list(pairs.iterator()) == [((2,), (2,))]
    [timer] = key.view.timers.list()
    assert (timer.name, timer.at.microsecond) == (TTL_TIMER, 110_000)
    key.handle.purge()
    assert sorted(key.done()) == ["items", "items[0]", "pairs((2,))"]
    key.at(115).handle.purge()
    assert key.done() == {}


def test_a_time_to_live_needs_processing_time() -> None:
    for mode in ("none", "eventtime"):
        with pytest.raises(ValueError, match="needs time_mode='processingTime'"):
            Key(mode).handle.getValueState("state", "n int", ttlDurationMs=10)
    with pytest.raises(ValueError, match="positive"):
        Key("processingtime").handle.getValueState("state", "n int", ttlDurationMs=0)


def test_a_variable_that_is_deleted_and_made_again_is_empty_in_each_epoch() -> None:
    key = Key()
    key.handle.deleteIfExists("state")
    state = key.handle.getValueState("state", "n int")
    key.at(0, epoch=4)
    state.update((1,))
    key.done()

    key.at(1, epoch=4)
    assert state.get() == (1,)
    key.at(2, epoch=5)
    assert state.get() is None


def test_state_is_reached_only_while_a_key_is_processed() -> None:
    key = Key()
    state = key.handle.getValueState("state", "n int")
    with pytest.raises(RuntimeError, match="while a key is processed only"):
        state.get()
    key.at(0)
    key.done()
    with pytest.raises(RuntimeError, match="while a key is processed only"):
        state.update((1,))
    with pytest.raises(RuntimeError, match="in init only"):
        key.handle.getValueState("late", "n int")


def test_two_variables_of_one_name_and_timers_without_a_clock_are_refused() -> None:
    key = Key()
    key.handle.getValueState("state", "n int")
    with pytest.raises(ValueError, match="two state variables called 'state'"):
        key.handle.getListState("state", "n int")
    with pytest.raises(RuntimeError, match="timers need time_mode"):
        key.at(0).handle.registerTimer(1)


@pytest.mark.parametrize("schema", ["n", "n nonsense", "", "n int,", "l array<int", 7, "n int x"])
def test_a_schema_that_cannot_be_read_is_an_error(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"schema|neither a DDL"):
        Key().handle.getValueState("state", schema)


@pytest.mark.parametrize("expiry", [2**63 - 1, -(2**63)])
def test_a_timer_beyond_all_datetimes_is_set_for_the_last_or_the_first(expiry: int) -> None:
    key = Key("processingtime")
    key.at(0).handle.registerTimer(expiry)

    [timer] = key.view.timers.list()
    ends = (datetime.datetime.max, datetime.datetime.min)
    assert timer.at == ends[expiry < 0].replace(tzinfo=datetime.UTC)
    assert list(key.handle.listTimers()) == [expiry]
    key.handle.deleteTimer(expiry)
    assert list(key.handle.listTimers()) == []


def test_a_time_to_live_beyond_all_datetimes_does_not_end() -> None:
    key = Key("processingtime")
    state = key.handle.getValueState("n", "n int", 2**62)
    key.at(0)
    state.update((1,))
    key.done()

    assert key.at(10**9) and state.get() == (1,)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("v array<int>", [1.5]),
        ("v array<int>", [True]),
        ("v array<int>", {1, 2}),
        ("v struct<a:array<tinyint>>", ([128],)),
        ("v map<string,int>", {"a": 1.0}),
        ("v map<string,int>", {None: 1}),
    ],
)
def test_an_item_that_does_not_fit_is_an_error_like_a_field(schema: str, value: Any) -> None:
    state = ProcessorHandle("none").getValueState("s", schema)

    with pytest.raises(TypeError, match="for the field 'v'"):
        state.update((value,))


@pytest.mark.parametrize("missing", [pd.NaT, pd.NA, np.datetime64("NaT")])
def test_a_missing_value_of_pandas_or_numpy_is_null(missing: Any) -> None:
    handle = ProcessorHandle("none")
    state = handle.getValueState("s", "at timestamp, n int, items array<int>")
    handle.bind({})

    state.update((missing, missing, [missing, 1]))

    assert state.get() == (None, None, [None, 1])


def test_the_items_of_a_row_are_in_the_order_of_the_fields() -> None:
    class Pair(NamedTuple):
        second: int
        first: int

    handle = ProcessorHandle("none")
    state = handle.getValueState("s", "pair struct<first:int,second:int>")
    handle.bind({})

    state.update((Pair(second=1, first=2),))

    assert state.get() == ((1, 2),)


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="value state 's' has two fields called 'n'"):
        ProcessorHandle("none").getValueState("s", "n int, n string")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_timestamps_are_read_in_the_zone_of_the_process(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
        here = noon.astimezone().replace(tzinfo=None)
        elsewhere = noon.astimezone(datetime.timezone(datetime.timedelta(hours=-5)))
        key = Key()
        value = key.handle.getValueState("value", "t timestamp, ts array<timestamp>")
        wall = key.handle.getValueState("wall", "t timestamp_ntz")
        seen = key.handle.getMapState("seen", "t timestamp", "n int")
        key.at(0)
        value.update((noon, [elsewhere, None]))
        wall.update((elsewhere,))
        for number, at in enumerate((noon, here, elsewhere)):
            seen.updateValue((at,), (number,))

        assert value.get() == (here, [here, None])
        assert wall.get() == (datetime.datetime(2026, 1, 1, 7),)
        assert list(seen.iterator()) == [((here,), (2,))]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_numbers_are_rounded_as_on_spark() -> None:
    key = Key()
    one = key.handle.getValueState("one", "d decimal(6,2)")
    two = key.handle.getValueState("two", "d array<decimal(6,2)>, f float, g double")
    key.at(0)
    one.update((Decimal("0.125"),))
    two.update(([Decimal("-0.125")], 0.1, 0.1))

    assert one.get() == (Decimal("0.13"),)
    assert two.get() == ([Decimal("-0.13")], 0.10000000149011612, 0.1)
    two.update(([], 1e300, 1e300))
    assert two.get() == ([], math.inf, 1e300)

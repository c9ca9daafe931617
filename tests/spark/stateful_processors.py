# ruff: noqa: N802, N803
"""Stateful processors of the kinds that Spark's documentation and tests show.

None of them knows on which engine it runs. They write what they see into text columns, so that a
difference of any kind is a difference of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

TEXT = "id string, text string"


class Quiet(StatefulProcessor):
    """A processor that has nothing to close."""

    def close(self) -> None:
        pass


class RunningCount(Quiet):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        known = self.count.get()
        total = (known[0] if known is not None else 0) + sum(1 for _ in rows)
        self.count.update((total,))
        yield Row(id=key[0], n=total)


class RunningCountInPandas(Quiet):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        total = sum(len(frame) for frame in rows)
        if self.count.exists():
            total += self.count.get()[0]
        self.count.update((total,))
        yield pd.DataFrame({"id": [key[0]], "n": [total]})


class Statistics(Quiet):
    """A value of several fields, of which one may be null."""

    def init(self, handle: Any) -> None:
        self.known = handle.getValueState("known", "n int, total double, last string, flag boolean")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n, total, last, flag = self.known.get() or (0, 0.0, None, None)
        for row in rows:
            n, total, flag = n + 1, total + row.v / 2, not flag
            last = row["id"] if row.v > 2 else None
        self.known.update((n, total, last, flag))
        yield Row(id=key[0], text=repr(self.known.get()))


class Deduplicate(Quiet):
    """Emits each value of a key once."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "v bigint", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            if not self.seen.containsKey((row.v,)):
                self.seen.updateValue((row.v,), (1,))
                yield Row(id=key[0], n=row.v)


class MapOfLists(Quiet):
    """A map whose values are lists, and all that can be done with a map."""

    def init(self, handle: Any) -> None:
        self.lists = handle.getMapState(
            "lists", "parity string, sign boolean", "values array<bigint>, n int"
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            at = ("odd" if row.v % 2 else "even", row.v > 0)
            values, n = self.lists.getValue(at) or ([], 0)
            self.lists.updateValue(at, ([*values, row.v], n + 1))
            if row.v == 6:
                self.lists.removeKey(("odd", True))
            if row.v == 7:
                self.lists.clear()
        found = sorted((tuple(k), list(v[0]), v[1]) for k, v in self.lists.iterator())
        keys, values = sorted(map(tuple, self.lists.keys())), len(list(self.lists.values()))
        exists = self.lists.exists(), self.lists.getValue(("none", False))
        yield Row(id=key[0], text=f"{found} {keys} {values} {exists}")


class Lists(Quiet):
    """All that can be done with a list."""

    def init(self, handle: Any) -> None:
        self.items = handle.getListState("items", "v bigint, id string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = self.items.exists()
        for row in rows:
            if row.v == 5:
                self.items.put([(0, "put"), (1, None)])
            elif row.v == 6:
                self.items.clear()
            else:
                self.items.appendValue((row.v, row.id))
                self.items.appendList([(row.v * 10, row.id)] * 40)
        found = [tuple(item) for item in self.items.get()]
        yield Row(id=key[0], text=f"{before} {self.items.exists()} {len(found)} {found[-2:]}")


class Nested(Quiet):
    """State of nested types, and rows that have them."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState(
            "last",
            "s struct<x:int,y:string>, l array<string>, m map<string,int>, "
            "d decimal(6,2), f float, t timestamp",
        )
        self.seen = handle.getMapState("seen", "s struct<x:int>", "t timestamp, n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = self.last.get()
        for row in rows:
            half, now = Decimal("0.125"), datetime(2026, 1, 1, tzinfo=UTC)
            struct = Row(b=row.s["x"], a=row.s["y"])
            self.last.update((struct, [*row.l, "more"], dict(row.m), half, 0.1, now))
            self.seen.updateValue(((row.s["x"],),), (now, 1))
        found = sorted(self.seen.iterator()), self.seen.getValue(((row.s["x"],),))
        yield Row(id=key[0], text=f"{before} {found}")


class EventTimeSessions(Quiet):
    """Sessions of 5 seconds, closed by a timer."""

    GAP = 5_000

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "start bigint, last bigint, n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        times = sorted(int(row.t.timestamp() * 1000) for row in rows)
        start, last, n = self.session.get() or (times[0], 0, 0)
        if last:
            self.handle.deleteTimer(last + self.GAP)
        last = max(last, times[-1])
        self.session.update((min(start, times[0]), last, n + len(times)))
        self.handle.registerTimer(last + self.GAP)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        start, last, n = self.session.get()
        self.session.clear()
        yield Row(id=key[0], start=start, end=last, n=n)


class EventTimers(Quiet):
    """Timers of every kind: set, listed and deleted, also by the timers themselves."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.fired = handle.getValueState("fired", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        times = [int(row.t.timestamp() * 1000) for row in rows]
        for time in times:
            for after in (1_000, 2_000, 3_000):
                self.handle.registerTimer(time + after)
            self.handle.deleteTimer(time + 2_000)
            self.handle.deleteTimer(17)
        yield Row(
            id=key[0],
            text=f"rows {sorted(times)} at {timerValues.getCurrentWatermarkInMs()} "
            f"{sorted(self.handle.listTimers())}",
        )

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (n,) = self.fired.get() or (0,)
        self.fired.update((n + 1,))
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(
            id=key[0],
            text=f"timer {at} at {timerValues.getCurrentWatermarkInMs()} number {n} "
            f"{sorted(self.handle.listTimers())}",
        )


class ProcessingTimers(Quiet):
    """A timer a moment after each row that asks for one."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.waits = handle.getValueState("waits", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = 0
        for row in rows:
            if row.v > 0:
                n += 1
        if n:
            now = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + 1)
            self.waits.update((n,))
        yield Row(id=key[0], text=f"{n} {len(list(self.handle.listTimers()))}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        late = timerValues.getCurrentProcessingTimeInMs() >= expiredTimerInfo.getExpiryTimeInMs()
        yield Row(id=key[0], text=f"fired {self.waits.get()} {late}")
        self.waits.clear()


class Expiring(Quiet):
    """One state of each kind, which expires at once or never."""

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n int", ttlDurationMs=self.ttl)
        self.list = handle.getListState("list", "v bigint", ttlDurationMs=self.ttl)
        self.map = handle.getMapState("map", "v bigint", "n int", ttlDurationMs=self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = (self.value.get(), sorted(self.list.get()), sorted(self.map.iterator()))
        exists = (self.value.exists(), self.list.exists(), self.map.exists())
        for row in rows:
            self.value.update(((self.value.get() or (0,))[0] + 1,))
            self.list.appendValue((row.v,))
            self.map.updateValue((row.v,), (1,))
        after = (self.value.get(), len(list(self.list.get())), len(list(self.map.keys())))
        yield Row(id=key[0], text=f"{before} {exists} {after}")


class Initial(Quiet):
    """Begins with what it is given."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        known = self.count.get()
        self.count.update(((known[0] if known else 0) + initialState.initial,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        known = self.count.get()
        self.count.update(((known[0] if known else 0) + len(list(rows)),))
        yield Row(id=key[0], n=self.count.get()[0])


class InitialInPandas(Initial):
    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        known = self.count.get()
        more = int(initialState["initial"].sum())
        self.count.update(((known[0] if known else 0) + more,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        known = self.count.get()
        self.count.update(((known[0] if known else 0) + sum(map(len, rows)),))
        yield pd.DataFrame({"n": [self.count.get()[0]], "id": [key[0]]})


class Parity(Quiet):
    """Counts the counts of another processor by parity."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (n,) = self.seen.get() or (0,)
        found = sorted(((row.id, row.n) for row in rows), key=repr)
        self.seen.update((n + len(found),))
        yield Row(id=str(key[0]), text=f"{n} {found}")


class TwoKeys(Quiet):
    """A grouping key of two columns, of which either may be null."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        known = self.count.get()
        self.count.update(((known[0] if known else 0) + len(list(rows)),))
        yield Row(id=str(key[0]), text=f"{key!r} {self.count.get()}")


class FirstVersion(Quiet):
    """Counts, and remembers the last value."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")
        self.last = handle.getValueState("last", "v bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = self.count.get(), self.last.get()
        values = [row.v for row in rows]
        self.count.update(((before[0] or (0,))[0] + len(values),))
        self.last.update((max(values),))
        yield Row(id=key[0], text=repr(before))


class SecondVersion(FirstVersion):
    """No longer remembers the last value."""

    def init(self, handle: Any) -> None:
        handle.deleteIfExists("last")
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = self.count.get()
        self.count.update(((before or (0,))[0] + len(list(rows)),))
        yield Row(id=key[0], text=repr(before))


class MadeAgain(FirstVersion):
    """Deletes a variable and makes it again, in one ``init``."""

    def init(self, handle: Any) -> None:
        handle.deleteIfExists("last")
        super().init(handle)


class PandasColumns(Quiet):
    """Shows the frames that it gets."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        frame = pd.concat(list(rows))
        shown = {name: str(kind) for name, kind in frame.dtypes.items()}
        values = [
            [list(v) if hasattr(v, "tolist") and not pd.api.types.is_scalar(v) else v for v in row]
            for row in frame.itertuples(index=False)
        ]
        yield pd.DataFrame(
            {
                "id": [key[0]],
                "text": [f"{shown} {values} {list(frame.index)}"],
                "t": [frame.t.max()],
            }
        )


def count_of_group(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For ``applyInPandasWithState``."""
    (n,) = state.get if state.exists else (0,)
    for frame in frames:
        n += len(frame)
    if n == 4:
        state.remove()
    else:
        state.update((n,))
    yield pd.DataFrame({"id": [key[0]], "text": [f"{n} {state.exists} {state.getOption}"]})


def session_of_group(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """For ``applyInPandasWithState``, with timeouts by event time."""
    if state.hasTimedOut:
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"id": [key[0]], "text": [f"timed out with {n}"]})
        return
    (n,) = state.getOption or (0,)
    newest = 0
    for frame in frames:
        n += len(frame)
        newest = max(newest, int(frame.t.max().timestamp() * 1000))
    state.update((n,))
    state.setTimeoutTimestamp(max(newest, state.getCurrentWatermarkMs()) + 2_000)
    yield pd.DataFrame({"id": [key[0]], "text": [f"{n} at {state.getCurrentWatermarkMs()}"]})

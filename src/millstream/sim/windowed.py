"""Simulated workloads with windows.

Two sources with event times that come out of order, late, too far ahead or not at all. Sliding
windows over both; behind them a function over tumbling windows, which inherits their watermark;
and sessions of one source. Variants differ in reducers, in whether panes are folded, and in early
results.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from millstream.flow.reducers import combinable
from millstream.flow.sinks import Sink
from millstream.flow.sources import Source
from millstream.flow.windows import session, sliding, tumbling
from millstream.flow.workflow import Workflow
from millstream.sim.event_time import EventTimeAnswer, Job, Origin, Session, Sliding
from millstream.sim.workload import SECOND, Answer, Pair, Workload, some_key, spelled
from millstream.state.aggregates.constructors import count, max, sum
from millstream.state.aggregates.sets import AggregateSet

VARIANTS = 4
LEFT, RIGHT = "left", "right"
_START = datetime(1970, 1, 1, tzinfo=UTC)
_GAP, _TUMBLING = 4, 4
_ORIGINS = {LEFT: Origin(2 * SECOND, 4 * SECOND, 20 * SECOND)}
_ORIGINS[RIGHT] = Origin(3 * SECOND, 8 * SECOND, 20 * SECOND)
_SESSION_LATENESS = 0
# Of each variant: the windows, and whether panes are folded; None where measured rates decide.
_SLIDING: list[tuple[list[tuple[int, int]], bool | None]] = [
    ([(8, 2), (2, 2), (6, 3)], None),
    ([(9, 3), (4, 1)], None),
    ([(6, 2), (5, 5)], False),
    ([(24, 2), (8, 4)], True),
]
_EARLY = {1: 3 * SECOND, 2: 5 * SECOND}


def timed(record: Pair) -> Iterator[tuple[str, int, datetime | None]]:
    """Take out of a record what its source says."""
    key, (_, value, time) = record
    yield key, value, time


def timed_by_letter(record: Pair) -> Iterator[tuple[str, int, datetime | None]]:
    """The same for its letter, of which there are few: sessions last, and can take late values."""
    key, (_, value, time) = record
    yield key[0], value, time


def result_by_letter(row: Any) -> Iterator[Pair]:
    """Bring the result of a window to its letter."""
    seconds = (row.window_end - row.window_start) // timedelta(seconds=1)
    yield row.key[0], (seconds, *spelled(row[1:-3]))


def whole(key: str, values: list[Any], window: Any) -> Iterator[Any]:
    """Show all that a window has."""
    yield key, tuple(sorted(map(spelled, values))), window.start, window.end


def add_to(values: list[int], value: int) -> list[int]:
    """Add a value in place."""
    values.append(value)
    return values


def merged(left: list[int], right: list[int]) -> list[int]:
    """Merge in place, into both."""
    left.extend(right)
    right.clear()
    return left


def sorted_tuple(values: list[int]) -> tuple[int, ...]:
    """What a list shows."""
    return tuple(sorted(values))


_SUMS = AggregateSet((("total", sum()), ("n", count()), ("top", max())))
_LISTS = combinable(zero=list, add=add_to, merge=merged, result=sorted_tuple)


class _Windowed(Workload):
    """One of the variants."""

    def __init__(self, variant: int) -> None:
        self._lists = variant % 2 == 1
        self._early = _EARLY.get(variant)
        self._windows, panes = _SLIDING[variant]
        workflow = Workflow("simulated")
        sources = {
            name: workflow.source(
                name,
                Source(),
                lateness=timedelta(microseconds=origin.lateness),
                idle_after=timedelta(microseconds=origin.idle),
                max_ahead=timedelta(microseconds=origin.max_ahead),
            )
            for name, origin in _ORIGINS.items()
        }
        slides = (
            sources[LEFT]
            .union(sources[RIGHT])
            .map_reduce(
                "slides",
                map=timed,
                reduce=_LISTS if self._lists else _SUMS,
                window=[
                    sliding(timedelta(seconds=size), timedelta(seconds=slide))
                    for size, slide in self._windows
                ],
                panes=panes,
                early_every=None if self._early is None else timedelta(microseconds=self._early),
            )
        )
        behind = slides.map_reduce(
            "behind",
            map=result_by_letter,
            reduce=whole,
            window=tumbling(timedelta(seconds=_TUMBLING)),
        )
        sessions = sources[LEFT].map_reduce(
            "sessions",
            map=timed_by_letter,
            reduce=_SUMS if self._lists else whole,
            window=session(timedelta(seconds=_GAP)),
            lateness=timedelta(microseconds=_SESSION_LATENESS),
        )
        streams = {
            "slides": slides,
            "behind": behind,
            "sessions": sessions,
            "late": slides.late,
            "ahead": slides.ahead,
            "untimed": slides.untimed,
            "late-for-sessions": sessions.late,
        }
        for name, stream in streams.items():
            stream.sink(f"{name}-sink", Sink())
        super().__init__(workflow)
        given = {vertex.name: inputs[0] for (_, vertex), inputs in self._sinks()}
        self._at = {name: given[f"{name}-sink"] for name in streams}
        self._sources = {
            name: next(
                at for at, v in enumerate(self.plan.vertices) if getattr(v, "name", "") == name
            )
            for name in _ORIGINS
        }

    def _sinks(self) -> Iterator[Any]:
        for at, vertex in self.plan.sinks:
            yield (at, vertex), self.plan.inputs[at]

    def answer(self, slots: int) -> Answer:
        at, origins = self._at, {self._sources[name]: o for name, o in _ORIGINS.items()}
        left = self._sources[LEFT]
        slides = Job(
            at["slides"],
            origins,
            [Sliding(size * SECOND, slide * SECOND) for size, slide in self._windows],
            _show_list if self._lists else _show_sums,
            sides={side: at[side] for side in ("late", "ahead", "untimed")},
            early=self._early,
        )
        behind = Job(
            at["behind"],
            {},
            [Sliding(_TUMBLING * SECOND, _TUMBLING * SECOND)],
            _show_values,
            follows=at["slides"],
        )
        sessions = Job(
            at["sessions"],
            {left: Origin(_SESSION_LATENESS, _ORIGINS[LEFT].idle, _ORIGINS[LEFT].max_ahead)},
            [Session(_GAP * SECOND)],
            _show_sums if self._lists else _show_values,
            sides={"late": at["late-for-sessions"]},
            key=_letter,
        )
        return EventTimeAnswer((slides, behind, sessions), self._read, slots)

    def _read(self, record: Pair) -> tuple[int, str, int, int | None, Any]:
        key, (source, value, time) = record
        micros = None if time is None else (time - _START) // timedelta(microseconds=1)
        return self._sources[source], key, value, micros, time

    def epochs(self, rng: random.Random, tasks: int) -> Iterator[tuple[int, list[list[Pair]]]]:
        clock = events = 0
        while True:
            silent = rng.choice((None, None, LEFT, RIGHT))
            made = [
                [_record(rng, events, silent) for _ in range(rng.randrange(8))]
                for _ in range(tasks)
            ]
            yield clock, [[] for _ in made] if rng.random() < 0.2 else made
            clock += rng.choice((1, 2, 3, 3, 12)) * SECOND
            events += rng.choice((1, 2, 3, 5)) * SECOND
            if rng.random() < 0.08:
                events += 60 * SECOND  # beyond the clock, perhaps for good

    def stream(self, rng: random.Random, count: int) -> list[Pair]:
        found: list[Pair] = []
        events, silent = 0, None
        for _ in range(count):
            if rng.random() < 0.1:
                silent = rng.choice((None, LEFT, RIGHT))
            if rng.random() < 0.02:
                events += 60 * SECOND
            found.append(_record(rng, events, silent))
            events += SECOND // 2
        return found

    def by_source(self, records: list[Pair]) -> Iterable[tuple[int, list[Any]]]:
        for name, at in self._sources.items():
            yield at, [record for record in records if record[1][0] == name]

    def told(self, state: Any) -> Any:
        # Lists of values are in the order of arrival, which depends on who gave them.
        return {
            start: tuple(sorted(map(spelled, value))) if isinstance(value, list) else value
            for start, value in state.items()
        }


@cache
def windowed(variant: int) -> Workload:
    """The workload of a variant."""
    return _Windowed(variant)


def _record(rng: random.Random, events: int, silent: str | None) -> Pair:
    source = RIGHT if silent == LEFT else LEFT
    if silent is None:
        source = rng.choice((LEFT, RIGHT))
    time = events + rng.randrange(-4 * SECOND, 3 * SECOND)
    chance = rng.random()
    if chance < 0.15:  # on a bound of windows
        time = time // SECOND * SECOND
    elif chance < 0.25:
        time -= rng.randrange(10 * SECOND)
    elif chance < 0.3:
        time += 40 * SECOND
    stamp = None if rng.random() < 0.05 else _START + timedelta(microseconds=time)
    return some_key(rng), (source, rng.randrange(100), stamp)


def _letter(key: str) -> str:
    return key[0]


def _show_sums(values: list[Any]) -> dict[str, int]:
    total = top = values[0]
    for value in values[1:]:
        total, top = total + value, value if value > top else top
    return {"total": total, "n": len(values), "top": top}


def _show_list(values: list[Any]) -> dict[str, tuple[Any, ...]]:
    return {"value": tuple(sorted(values))}


def _show_values(values: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(values))

"""Simulated workloads with windows of time.

Sliding windows over two sources; behind them a function over tumbling windows, which inherits
their watermark; and sessions of one source. Variants differ in reducers, in whether panes are
folded, and in early results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

from millstream.flow.reducers import combinable
from millstream.flow.streams import Stream
from millstream.flow.windows import session, sliding, tumbling
from millstream.sim.event_time import EventTimeAnswer, Job, Origin, Session, Sliding
from millstream.sim.two_sources import LEFT, ORIGINS, TwoSources, letter, timed, timed_by_letter
from millstream.sim.workload import SECOND, Answer, Pair, Workload, spelled
from millstream.state.aggregates.constructors import count, max, sum
from millstream.state.aggregates.sets import AggregateSet

VARIANTS = 4
_GAP, _TUMBLING = 4, 4
_SESSION_LATENESS = 0
# Of each variant: the windows, and whether panes are folded; None where measured rates decide.
_SLIDING: list[tuple[list[tuple[int, int]], bool | None]] = [
    ([(8, 2), (2, 2), (6, 3)], None),
    ([(9, 3), (4, 1)], None),
    ([(6, 2), (5, 5)], False),
    ([(24, 2), (8, 4)], True),
]
_EARLY = {1: 3 * SECOND, 2: 5 * SECOND}


def result_by_letter(row: Any) -> Iterator[Pair]:
    """Send the result of a window to its letter."""
    seconds = (row.window_end - row.window_start) // timedelta(seconds=1)
    yield row.key[0], (seconds, *spelled(row[1:-3]))


def list_values(key: str, values: list[Any], window: Any) -> Iterator[Any]:
    """Return all values of a window."""
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
    """The result of a list."""
    return tuple(sorted(values))


SUMS = AggregateSet((("total", sum()), ("n", count()), ("top", max())))
LISTS = combinable(zero=list, add=add_to, merge=merged, result=sorted_tuple)


class _Windowed(TwoSources):
    """One of the variants."""

    def __init__(self, variant: int) -> None:
        self._lists = variant % 2 == 1
        self._early = _EARLY.get(variant)
        self._windows, self._panes = _SLIDING[variant]
        super().__init__()

    def _streams(self, left: Stream, right: Stream) -> Mapping[str, Stream]:
        slides = (
            left.union(right)
            .flat_map(timed)
            .key_by()
            .window(
                *(
                    sliding(timedelta(seconds=size), timedelta(seconds=slide))
                    for size, slide in self._windows
                ),
                panes=self._panes,
                early_every=None if self._early is None else timedelta(microseconds=self._early),
            )
            .reduce("slides", LISTS if self._lists else SUMS)
        )
        behind = slides.map_reduce(
            "behind",
            map=result_by_letter,
            reduce=list_values,
            window=tumbling(timedelta(seconds=_TUMBLING)),
        )
        sessions = left.map_reduce(
            "sessions",
            map=timed_by_letter,
            reduce=SUMS if self._lists else list_values,
            window=session(timedelta(seconds=_GAP)),
            lateness=timedelta(microseconds=_SESSION_LATENESS),
        )
        return {
            "slides": slides,
            "behind": behind,
            "sessions": sessions,
            "late": slides.late,
            "ahead": slides.ahead,
            "untimed": slides.untimed,
            "late-for-sessions": sessions.late,
        }

    def answer(self, slots: int) -> Answer:
        at, origins = self.at, self.origins
        left = self.sources[LEFT]
        slides = Job(
            at["slides"],
            origins,
            [Sliding(size * SECOND, slide * SECOND) for size, slide in self._windows],
            show_list if self._lists else show_sums,
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
            {left: Origin(_SESSION_LATENESS, ORIGINS[LEFT].idle, ORIGINS[LEFT].max_ahead)},
            [Session(_GAP * SECOND)],
            show_sums if self._lists else _show_values,
            sides={"late": at["late-for-sessions"]},
            key=letter,
        )
        return EventTimeAnswer((slides, behind, sessions), self.read, slots)

    def comparable(self, state: Any) -> Any:
        # Lists of values are in the order of arrival, which depends on who gave them.
        return {
            start: tuple(sorted(map(spelled, value))) if isinstance(value, list) else value
            for start, value in state.items()
        }


@cache
def windowed(variant: int) -> Workload:
    """The workload of a variant."""
    return _Windowed(variant)


def show_sums(values: list[Any]) -> dict[str, int]:
    """The result of ``SUMS``."""
    total = top = values[0]
    for value in values[1:]:
        total, top = total + value, value if value > top else top
    return {"total": total, "n": len(values), "top": top}


def show_list(values: list[Any]) -> dict[str, tuple[Any, ...]]:
    """The result of ``LISTS``."""
    return {"value": tuple(sorted(values))}


def _show_values(values: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(values))

"""Simulated workloads with count windows, and with global windows.

They have no end: all that a key ever had counts, and what came first, comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from millstream.flow.streams import Stream
from millstream.flow.windows import count_window, every, global_window, on_watermark
from millstream.sim.event_time import EventTimeAnswer, Job
from millstream.sim.keyed_windows import Count, Global
from millstream.sim.two_sources import TwoSources, timed
from millstream.sim.windowed import LISTS, SUMS, show_list, show_sums
from millstream.sim.workload import SECOND, Answer, Workload, spelled

_FOLDED, _LISTED = (6, 4), (5, 2)
_NEW, _CLOCK = 3, 5


def in_line(key: str, values: list[Any], window: Any) -> Iterator[Any]:
    """Return all values of a window, in order."""
    yield key, tuple(values), window.start, window.end


class _Counted(TwoSources):
    """Count windows, aggregated and not."""

    def _streams(self, left: Stream, right: Stream) -> Mapping[str, Stream]:
        windows = {
            "folded": (left, SUMS, count_window(*_FOLDED)),
            "listed": (right, in_line, count_window(*_LISTED)),
        }
        return {
            name: stream.map_reduce(name, map=timed, reduce=reducer, window=window)
            for name, (stream, reducer, window) in windows.items()
        }

    def answer(self, slots: int) -> Answer:
        left, right = ({at: origin} for at, origin in self.origins.items())
        jobs = (
            Job(self.at["folded"], left, [Count(*_FOLDED, folded=True)], show_sums),
            Job(self.at["listed"], right, [Count(*_LISTED, folded=False)], tuple),
        )
        return EventTimeAnswer(jobs, self.read, slots)

    def comparable(self, state: Any) -> Any:
        return spelled(state)


class _Global(TwoSources):
    """Global windows with every kind of trigger."""

    def _streams(self, left: Stream, right: Stream) -> Mapping[str, Stream]:
        windows = {
            "by-number": (SUMS, global_window(every(_NEW))),
            "by-clock": (LISTS, global_window(every(timedelta(seconds=_CLOCK)))),
            "by-watermark": (SUMS, global_window(on_watermark())),
        }
        both = left.union(right)
        return {
            name: both.map_reduce(name, map=timed, reduce=reducer, window=window)
            for name, (reducer, window) in windows.items()
        }

    def answer(self, slots: int) -> Answer:
        at, both = self.at, self.origins
        jobs = (
            Job(at["by-number"], both, [Global(_NEW)], show_sums),
            Job(at["by-clock"], both, [Global("clock")], show_list, early=_CLOCK * SECOND),
            Job(at["by-watermark"], both, [Global("watermark")], show_sums),
        )
        return EventTimeAnswer(jobs, self.read, slots)

    def comparable(self, state: Any) -> Any:
        return spelled(state)


COUNTED: Workload = _Counted()
GLOBAL: Workload = _Global()

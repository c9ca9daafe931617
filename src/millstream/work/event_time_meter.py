"""Event time on the map side of a job with timers: every value is reduced, and its time measured.

A value without a time, or with one too far ahead of the clock, is counted and reduced like any
other; it does not advance the watermark, and timers do not count from it. Rows that the reducer
drops because they are late are counted as such.
"""

from __future__ import annotations

import numpy as np

from millstream.flow.vertices import JobVertex
from millstream.state.aggregates.grouping import Ints
from millstream.times import BEGINNING, END
from millstream.work.event_time_gate import times_of
from millstream.work.job_clock import JobClock, Tally
from millstream.work.keyed_batches import KeyedBatch, Pairs


class TimeMeter:
    """Measures the event times of one job with timers in one map task."""

    def __init__(self, job: JobVertex, clock: JobClock) -> None:
        self._job = job
        self._clock = clock
        reducer = job.row_reducer
        self._drops_late = reducer is not None and reducer.drops_late
        self._tallies: dict[int, Tally] = {}

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """The counts, one tally for each origin."""
        return tuple(self._tallies[origin] for origin in sorted(self._tallies))

    def measure(
        self, values: Pairs | KeyedBatch, origin: int | None, time: int | None = None
    ) -> Ints | None:
        """The time of each value of one origin; None if they have none.

        A value without a time, or too far ahead, has one before all others. ``time`` is the time of
        values without one. Results of windows have no origin here: the watermark of those windows
        applies to them.
        """
        found = times_of(self._job, values, time)
        if found is None:
            return None
        times, untimed = found
        if untimed is not None:
            times = np.where(untimed, BEGINNING, times)
        if origin is None or not len(times):
            return times
        ahead = times > self._clock.limits.get(origin, END)
        if ahead.any():
            times = np.where(ahead, BEGINNING, times)
        self._count(origin, times, int(ahead.sum()), 0 if untimed is None else int(untimed.sum()))
        return times

    def _count(self, origin: int, times: Ints, ahead: int, untimed: int) -> None:
        late = 0
        if self._drops_late:
            late = int(((times > BEGINNING) & (times <= self._clock.closed)).sum())
        rows = len(times) - late - ahead - untimed
        tally = Tally(origin, rows=rows, late=late, ahead=ahead, untimed=untimed)
        if rows:
            tally += Tally(origin, latest=int(times.max()))
        known = self._tallies.get(origin)
        self._tallies[origin] = tally if known is None else known + tally

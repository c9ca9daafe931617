"""Watermarks, computed from what epochs have counted. No I/O, no clock.

Each commit gives the next state, which is written into the manifest; so an epoch that is replayed
after a restart gets the same watermarks. The event time of an epoch depends only on the epochs
before it and on the time of its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from millstream.coordinator.pane_cost import Rate, folds
from millstream.flow.time_origins import JobTiming, Tracked
from millstream.times import BEGINNING, END
from millstream.wire.epoch_record import EpochRecord
from millstream.work.job_clock import JobClock, Tally, summed

_MOVED_ON: Final = 2
"""After so many epochs in which all of its values were too far ahead, an origin is accepted."""


@dataclass(frozen=True)
class Counted:
    """What one epoch counted of a job that reads event times."""

    tallies: tuple[Tally, ...] = ()
    keys: int = 0

    @property
    def total(self) -> Tally:
        """The sum over all origins."""
        return sum(self.tallies, Tally(-1))


@dataclass(frozen=True)
class Seen:
    """What is known of one origin of a job.

    Its ``newest`` event time was accepted in the epoch of time ``taken``; ``alive`` is the time of
    the last epoch with values of it, and ``ahead`` the number of epochs since in which all of them
    were too far ahead.
    """

    newest: int | None = None
    taken: int = BEGINNING
    alive: int = BEGINNING
    ahead: int = 0

    def plus(self, tally: Tally, time: int) -> Seen:
        """The state after an epoch; one without values of this origin changes nothing."""
        if tally.rows + tally.late + tally.ahead == 0:
            return self
        if tally.rows == 0:
            ahead = self.ahead + 1 if tally.late == 0 else 0
            return replace(self, alive=time, ahead=ahead)
        newest = tally.latest if self.newest is None else max(self.newest, tally.latest)
        return Seen(newest, time, time, 0)

    def limit(self, origin: Tracked, time: int) -> int:
        """The largest event time to be accepted in an epoch.

        The epoch's own time decides, not the gap to the newest event: streams may be sparse, and
        recorded ones old, but no event comes from the future.
        """
        if self.ahead >= _MOVED_ON:
            return END
        limit = time + origin.max_ahead
        if self.newest is None or self.newest <= limit:
            return limit
        # It was accepted although it is ahead of the clock, so the clock is no limit any more.
        return self.newest + (time - self.taken) + origin.max_ahead


@dataclass(frozen=True)
class JobTime:
    """The time of a job: its watermark in the newest committed epoch, and its origins.

    ``began`` is the time of the first epoch that had any event time, ``early`` that of the last
    in which early results were due.
    """

    watermark: int = BEGINNING
    began: int | None = None
    early: int | None = None
    origins: Mapping[int, Seen] = field(default_factory=dict)
    folding: bool = True
    rate: Rate = field(default_factory=Rate)

    @property
    def newest(self) -> int | None:
        """The largest event time that was accepted."""
        known = [seen.newest for seen in self.origins.values() if seen.newest is not None]
        return max(known, default=None)


@dataclass(frozen=True)
class Watermarks:
    """The time of all jobs that read event times, after the newest committed epoch."""

    timings: tuple[JobTiming, ...] = ()
    jobs: Mapping[int, JobTime] = field(default_factory=dict)
    time: int = BEGINNING
    incarnation: int = 0

    def moment(self, now: int) -> int:
        """The time of the next epoch: that of the clock, unless the clock was set back."""
        return max(now, self.time)

    def at(self, time: int, incarnation: int, requested: int = BEGINNING) -> dict[int, JobClock]:
        """The clocks of the next epoch; watermarks are at least what the user ``requested``."""
        # Only committed epochs show that an origin is idle: while a slow one is under way, its
        # values are not seen yet. And none were read between two incarnations.
        observed = self.time if incarnation == self.incarnation else None
        clocks: dict[int, JobClock] = {}
        at_least: dict[int, int] = {}
        for timing in self.timings:
            known = self.jobs.get(timing.job, JobTime())
            if timing.by_arrival:
                mark, limits = time, {}
            else:
                inherited = [
                    clocks[job].watermark - timing.delays.get(job, 0) for job in timing.inherited
                ]
                mark = min([*_marks(timing, known, time, observed), *inherited], default=BEGINNING)
                limits = {
                    origin.at: known.origins.get(origin.at, Seen()).limit(origin, time)
                    for origin in timing.tracked
                }
            at_least[timing.job] = _requested_of(timing, requested, at_least)
            watermark = max(known.watermark, mark, at_least[timing.job])
            clocks[timing.job] = JobClock(
                known.watermark,
                watermark,
                limits,
                _folding(timing, known),
                _is_early(timing, known, time),
                _is_timed(timing, known),
            )
        return clocks

    def commit(self, record: EpochRecord, counted: Mapping[int, Counted]) -> Watermarks:
        """The state after an epoch."""
        jobs: dict[int, JobTime] = {}
        for timing in self.timings:
            of_job = counted.get(timing.job, Counted())
            jobs[timing.job] = self._after(timing, record, of_job, jobs)
        return replace(self, jobs=jobs, time=record.time, incarnation=record.incarnation)

    def _after(
        self,
        timing: JobTiming,
        record: EpochRecord,
        counted: Counted,
        upstream: Mapping[int, JobTime],
    ) -> JobTime:
        before, time = self.jobs.get(timing.job, JobTime()), record.time
        clock = record.clocks[timing.job]
        tallies = {tally.origin: tally for tally in summed(counted.tallies)}
        origins = {}
        resumed = record.incarnation != self.incarnation
        if resumed and before.began is not None:
            before = replace(before, began=time)
        for origin in timing.tracked:
            seen = before.origins.get(origin.at, Seen())
            if resumed:
                seen = replace(seen, alive=time)
            origins[origin.at] = seen.plus(tallies.get(origin.at, Tally(origin.at)), time)
        after = replace(before, origins=origins)
        has_time = after.newest is not None or any(
            record.clocks[job].watermark > BEGINNING for job in timing.inherited
        )
        if after.began is None and has_time:
            after = replace(after, began=time)
        if clock.early or after.early is None:
            after = replace(after, early=time)
        # A window of processing time that was closed early, on demand, may open again.
        watermark = time if timing.by_arrival else clock.watermark
        if watermark >= END:
            watermark = max(before.watermark, _rest(timing, after, time, upstream))
        return _measured(timing, before, replace(after, watermark=watermark), counted)

    # -- in manifests --------------------------------------------------------------------

    def to_manifest(self, ids: Mapping[int, str]) -> dict[str, Any]:
        """The state in plain values; jobs have ids that outlive their positions and names."""
        jobs = {}
        for timing in self.timings:
            known = self.jobs.get(timing.job, JobTime())
            names = {origin.at: _name(origin, ids) for origin in timing.tracked}
            origins = {names[at]: asdict(seen) for at, seen in known.origins.items()}
            jobs[ids[timing.job]] = {**asdict(replace(known, origins={})), "origins": origins}
        return {"time": self.time, "incarnation": self.incarnation, "jobs": jobs}

    @classmethod
    def from_manifest(
        cls, timings: Iterable[JobTiming], stored: Mapping[str, Any], ids: Mapping[int, str]
    ) -> Watermarks:
        """The state in a manifest; jobs and origins that it does not have begin without one."""
        begun = cls(tuple(timings))
        if not stored:
            return begun
        jobs = {}
        for timing in begun.timings:
            job = stored["jobs"].get(ids[timing.job])
            if job is not None:
                names = {_name(origin, ids): origin.at for origin in timing.tracked}
                seen = {
                    names[name]: Seen(**fields)
                    for name, fields in job["origins"].items()
                    if name in names
                }
                rate = Rate(**job["rate"])
                jobs[timing.job] = JobTime(**{**job, "origins": seen, "rate": rate})
        return replace(begun, jobs=jobs, time=stored["time"], incarnation=stored["incarnation"])


def _folding(timing: JobTiming, known: JobTime) -> bool:
    """Whether values are aggregated into panes."""
    if timing.is_measured:
        return known.folding
    return timing.always_folds


def _is_timed(timing: JobTiming, known: JobTime) -> bool:
    """Whether a job with timers has had event times."""
    return timing.windowing is None and (known.newest is not None or bool(timing.inherited))


def _is_early(timing: JobTiming, known: JobTime, time: int) -> bool:
    """Whether early results are due; the first time, that long after the first epoch."""
    every = timing.early
    return every is not None and known.early is not None and time - known.early >= every


def _requested_of(timing: JobTiming, requested: int, upstream: Mapping[int, int]) -> int:
    """The requested watermark of a job, which cannot be ahead of the jobs it reads."""
    if requested == END or not timing.inherited:
        return requested
    return min(upstream[job] - timing.delays.get(job, 0) for job in timing.inherited)


def _marks(timing: JobTiming, known: JobTime, time: int, observed: int | None) -> list[int]:
    """The watermark of each tracked origin; of idle ones only if all are idle.

    Then the one that was furthest advances with the clock. Origins were ``observed`` until then.
    """
    active: list[int] = []
    silent: list[int] = []
    for origin in timing.tracked:
        seen = known.origins.get(origin.at, Seen())
        since = known.began if seen.newest is None else seen.alive
        is_idle = observed is not None and since is not None and observed - since >= origin.idle
        if seen.newest is None:
            active.extend([] if is_idle else [BEGINNING])
        elif is_idle:
            silent.append(seen.newest - origin.lateness + (time - seen.alive))
        else:
            active.append(seen.newest - origin.lateness)
    # Windowed jobs upstream advance by themselves.
    return active or ([max(silent)] if silent and not timing.inherited else [])


def _rest(timing: JobTiming, after: JobTime, time: int, upstream: Mapping[int, JobTime]) -> int:
    """The watermark of a job after the end of its input, should there be more later on.

    All windows were closed: it is the end of the last of them. Without windows, values within the
    lateness are still on time, as in an epoch that does not end the input.
    """
    delays = timing.delays
    marks = [upstream[job].watermark - delays.get(job, 0) for job in timing.inherited]
    if timing.windowing is None:
        return min([*_marks(timing, after, time, None), *marks], default=BEGINNING)
    newest = max(
        [*(mark - 1 for mark in marks), BEGINNING if after.newest is None else after.newest]
    )
    return BEGINNING if newest <= BEGINNING else timing.windowing.last_end(newest)


def _measured(timing: JobTiming, before: JobTime, after: JobTime, counted: Counted) -> JobTime:
    """A job with its rate after an epoch; the first epoch has nothing to compare with."""
    rows = counted.total.rows
    if not timing.is_measured or not rows or before.newest is None or after.newest is None:
        return after
    rate = before.rate.plus(rows, after.newest - before.newest, counted.keys)
    decided = folds(rate.per_key, timing.paying_rate, before.folding)
    return replace(after, rate=rate, folding=decided)


def _name(origin: Tracked, ids: Mapping[int, str]) -> str:
    return f"job {ids[origin.at]}" if origin.is_job else f"source {origin.name}"

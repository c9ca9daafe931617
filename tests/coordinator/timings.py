"""Windowed jobs, epochs of them, and what map tasks say about these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millstream.coordinator.watermarks import Counted, Watermarks
from millstream.flow.time_origins import JobTiming, Tracked
from millstream.flow.windows import TimeWindow, Windowing
from millstream.times import BEGINNING
from millstream.wire.epoch_record import EpochRecord
from millstream.work.job_clock import JobClock, Tally
from tests.coordinator.journals import COUNT, SUM
from tests.coordinator.journals import record as plain_record

SECOND = 1_000_000
LEFT, RIGHT = 0, 1
FIRST, SECOND_JOB = COUNT, SUM
IDS = {FIRST: "count@1", SECOND_JOB: "sum@1"}
LATENESS, IDLE, AHEAD = 2 * SECOND, 30 * SECOND, 1000 * SECOND
TUMBLING = Windowing((TimeWindow(10 * SECOND, 10 * SECOND),))


def tracked(at: int, **options: Any) -> Tracked:
    known = {"lateness": LATENESS, "idle": IDLE, "max_ahead": AHEAD, **options}
    return Tracked(at, f"source {at}", **known)


def timing(*origins: Tracked, job: int = FIRST, **options: Any) -> JobTiming:
    known: dict[str, Any] = {"windowing": TUMBLING, **options}
    return JobTiming(job, known.pop("windowing"), origins, **known)


def tally(origin: int = LEFT, latest: int = BEGINNING, rows: int = 1, **counts: int) -> Tally:
    """So many values were taken; without an event time, none."""
    return Tally(origin, rows if latest > BEGINNING else 0, latest, **counts)


class Story:
    """Epochs one after the other, at times that a test gives in seconds; so are event times."""

    def __init__(self, *timings: JobTiming, clocks: Watermarks | None = None) -> None:
        self.clocks = clocks or Watermarks(timings)
        self.incarnation = 1
        self.number = 0
        self.record: EpochRecord = plain_record(0)

    def epoch(
        self, at: float, *tallies: Tally, keys: int = 1, asked: int = BEGINNING, **more: Any
    ) -> JobClock:
        """Run an epoch in which map tasks counted this; the clock of the first job in it."""
        time = self.clocks.moment(round(at * SECOND))
        self.record = replace(
            plain_record(self.number, self.incarnation),
            time=time,
            clocks=self.clocks.at(time, self.incarnation, asked),
        )
        counted = {FIRST: Counted(tallies, keys), **more.get("others", {})}
        self.clocks = self.clocks.commit(self.record, counted)
        self.number += 1
        return self.record.clocks[self.clocks.timings[0].job]

    def watermark(self, at: float, *tallies: Tally, **options: Any) -> float | None:
        """The watermark of the first job in an epoch, in seconds; None at the beginning."""
        return in_seconds(self.epoch(at, *tallies, **options).watermark)

    def restart(self, stored: dict[str, Any] | None = None) -> None:
        """Resume from a manifest as the next incarnation does."""
        stored = self.clocks.to_manifest(IDS) if stored is None else stored
        self.clocks = Watermarks.from_manifest(self.clocks.timings, stored, IDS)
        self.incarnation += 1


def in_seconds(time: int) -> float | None:
    return None if time == BEGINNING else time / SECOND


def seen(origin: int, at: float, **counts: int) -> Tally:
    """Values of an origin, the newest of which has this event time, in seconds."""
    return tally(origin, round(at * SECOND), **counts)

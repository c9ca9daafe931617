"""Event time as people read it: the time part of a job's progress."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from millstream.coordinator.epochs import EpochResult
from millstream.observe.progress import Panes
from millstream.times import MICROSECOND, instant


def moment(time: int) -> datetime | None:
    """Microseconds since 1970 as a time; None for what no calendar has, such as the end."""
    try:
        return instant(time)
    except OverflowError:
        return None


def time_progress(result: EpochResult, job: int) -> dict[str, Any]:
    """The fields of ``JobProgress`` about event time; none for a job that reads none."""
    clock = result.record.clocks.get(job)
    if clock is None:
        return {}
    watermark = moment(clock.watermark)
    total = result.counted[job].total
    [timing] = [timing for timing in result.clocks.timings if timing.job == job]
    panes: Panes | None = None
    if timing.foldable:
        panes = "shared" if clock.folding else "values"
    return {
        "late": total.late,
        "ahead": total.ahead,
        "untimed": total.untimed,
        "watermark": watermark,
        "lag": None if watermark is None else (result.record.time - clock.watermark) * MICROSECOND,
        "panes": panes,
        "rate": result.clocks.jobs[job].rate.per_key if timing.is_measured else None,
    }

"""Event time as people read it: the time part of a job's progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from millstream.coordinator.epochs import EpochResult
from millstream.observe.progress import Panes

_ORIGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def moment(time: int) -> datetime | None:
    """Microseconds since 1970 as a time; None for what no calendar has, such as the end."""
    try:
        return _ORIGIN + time * _MICROSECOND
    except OverflowError:
        return None


def micros_of(time: datetime) -> int:
    """A time that knows its zone, in microseconds since 1970."""
    return (time - _ORIGIN) // _MICROSECOND


def time_progress(result: EpochResult, job: int) -> dict[str, Any]:
    """The fields of ``JobProgress`` about event time; none for a job without windows."""
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
        "lag": None if watermark is None else (result.record.time - clock.watermark) * _MICROSECOND,
        "panes": panes,
        "rate": result.clocks.jobs[job].rate.per_key if timing.is_measured else None,
    }

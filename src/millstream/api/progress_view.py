"""Jobs and epochs in terms of the contract, from reports of committed epochs."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.api import contract as c
from millstream.observe.progress import EpochProgress, JobProgress
from millstream.times import EPOCH

_WINDOW = 10.0  # seconds over which rates are averaged


def averaged(recent: Sequence[EpochProgress], now: float) -> tuple[list[EpochProgress], float]:
    """The epochs over which rates are averaged, and their time."""
    if not recent:
        return [], 1.0
    since = now - max(_WINDOW, 2 * recent[-1].seconds)
    window = [report for report in recent if report.time > since]
    if not window:
        return [], 1.0
    return window, max(1e-3, window[-1].time - window[0].time + window[0].seconds)


def jobs_of(recent: Sequence[EpochProgress], now: float) -> list[c.JobView]:
    """The jobs of the newest epoch, with their rates."""
    window, seconds = averaged(recent, now)
    newest = recent[-1].jobs if recent else {}
    return [_job(name, job, window, seconds) for name, job in newest.items()]


def _job(name: str, job: JobProgress, window: Sequence[EpochProgress], seconds: float) -> c.JobView:
    watermark = job.watermark
    return c.JobView(
        name=name,
        rows_per_second=sum(report.jobs[name].rows for report in window) / seconds,
        outputs_per_second=sum(report.jobs[name].outputs for report in window) / seconds,
        reduce_seconds=job.reduce_seconds,
        state_keys=job.state_keys,
        watermark=None if watermark is None else (watermark - EPOCH).total_seconds(),
        lag=None if job.lag is None else job.lag.total_seconds(),
        late=job.late,
        ahead=job.ahead,
        untimed=job.untimed,
        fused=list(job.fused),
    )


def epoch_of(report: EpochProgress) -> c.EpochView:
    """A committed epoch."""
    return c.EpochView(
        epoch=report.epoch,
        time=report.time,
        tries=report.tries,
        seconds=report.seconds,
        rows=report.rows,
        rejected=report.rejected,
        nodes=report.nodes,
        phases=[c.PhaseView(name=name, seconds=took) for name, took in report.phases.items()],
    )

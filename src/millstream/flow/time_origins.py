"""The origins of the event times of windowed jobs, and of jobs with timers, in a plan.

Upstream of such a job, through steps and unions, are its origins. A source, or a job without
windows, is *tracked*: map tasks measure the event times of its records. A windowed job has a
watermark already, which is *inherited*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.flow.plan import Plan
from millstream.flow.reducers import JoinReducer
from millstream.flow.vertices import JobVertex, SourceTiming, SourceVertex, Vertex
from millstream.flow.windows import EveryTime, GlobalWindow, Windowing


@dataclass(frozen=True)
class Tracked:
    """A source or a job without windows, and its event time options, in microseconds."""

    at: int
    name: str
    is_job: bool = False
    lateness: int = 0
    idle: int = SourceTiming.idle
    max_ahead: int = SourceTiming.max_ahead


@dataclass(frozen=True)
class JobTiming:
    """The inputs of the watermark of a job; one with timers has no windows.

    Results of an inherited job may be older than its watermark by its delay. ``foldable`` are
    jobs whose values can be aggregated in panes: windows of time, and a reducer that merges
    partial results.
    """

    job: int
    windowing: Windowing | None
    tracked: tuple[Tracked, ...] = ()
    inherited: tuple[int, ...] = ()
    foldable: bool = False
    delays: Mapping[int, int] = field(default_factory=dict, hash=False)

    @property
    def by_arrival(self) -> bool:
        """Whether windows are of processing time, which the time of epochs closes."""
        return self.windowing is not None and self.windowing.processing_time

    @property
    def always_folds(self) -> bool:
        """Whether values are aggregated in panes, where rates do not decide."""
        if not self.foldable or self.windowing is None:
            return True
        return self.windowing.panes is not False

    @property
    def early(self) -> int | None:
        """The interval of results of open windows, by the clock."""
        if self.windowing is None:
            return None
        for window in self.windowing.windows:
            if isinstance(window, GlobalWindow) and isinstance(window.trigger, EveryTime):
                return window.trigger.length
        return self.windowing.early

    @property
    def is_measured(self) -> bool:
        """Whether measured rates decide if values are aggregated in panes."""
        return self.paying_rate is not None

    @property
    def paying_rate(self) -> float | None:
        """The rate above which panes pay off, if measured rates decide."""
        if not self.foldable or self.windowing is None or self.windowing.panes is not None:
            return None
        return self.windowing.paying_rate


def timings_of(plan: Plan) -> tuple[JobTiming, ...]:
    """The timing of every job that reads event times, each after those that it inherits from."""
    return tuple(_timing(plan, at, job) for at, job in plan.jobs if job.reads_event_time)


def _timing(plan: Plan, at: int, job: JobVertex) -> JobTiming:
    windowing = job.windowing
    own = job.lateness if windowing is None else windowing.lateness
    tracked: list[Tracked] = []
    inherited: list[int] = []
    for origin in origins_of(plan, at):
        vertex = plan.vertices[origin]
        if isinstance(vertex, SourceVertex):
            known = vertex.timing
            lateness = known.lateness if own is None else own
            tracked.append(
                Tracked(
                    origin,
                    vertex.name,
                    lateness=lateness,
                    idle=known.idle,
                    max_ahead=known.max_ahead,
                )
            )
        elif isinstance(vertex, JobVertex) and vertex.windowing is None:
            tracked.append(Tracked(origin, vertex.name, is_job=True, lateness=own or 0))
        else:
            inherited.append(origin)
    return JobTiming(
        at,
        windowing,
        tuple(tracked),
        tuple(inherited),
        job.reducer.merges and windowing is not None and bool(windowing.time_windows),
        {origin: _delay(plan.vertices[origin]) for origin in inherited},
    )


def _delay(vertex: Vertex) -> int:
    """How far behind a job's watermark the times of its results may be.

    A result of a join has the time of a value, not the end of a window; and a value without a
    match is emitted long after its time.
    """
    if not isinstance(vertex, JobVertex) or not isinstance(vertex.reducer, JoinReducer):
        return 0
    assert vertex.windowing is not None
    at_once = not vertex.reducer.kept_sides and not vertex.windowing.time_windows
    return 0 if at_once else vertex.reducer.reach


def origins_of(plan: Plan, job: int) -> list[int]:
    """The sources and jobs upstream of a job, with only steps between, in plan order."""
    found: set[int] = set()
    seen: set[int] = set()
    pending = list(plan.inputs[job])
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        if isinstance(plan.vertices[at], SourceVertex | JobVertex):
            found.add(at)
        else:
            pending.extend(plan.inputs[at])
    return sorted(found)

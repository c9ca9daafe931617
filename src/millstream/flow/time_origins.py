"""The origins of the event times of windowed jobs in a plan.

Upstream of a windowed job, through steps and unions, are its origins. A source, or a job without
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
    """The inputs of the watermark of a windowed job.

    Results of an inherited job may be older than its watermark by its delay. ``foldable`` are
    jobs whose values can be aggregated in panes: windows of time, and a reducer that merges
    partial results.
    """

    job: int
    windowing: Windowing
    tracked: tuple[Tracked, ...] = ()
    inherited: tuple[int, ...] = ()
    foldable: bool = False
    delays: Mapping[int, int] = field(default_factory=dict, hash=False)

    @property
    def early(self) -> int | None:
        """The interval of results of open windows, by the clock."""
        for window in self.windowing.windows:
            if isinstance(window, GlobalWindow) and isinstance(window.trigger, EveryTime):
                return window.trigger.length
        return self.windowing.early

    @property
    def is_measured(self) -> bool:
        """Whether measured rates decide if values are aggregated in panes."""
        windowing = self.windowing
        return self.foldable and windowing.panes is None and windowing.paying_rate is not None


def timings_of(plan: Plan) -> tuple[JobTiming, ...]:
    """The timing of every windowed job, each after those that it inherits from."""
    return tuple(
        _timing(plan, at, job, job.windowing) for at, job in plan.jobs if job.windowing is not None
    )


def _timing(plan: Plan, at: int, job: JobVertex, windowing: Windowing) -> JobTiming:
    tracked: list[Tracked] = []
    inherited: list[int] = []
    for origin in origins_of(plan, at):
        vertex = plan.vertices[origin]
        if isinstance(vertex, SourceVertex):
            known = vertex.timing
            lateness = known.lateness if windowing.lateness is None else windowing.lateness
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
            tracked.append(
                Tracked(origin, vertex.name, is_job=True, lateness=windowing.lateness or 0)
            )
        else:
            inherited.append(origin)
    return JobTiming(
        at,
        windowing,
        tuple(tracked),
        tuple(inherited),
        job.reducer.merges and bool(windowing.time_windows),
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

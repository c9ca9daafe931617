"""The program: the part of a plan that executors run.

A plan without its sources, sinks and frames: the user's functions, who reads whom, and in which
stage each job lives. It is pickled once per run; the number of shuffle partitions is that of an
epoch's record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import cloudpickle

from millstream.flow.function_shipping import ship
from millstream.flow.fusion import Readers
from millstream.flow.plan import Plan
from millstream.flow.time_origins import origins_of
from millstream.flow.vertices import (
    BatchStep,
    BranchVertex,
    FrameVertex,
    JobVertex,
    RecordStep,
    Side,
    SideVertex,
    SinkVertex,
    SourceVertex,
    SplitVertex,
    UnionVertex,
    Vertex,
)

Element = RecordStep | BatchStep | SplitVertex | BranchVertex | JobVertex | SideVertex | str
UNION, SINK, FRAME, SOURCE = "union", "sink", "frame", "source"


@dataclass(frozen=True)
class Program:
    """The elements that run in Python, by position in the plan.

    ``origins`` has, for each vertex, the origin of the event times of its rows: the source or the
    job without windows upstream; None downstream of windows. ``readers`` has, for a job that
    others are fused into, the vertices that each window is for. The jobs of a group in
    ``shared_maps`` have one map on one stream.
    """

    workflow: str
    elements: tuple[Element, ...]
    consumers: tuple[tuple[int, ...], ...]
    levels: tuple[int, ...]
    slots: int
    origins: Mapping[int, int | None] = field(default_factory=dict)
    readers: Readers = field(default_factory=dict)
    shared_maps: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def jobs(self) -> dict[int, JobVertex]:
        return {at: e for at, e in enumerate(self.elements) if isinstance(e, JobVertex)}

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The jobs of each stage; stage 0 maps the sources and has none."""
        last = max((self.levels[job] for job in self.jobs), default=0)
        return tuple(
            tuple(job for job in self.jobs if self.levels[job] == level)
            for level in range(last + 1)
        )

    @cached_property
    def map_sharers(self) -> dict[int, tuple[int, ...]]:
        """For each job that shares its map, the jobs that do."""
        return {job: group for group in self.shared_maps for job in group}

    def sides(self, job: int) -> dict[int, Side]:
        """The side outputs of a job that are read."""
        found = ((at, self.elements[at]) for at in self.consumers[job])
        return {at: e.side for at, e in found if isinstance(e, SideVertex)}

    def is_read(self, job: int) -> bool:
        """Whether anything reads the results of a job, of jobs fused into it, or late values."""
        if len(self.consumers[job]) > len(self.sides(job)):
            return True
        vertex = self.jobs[job]
        sides = (self.elements[at] for at in self.sides(job))
        if any(isinstance(side, SideVertex) and side.is_behind(vertex) for side in sides):
            return True
        fused = {at for window in self.readers.get(job, ()) for at in window} - {job}
        return any(self.consumers[at] for at in fused)

    def readers_of(self, job: int, window: int) -> tuple[int, ...]:
        """The vertices that get the results of one of a job's windows."""
        return self.readers[job][window] if job in self.readers else (job,)

    def gives_time(self, job: int) -> bool:
        """Whether the event times of a job's results are read."""
        readers = {at for window in self.readers.get(job, ((job,),)) for at in window}
        return not readers.isdisjoint(self.timed_readers)

    @cached_property
    def timed_readers(self) -> frozenset[int]:
        """The vertices upstream of a job that reads the times of their rows."""
        found: set[int] = set()
        for at in reversed(range(len(self.elements))):
            for reader in self.consumers[at]:
                element = self.elements[reader]
                if isinstance(element, JobVertex):
                    takes = element.reads_event_time and element.time is None
                else:
                    takes = reader in found
                if takes:
                    found.add(at)
        return frozenset(found)

    @property
    def last_stage(self) -> int:
        return len(self.stages) - 1

    def width(self, stage: int, tasks: int) -> int:
        """How many tasks a stage has, with so many of each job."""
        return len(self.stages[stage]) * tasks

    def job_at(self, stage: int, route: int, tasks: int) -> tuple[int, int]:
        """The job of a stage's task, and the number of the task in the job."""
        return self.stages[stage][route // tasks], route % tasks

    def route_of(self, job: int, task: int, tasks: int) -> int:
        """Which task of its stage a task of a job is."""
        return self.stages[self.levels[job]].index(job) * tasks + task


def program_of(plan: Plan, slots: int) -> Program:
    """Strip a plan to what the executors need."""
    return Program(
        plan.name,
        tuple(map(_element, plan.vertices)),
        plan.consumers,
        plan.levels,
        slots,
        {at: _origin(plan, at) for at in range(len(plan.vertices))},
        plan.readers,
        plan.shared_maps,
    )


def _origin(plan: Plan, at: int) -> int | None:
    is_origin = isinstance(plan.vertices[at], SourceVertex | JobVertex)
    for origin in [at] if is_origin else origins_of(plan, at):
        vertex = plan.vertices[origin]
        if not isinstance(vertex, JobVertex) or vertex.windowing is None:
            return origin  # of several, upstream of a step in the JVM, the first is used for all
    return None


def _element(vertex: Vertex) -> Element:
    if isinstance(
        vertex, RecordStep | BatchStep | SplitVertex | BranchVertex | JobVertex | SideVertex
    ):
        return replace(vertex, inputs=())
    if isinstance(vertex, UnionVertex):
        return UNION
    if isinstance(vertex, SinkVertex):
        return SINK
    return FRAME if isinstance(vertex, FrameVertex) else SOURCE


@dataclass(frozen=True)
class Packed:
    """A pickled program with its digest; workers unpickle each program once."""

    digest: str
    data: bytes

    def __repr__(self) -> str:
        return f"Packed({self.digest[:8]}, {len(self.data)} bytes)"

    def read(self) -> bytes:
        """The pickled program."""
        return self.data


def pack(program: Program) -> Packed:
    """Pickle a program, functions by value."""
    data = ship(program)
    return Packed(hashlib.sha256(data).hexdigest(), data)


_KEPT = 4
_programs: dict[str, Program] = {}


def unpack(packed: Packed) -> Program:
    """The program behind its pickled form, from this process's cache."""
    program = _programs.get(packed.digest)
    if program is None:
        while len(_programs) >= _KEPT:
            _programs.pop(next(iter(_programs)))
        program = _programs[packed.digest] = cloudpickle.loads(packed.read())
    return program

"""The program: what a plan leaves for the executors to run.

A plan without its sources, sinks and frames: the user's functions, who reads whom, and in which
stage and partition each job lives. It is pickled once per run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import cloudpickle

from millstream.flow.plan import Plan
from millstream.flow.shipping import ship
from millstream.flow.vertices import (
    BatchStep,
    FrameVertex,
    JobVertex,
    RecordStep,
    SinkVertex,
    UnionVertex,
    Vertex,
)

Element = RecordStep | BatchStep | JobVertex | str
UNION, SINK, FRAME, SOURCE = "union", "sink", "frame", "source"


@dataclass(frozen=True)
class Program:
    """What runs in Python, by position in the plan."""

    workflow: str
    elements: tuple[Element, ...]
    consumers: tuple[tuple[int, ...], ...]
    levels: tuple[int, ...]
    slots: int
    partitions: int

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

    @property
    def last_stage(self) -> int:
        return len(self.stages) - 1

    def width(self, stage: int) -> int:
        """How many shuffle partitions a stage has."""
        return len(self.stages[stage]) * self.partitions

    def job_at(self, stage: int, partition: int) -> tuple[int, int]:
        """The job, and its own partition number, behind a shuffle partition."""
        return self.stages[stage][partition // self.partitions], partition % self.partitions


def program_of(plan: Plan, slots: int, partitions: int) -> Program:
    """Strip a plan to what the executors need."""
    return Program(
        plan.name,
        tuple(map(_element, plan.vertices)),
        plan.consumers,
        plan.levels,
        slots,
        partitions,
    )


def _element(vertex: Vertex) -> Element:
    if isinstance(vertex, RecordStep | BatchStep | JobVertex):
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
        program = _programs[packed.digest] = cloudpickle.loads(packed.data)
    return program

"""The plan: a workflow that was checked as a whole and put in order.

Names are resolved, cycles refused, and every job gets its level: the number of shuffles
between it and the sources. Vertices are known by their position in ``vertices`` from here on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from millstream.errors import WorkflowError
from millstream.flow.workflow import (
    FrameVertex,
    JobVertex,
    NamedVertex,
    SinkVertex,
    SourceVertex,
    Vertex,
    Workflow,
)


V = TypeVar("V", bound=Vertex)


@dataclass(frozen=True)
class Plan:
    """The vertices of a workflow, every one after its inputs."""

    name: str
    vertices: tuple[Vertex, ...]
    inputs: tuple[tuple[int, ...], ...]

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each vertex, those that read it."""
        readers: list[list[int]] = [[] for _ in self.vertices]
        for at, inputs in enumerate(self.inputs):
            for source in inputs:
                readers[source].append(at)
        return tuple(tuple(found) for found in readers)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each vertex, in which stage it runs: after how many shuffles."""
        levels: list[int] = []
        for vertex, inputs in zip(self.vertices, self.inputs, strict=True):
            level = max((levels[source] for source in inputs), default=0)
            levels.append(level + 1 if isinstance(vertex, JobVertex) else level)
        return tuple(levels)

    @cached_property
    def in_source_frame(self) -> tuple[bool, ...]:
        """Which vertices stay in the streaming DataFrames, ahead of any Python."""
        flags: list[bool] = []
        for vertex, inputs in zip(self.vertices, self.inputs, strict=True):
            jvm = isinstance(vertex, SourceVertex | FrameVertex)
            flags.append(jvm and all(flags[source] for source in inputs))
        return tuple(flags)

    def of_kind(self, kind: type[V]) -> list[tuple[int, V]]:
        """The vertices of one kind, with their positions."""
        return [(at, v) for at, v in enumerate(self.vertices) if isinstance(v, kind)]

    @property
    def jobs(self) -> list[tuple[int, JobVertex]]:
        return self.of_kind(JobVertex)

    @property
    def sinks(self) -> list[tuple[int, SinkVertex]]:
        return self.of_kind(SinkVertex)


def plan(workflow: Workflow) -> Plan:
    """Check a workflow as a whole and put it in order."""
    known = workflow._vertices
    jobs = [vertex for vertex in known.values() if isinstance(vertex, JobVertex)]
    roots: list[Vertex] = [*workflow._sinks.values(), *jobs]
    if not roots:
        raise WorkflowError(
            f"workflow {workflow.name!r} has neither a job nor a sink",
            "add .map_reduce(...) or .sink(...) to a stream",
        )
    order: list[Vertex] = []
    position: dict[int, int] = {}
    inputs: list[tuple[int, ...]] = []
    path: list[Vertex] = []

    def resolve(vertex: Vertex) -> Vertex:
        if not isinstance(vertex, NamedVertex):
            return vertex
        if vertex.name not in known:
            raise WorkflowError(
                f"there is no source or job called {vertex.name!r}",
                f"use one of {', '.join(sorted(known)) or '(none is defined)'}",
                vertex.place,
            )
        return known[vertex.name]

    def visit(vertex: Vertex) -> int:
        vertex = resolve(vertex)
        if id(vertex) in position:
            return position[id(vertex)]
        if any(vertex is earlier for earlier in path):
            start = next(i for i, earlier in enumerate(path) if earlier is vertex)
            names = [v.name for v in path[start:] if isinstance(v, JobVertex)]
            raise WorkflowError(
                f"the workflow has a cycle: {' → '.join([*reversed(names), names[-1]])}",
                "a job may only read what does not depend on it",
                vertex.place,
            )
        path.append(vertex)
        found = tuple(visit(source) for source in vertex.inputs)
        path.pop()
        position[id(vertex)] = len(order)
        order.append(vertex)
        inputs.append(found)
        return position[id(vertex)]

    for root in roots:
        visit(root)
    return Plan(workflow.name, tuple(order), tuple(inputs))

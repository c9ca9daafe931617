"""The plan: a workflow that was validated as a whole and sorted topologically.

Names are resolved, cycles rejected, equal work is merged (``fusion.py``), and every job gets its
level: the number of shuffles between it and the sources. From here on vertices are identified by
their position in ``vertices``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from millstream.errors import Place, WorkflowError
from millstream.flow.fusion import Readers, Sameness, fuse_jobs, merge_steps, shared_maps
from millstream.flow.vertices import (
    FrameVertex,
    FusedVertex,
    JobVertex,
    NamedVertex,
    SideVertex,
    SinkVertex,
    SourceVertex,
    Vertex,
)

if TYPE_CHECKING:
    from millstream.flow.workflow import Workflow

V = TypeVar("V", bound=Vertex)


@dataclass(frozen=True)
class Plan:
    """The vertices of a workflow, every one after its inputs.

    Jobs that differ in their windows alone are reduced by the first of them. The others are
    ``FusedVertex`` from here on, and no jobs; ``readers`` has, for each job that others are fused
    into, and each of its windows, the vertices whose consumers get the results. The jobs of one
    group in ``shared_maps`` have the same map on the same stream. ``merged`` has the other places
    of steps that were written several times.
    """

    name: str
    vertices: tuple[Vertex, ...]
    inputs: tuple[tuple[int, ...], ...]
    readers: Readers = field(default_factory=dict)
    shared_maps: tuple[tuple[int, ...], ...] = ()
    merged: Mapping[int, tuple[Place, ...]] = field(default_factory=dict)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each vertex, those that read it; results reach fused jobs through ``readers``."""
        readers: list[list[int]] = [[] for _ in self.vertices]
        for at, inputs in enumerate(self.inputs):
            if not isinstance(self.vertices[at], FusedVertex):
                for source in inputs:
                    readers[source].append(at)
        return tuple(tuple(found) for found in readers)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The stage of each vertex: the number of shuffles before it.

        Side outputs of a job run where its map does, before the shuffle, unless its operator
        decides what is late.
        """
        levels: list[int] = []
        for vertex, inputs in zip(self.vertices, self.inputs, strict=True):
            level = max((levels[source] for source in inputs), default=0)
            if isinstance(vertex, JobVertex):
                level += 1
            elif isinstance(vertex, SideVertex) and not vertex.is_behind(self.vertices[inputs[0]]):
                level -= 1
            levels.append(level)
        return tuple(levels)

    @cached_property
    def in_source_frame(self) -> tuple[bool, ...]:
        """Which vertices are part of the streaming DataFrames, before any Python."""
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
    def downstream(self) -> tuple[str, ...]:
        """The names of the jobs that read results of other jobs."""
        return tuple(job.name for at, job in self.jobs if self.levels[at] > 1)

    def fused_into(self, job: int) -> list[tuple[int, FusedVertex]]:
        """The jobs whose windows a job reduces along with its own."""
        return [(at, v) for at, v in self.of_kind(FusedVertex) if self.inputs[at] == (job,)]

    @property
    def sinks(self) -> list[tuple[int, SinkVertex]]:
        return self.of_kind(SinkVertex)


def plan(workflow: Workflow) -> Plan:
    """Validate a workflow as a whole and sort its vertices."""
    known = workflow._vertices
    jobs = [vertex for vertex in known.values() if isinstance(vertex, JobVertex)]
    roots: list[Vertex] = [*workflow._sinks.values(), *jobs]
    if not roots:
        raise WorkflowError(
            f"workflow {workflow.name!r} has neither a job nor a sink",
            "add .map_reduce(...) or .sink(...) to a stream",
            workflow._place,
        )
    order = _in_order(roots, known)
    position = {vertex: at for at, vertex in enumerate(order)}
    inputs = tuple(tuple(position[source] for source in sources) for sources in order.values())
    same = Sameness()
    steps = merge_steps(tuple(order), inputs, same)
    graph, readers = fuse_jobs(steps, [job.name for job in jobs], same)
    return Plan(
        workflow.name,
        graph.vertices,
        graph.inputs,
        readers,
        shared_maps(graph, same),
        graph.merged,
    )


def _in_order(roots: list[Vertex], known: Mapping[str, Vertex]) -> dict[Vertex, tuple[Vertex, ...]]:
    """List the vertices that the roots need, each after its inputs, with those inputs."""
    done: dict[Vertex, tuple[Vertex, ...]] = {}
    for root in roots:
        path = [root]  # each reads the next; not recursive, as a path may be long
        while path:
            sources = tuple(_resolved(source, known) for source in path[-1].inputs)
            missing = next((source for source in sources if source not in done), None)
            if missing is None:
                done[path.pop()] = sources
            elif missing in path:
                raise _cycle(path[path.index(missing) :], known)
            else:
                path.append(missing)
    return done


def _resolved(vertex: Vertex, known: Mapping[str, Vertex]) -> Vertex:
    if not isinstance(vertex, NamedVertex):
        return vertex
    if vertex.name not in known:
        raise WorkflowError(
            f"there is no source or job called {vertex.name!r}",
            f"use one of {', '.join(sorted(known))}" if known else "define it",
            vertex.place,
        )
    return known[vertex.name]


def _cycle(path: list[Vertex], known: Mapping[str, Vertex]) -> WorkflowError:
    names = [vertex.name for vertex in reversed(path) if isinstance(vertex, JobVertex)]
    # Only a name can refer to a later vertex, so a cycle has at least one.
    reference = next(
        source
        for vertex in path
        for source in vertex.inputs
        if isinstance(source, NamedVertex) and known[source.name] in path
    )
    return WorkflowError(
        f"the workflow has a cycle: {' → '.join([*names, names[0]])}",
        f"a job may only read what does not depend on it: change flow.stream({reference.name!r})",
        reference.place,
    )

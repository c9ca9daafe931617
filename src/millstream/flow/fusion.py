"""Sharing of equal work: equal steps and equal maps run once, and jobs with equal panes are fused.

Functions are equal if they are one object, or if the bytes that would be shipped are equal; users'
functions are deterministic, so equal bytes give equal results. Sources and sinks are never merged:
each has a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from millstream.errors import Place
from millstream.flow.function_shipping import ship
from millstream.flow.functions import FrameStep, SqlStep
from millstream.flow.reducers import WindowReducer
from millstream.flow.vertices import (
    BatchStep,
    BranchVertex,
    FrameVertex,
    FusedVertex,
    JobVertex,
    RecordStep,
    SideVertex,
    SplitVertex,
    UnionVertex,
    Vertex,
)
from millstream.flow.windows import Window, Windowing

Inputs = tuple[tuple[int, ...], ...]
Readers = Mapping[int, tuple[tuple[int, ...], ...]]

_MERGED = (RecordStep, BatchStep, SplitVertex, BranchVertex, FrameVertex, UnionVertex, SideVertex)
_PLAIN = (str, bool, tuple, SqlStep, Windowing, pa.Schema, pa.DataType, type(None))
_OF_JOB = ("map", "combine", "key", "time", "reducer", "key_type", "output", "durable")


@dataclass(frozen=True)
class Graph:
    """Vertices, every one after its inputs, and the positions of these.

    ``merged`` has the other places where a step was written.
    """

    vertices: tuple[Vertex, ...]
    inputs: Inputs
    merged: Mapping[int, tuple[Place, ...]] = field(default_factory=dict)


class Sameness:
    """Compares options of vertices, functions by their shipped bytes."""

    def __init__(self) -> None:
        self._shipped: dict[int, tuple[object, bytes]] = {}

    def __call__(self, one: object, other: object) -> bool:
        if one is other:
            return True
        if type(one) is not type(other) or isinstance(one, FrameStep):
            return False  # the function of a frame step stays in the driver, and may hold anything
        if isinstance(one, _PLAIN):
            return one == other
        return self._bytes(one) == self._bytes(other)

    def _bytes(self, value: object) -> bytes:
        if id(value) not in self._shipped:  # with the value, or its id could be reused
            self._shipped[id(value)] = value, ship(value)
        return self._shipped[id(value)][1]


def merge_steps(vertices: Sequence[Vertex], inputs: Inputs, same: Sameness) -> Graph:
    """Merge equal steps of the same input into one vertex."""
    kept: list[Vertex] = []
    of_kept: list[tuple[int, ...]] = []
    places: dict[int, tuple[Place, ...]] = {}
    known: dict[tuple[object, ...], list[int]] = {}
    position: list[int] = []
    for vertex, sources in zip(vertices, inputs, strict=True):
        now = tuple(position[source] for source in sources)
        alike: list[int] = []
        if isinstance(vertex, _MERGED):
            alike = known.setdefault((type(vertex), now), [])
        twin = next((at for at in alike if _same_step(kept[at], vertex, same)), None)
        if twin is None:
            alike.append(len(kept))
            position.append(len(kept))
            kept.append(vertex)
            of_kept.append(now)
        else:
            position.append(twin)
            if vertex.place not in (kept[twin].place, *places.get(twin, ())):
                places[twin] = (*places.get(twin, ()), vertex.place)
    return Graph(tuple(kept), tuple(of_kept), places)


def _same_step(one: Vertex, other: Vertex, same: Sameness) -> bool:
    """Whether two vertices of one kind and input are equal."""
    fields = ("kind", "function", "schema", "holds", "step", "side", "key", "time")
    return all(same(getattr(one, f, None), getattr(other, f, None)) for f in fields)


@dataclass
class _Group:
    """Jobs that can be reduced together, by the first of them."""

    jobs: list[int]
    windows: set[Window]
    late_read: bool

    def takes(self, windows: Sequence[Window], late_read: bool) -> bool:
        # A value is late if all windows are closed; readers of late values need those of their job.
        alone = self.late_read or late_read
        return not alone or set(windows) == self.windows

    def add(self, job: int, windows: Sequence[Window], late_read: bool) -> None:
        self.jobs.append(job)
        self.windows |= set(windows)
        self.late_read |= late_read


def fuse_jobs(graph: Graph, written: Sequence[str], same: Sameness) -> tuple[Graph, Readers]:
    """Fuse jobs that differ in their windows of time alone into the first of them.

    That is the first in the order in which jobs were ``written``: it owns the state, which a new
    sink elsewhere should not change.
    """
    sides = [
        (vertex.side, inputs[0])
        for vertex, inputs in zip(graph.vertices, graph.inputs, strict=True)
        if isinstance(vertex, SideVertex)
    ]
    groups: list[_Group] = []
    position = {v.name: at for at, v in enumerate(graph.vertices) if isinstance(v, JobVertex)}
    for at in map(position.__getitem__, written):
        windowing = _shareable(graph.vertices[at])
        if windowing is None:
            continue
        late_read = ("late", at) in sides
        for group in groups:
            alike = _same_job(graph, group.jobs[0], at, same)
            if alike and group.takes(windowing.windows, late_read):
                group.add(at, windowing.windows, late_read)
                break
        else:
            groups.append(_Group([at], set(windowing.windows), late_read))
    return _fused(*_together(graph, [group.jobs for group in groups if len(group.jobs) > 1]))


def _shareable(vertex: Vertex) -> Windowing | None:
    if not isinstance(vertex, JobVertex) or vertex.windowing is None or not vertex.share:
        return None
    if isinstance(vertex.reducer, WindowReducer) and vertex.reducer.takes_state:
        return None  # each job has the state of its own windows
    return vertex.windowing if vertex.windowing.time_windows else None


def _same_job(graph: Graph, one: int, other: int, same: Sameness) -> bool:
    """Whether two windowed jobs differ in their names and windows alone."""
    first, second = graph.vertices[one], graph.vertices[other]
    assert isinstance(first, JobVertex) and isinstance(second, JobVertex)
    assert first.windowing is not None and second.windowing is not None
    return (
        graph.inputs[one] == graph.inputs[other]
        and replace(first.windowing, windows=()) == replace(second.windowing, windows=())
        and all(same(getattr(first, f), getattr(second, f)) for f in _OF_JOB)
    )


def _together(graph: Graph, groups: Sequence[list[int]]) -> tuple[Graph, list[list[int]]]:
    """Order the jobs of each group one after the other, where the first of them is."""
    heads = {min(jobs): jobs for jobs in groups}
    moved = {at for jobs in groups for at in jobs}
    order: list[int] = []
    for at in range(len(graph.vertices)):
        order += heads.get(at, [] if at in moved else [at])
    position = {old: new for new, old in enumerate(order)}
    ordered = Graph(
        tuple(graph.vertices[old] for old in order),
        tuple(tuple(position[source] for source in graph.inputs[old]) for old in order),
        {position[old]: places for old, places in graph.merged.items()},
    )
    return ordered, [[position[old] for old in jobs] for jobs in groups]


def _fused(graph: Graph, groups: Sequence[list[int]]) -> tuple[Graph, Readers]:
    """Replace all jobs of a group but the first, which gets the windows of all."""
    vertices, inputs = list(graph.vertices), list(graph.inputs)
    hosts: dict[int, int] = {}
    readers: dict[int, tuple[tuple[int, ...], ...]] = {}
    for jobs in groups:
        first, *others = jobs
        of_job = {at: _windowing(vertices[at]).windows for at in jobs}
        windows = tuple(dict.fromkeys(window for at in jobs for window in of_job[at]))
        readers[first] = tuple(tuple(at for at in jobs if w in of_job[at]) for w in windows)
        host = vertices[first]
        assert isinstance(host, JobVertex)
        vertices[first] = replace(host, windowing=replace(_windowing(host), windows=windows))
        for at in others:
            job = vertices[at]
            assert isinstance(job, JobVertex)
            vertices[at] = FusedVertex(job.place, (vertices[first],), name=job.name, job=job)
            inputs[at], hosts[at] = (first,), first
    for at, vertex in enumerate(vertices):
        if isinstance(vertex, SideVertex):  # fused jobs have the same side outputs
            inputs[at] = tuple(hosts.get(source, source) for source in inputs[at])
    return Graph(tuple(vertices), tuple(inputs), graph.merged), readers


def _windowing(vertex: Vertex) -> Windowing:
    assert isinstance(vertex, JobVertex) and vertex.windowing is not None
    return vertex.windowing


def shared_maps(graph: Graph, same: Sameness) -> tuple[tuple[int, ...], ...]:
    """The groups of jobs that have one map on one stream: it runs once for each chunk."""
    groups: list[list[int]] = []
    for at, job in enumerate(graph.vertices):
        if not isinstance(job, JobVertex) or job.map is None:
            continue
        for group in groups:
            first = graph.vertices[group[0]]
            assert isinstance(first, JobVertex)
            if graph.inputs[group[0]] == graph.inputs[at] and same(first.map, job.map):
                group.append(at)
                break
        else:
            groups.append([at])
    return tuple(tuple(group) for group in groups if len(group) > 1)

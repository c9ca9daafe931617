"""The workflow as a graph: what never changes of it, and what is counted on its edges."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.api.contract import EdgeView, GraphView, JobView, VertexKind, VertexView
from millstream.flow.labels import sink_text, source_text, step_text
from millstream.flow.plan import Plan
from millstream.flow.vertices import (
    FusedVertex,
    JobVertex,
    SinkVertex,
    SourceVertex,
    Vertex,
)


def vertices_of(plan: Plan) -> list[VertexView]:
    """The vertices of a plan."""
    return [_vertex(at, vertex) for at, vertex in enumerate(plan.vertices)]


def graph_of(plan: Plan, vertices: list[VertexView], jobs: Mapping[str, JobView]) -> GraphView:
    """The graph with the rates of its edges: what a job emits, or what a job alone reads."""
    edges = [
        _edge(plan, source, target, jobs)
        for target, inputs in enumerate(plan.inputs)
        for source in inputs
    ]
    return GraphView(vertices=vertices, edges=edges)


def _vertex(at: int, vertex: Vertex) -> VertexView:
    kind: VertexKind = "step"
    name, text = None, step_text(vertex)
    match vertex:
        case SourceVertex():
            kind, name, text = "source", vertex.name, source_text(vertex.source)
        case JobVertex() | FusedVertex():
            kind, name = "job", vertex.name
        case SinkVertex():
            kind, name, text = "sink", vertex.name, sink_text(vertex.sink)
    return VertexView(id=at, kind=kind, name=name, text=text)


def _edge(plan: Plan, source: int, target: int, jobs: Mapping[str, JobView]) -> EdgeView:
    rate = watermark = None
    before, after = plan.vertices[source], plan.vertices[target]
    if isinstance(before, JobVertex) and before.name in jobs:
        rate = jobs[before.name].outputs_per_second
        watermark = jobs[before.name].watermark
    elif isinstance(after, JobVertex) and after.name in jobs:
        watermark = jobs[after.name].watermark
        if len(plan.inputs[target]) == 1:
            rate = jobs[after.name].rows_per_second
    return EdgeView(source=source, target=target, rows_per_second=rate, watermark=watermark)

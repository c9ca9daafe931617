"""A plan as a table for notebooks: every vertex with its stage, its work and what it reads."""

from __future__ import annotations

from millstream.flow.drawing import kind_of, lines_of, links_of, stages_of
from millstream.flow.plan import Plan
from millstream.flow.vertices import FusedVertex, JobVertex, SinkVertex, SourceVertex, Vertex
from millstream.markup import Html, table

_HEADERS = ("Stage", "Kind", "Name", "Work", "Reads")


def graph_html(plan: Plan) -> Html:
    """The graph of a workflow, in the order of its streams."""
    reads: dict[int, list[str]] = {at: [] for at in range(len(plan.vertices))}
    for link in links_of(plan):
        reads[link.target].append(lines_of(plan.vertices[link.source])[0])
    stages = stages_of(plan)
    rows = [
        (
            stages[at],
            kind_of(plan.vertices[at]),
            *_name_and_work(plan.vertices[at]),
            ", ".join(reads[at]) or None,
        )
        for at in sorted(reads, key=stages.__getitem__)
    ]
    return table(f"Workflow {plan.name}", _HEADERS, rows)


def _name_and_work(vertex: Vertex) -> tuple[str | None, str]:
    lines = lines_of(vertex)
    if isinstance(vertex, SourceVertex | JobVertex | FusedVertex | SinkVertex):
        return lines[0], "; ".join(lines[1:])
    return None, lines[0]

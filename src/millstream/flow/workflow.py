"""Workflows: graphs of sources, jobs and sinks.

``streams.py`` has the steps between; ``plan.py`` validates and sorts the graph.
"""

from __future__ import annotations

from datetime import timedelta

from millstream.errors import Place, WorkflowError
from millstream.flow.checks import as_source, as_span, check_name
from millstream.flow.drawing import Drawing
from millstream.flow.explanation import explain
from millstream.flow.functions import caller
from millstream.flow.graph_html import graph_html
from millstream.flow.plan import plan
from millstream.flow.streams import Stream
from millstream.flow.vertices import (
    JobVertex,
    NamedVertex,
    SinkVertex,
    SourceTiming,
    SourceVertex,
    Vertex,
)
from millstream.markup import note


class Workflow:
    """A directed acyclic graph of sources, jobs and sinks."""

    def __init__(self, name: str) -> None:
        check_name(name, "workflow", caller())
        self.name = name
        self._place = caller()
        self._vertices: dict[str, SourceVertex | JobVertex] = {}
        self._sinks: dict[str, SinkVertex] = {}

    def source(
        self,
        name: str,
        source: object,
        *,
        lateness: timedelta = timedelta(0),
        idle_after: timedelta = timedelta(seconds=30),
        max_ahead: timedelta = timedelta(days=1),
    ) -> Stream:
        """Add a source: one of ``ms.read``, or any Spark streaming DataFrame.

        For windows: the watermark stays ``lateness`` behind the largest event time; a source
        without data for ``idle_after`` does not hold other sources back, and its watermark advances
        with the clock; a value more than ``max_ahead`` ahead of the clock goes to ``.ahead``.

        >>> views = flow.source("views", ms.read.rate(), lateness=timedelta(seconds=10))
        """
        place = caller()
        self._check_free(name, "source", place)
        timing = SourceTiming(
            as_span("lateness", lateness, place, zero=True),
            as_span("idle_after", idle_after, place),
            as_span("max_ahead", max_ahead, place),
        )
        vertex = SourceVertex(
            place, (), name=name, source=as_source(source, name, place), timing=timing
        )
        self._vertices[name] = vertex
        return Stream(self, vertex)

    def stream(self, name: str) -> Stream:
        """Refer to the stream of a source or job by name, also before it is defined.

        >>> flow.stream("spent").sink("out", ms.write.console())
        >>> spent = orders.key_by("user").reduce("spent", ms.sum("amount"))
        """
        place = caller()
        check_name(name, "stream", place)
        return Stream(self, NamedVertex(place, (), name=name))

    def explain(self) -> str:
        """The plan as text: stages, jobs, windows and panes, shared work and state.

        >>> orders.sink("copy", ms.write.parquet("copy/"))
        >>> flow.explain().splitlines()[0]
        'workflow docs: 1 source, 0 jobs, 1 sink, 0 shuffles'
        """
        return explain(plan(self))

    def draw(self) -> Drawing:
        """The plan as a graph: ``.mermaid``, which notebooks render, ``.dot`` or ``.save(path)``.

        >>> orders.sink("copy", ms.write.parquet("copy/"))
        >>> text = flow.draw().mermaid
        """
        return Drawing(plan(self))

    def _repr_html_(self) -> str:
        """The graph as a table, for notebooks, or what the workflow still lacks."""
        try:
            return graph_html(plan(self))
        except WorkflowError as problem:
            return note(f"Workflow {self.name} cannot run yet: {problem.what}; {problem.fix}")

    def _check_free(self, name: str, kind: str, place: Place) -> None:
        check_name(name, kind, place)
        taken = self._vertices.get(name) or self._sinks.get(name)
        if taken is not None:
            raise WorkflowError(
                f"the name {name!r} is taken by the {_KINDS[type(taken)]} at {taken.place}",
                f"give this {kind} another name",
                place,
            )


_KINDS: dict[type[Vertex], str] = {SourceVertex: "source", JobVertex: "job", SinkVertex: "sink"}

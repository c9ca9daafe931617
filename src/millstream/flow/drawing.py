"""A plan as a graph, in the languages of Mermaid and Graphviz.

Both are plain text; images are made of them by Mermaid (GitHub, GitLab, JupyterLab) and by ``dot``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Final, Literal

from millstream.errors import ConfigError
from millstream.flow.labels import (
    map_text,
    reduce_text,
    sink_text,
    source_text,
    step_text,
)
from millstream.flow.plan import Plan
from millstream.flow.vertices import (
    FusedVertex,
    JobVertex,
    SideVertex,
    SinkVertex,
    SourceVertex,
    Vertex,
)

Kind = Literal["source", "step", "job", "fused", "side", "sink"]
LinkKind = Literal["plain", "shuffle", "side", "fused"]

_COLORS: Final[Mapping[Kind, tuple[str, str]]] = {
    "source": ("#e3f1e5", "#3f8f55"),
    "step": ("#ffffff", "#8a939e"),
    "job": ("#e2ecfa", "#2f6cb5"),
    "fused": ("#f1f6fd", "#2f6cb5"),
    "side": ("#fdf1dc", "#c08422"),
    "sink": ("#f3e6f5", "#8e4b9c"),
}
_TEXT_COLOR: Final = "#1f2933"


@dataclass(frozen=True)
class Link:
    """From a vertex to one that reads it."""

    source: int
    target: int
    kind: LinkKind


@dataclass(frozen=True)
class Drawing:
    """A workflow as a graph: Mermaid by default, which notebooks render, or Graphviz."""

    plan: Plan

    @cached_property
    def mermaid(self) -> str:
        """The graph in Mermaid's language, for Markdown and notebooks."""
        return "\n".join(_mermaid(self.plan)) + "\n"

    @cached_property
    def dot(self) -> str:
        """The graph in the DOT language of Graphviz: ``dot -Tsvg`` makes an image of it."""
        return "\n".join(_dot(self.plan)) + "\n"

    def __str__(self) -> str:
        return self.mermaid

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/vnd.mermaid": self.mermaid, "text/plain": self.mermaid}

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file: ``.mmd`` or ``.md`` for Mermaid, ``.dot`` or ``.gv`` for Graphviz."""
        target = Path(path)
        match target.suffix.lower():
            case ".mmd":
                text = self.mermaid
            case ".md":
                text = f"```mermaid\n{self.mermaid}```\n"
            case ".dot" | ".gv":
                text = self.dot
            case _:
                raise ConfigError(
                    f"a drawing is saved as .mmd, .md, .dot or .gv, got {str(path)!r}"
                )
        target.write_text(text, encoding="utf-8")


def kind_of(vertex: Vertex) -> Kind:
    """The kind of a vertex, which decides its shape and color."""
    match vertex:
        case SourceVertex():
            return "source"
        case JobVertex():
            return "job"
        case FusedVertex():
            return "fused"
        case SideVertex():
            return "side"
        case SinkVertex():
            return "sink"
        case _:
            return "step"


def lines_of(vertex: Vertex) -> tuple[str, ...]:
    """The text in the box of a vertex; the first line is its name."""
    match vertex:
        case SourceVertex():
            return vertex.name, source_text(vertex.source)
        case SinkVertex():
            return vertex.name, sink_text(vertex.sink)
        case JobVertex():
            mapped = "" if vertex.map is None else f"{map_text(vertex.map)} → "
            work = f"{mapped}{reduce_text(vertex.reducer)}"
            windows = () if vertex.windowing is None else (str(vertex.windowing),)
            return vertex.name, work, *windows
        case FusedVertex():
            return vertex.name, str(vertex.job.windowing)
        case _:
            return (step_text(vertex),)


def links_of(plan: Plan) -> list[Link]:
    """Who reads whom; a fused job reads the job that it is fused with."""
    return [
        Link(source, at, _link_kind(plan.vertices[at]))
        for at, inputs in enumerate(plan.inputs)
        for source in dict.fromkeys(inputs)
    ]


def _link_kind(reader: Vertex) -> LinkKind:
    match reader:
        case JobVertex():
            return "shuffle"
        case SideVertex():
            return "side"
        case FusedVertex():
            return "fused"
        case _:
            return "plain"


def stages_of(plan: Plan) -> tuple[int, ...]:
    """The stage in which each vertex is drawn: side outputs beside their job, though its map gives
    them, so that every link goes downwards.
    """
    stages: list[int] = []
    for vertex, inputs in zip(plan.vertices, plan.inputs, strict=True):
        stage = max((stages[source] for source in inputs), default=0)
        stages.append(stage + 1 if isinstance(vertex, JobVertex) else stage)
    return tuple(stages)


def _stage_text(stage: int) -> str:
    return f"stage {stage}: {'shuffle and reduce' if stage else 'read'}"


# -- Mermaid -------------------------------------------------------------------------------

_ARROWS: Final[Mapping[LinkKind, str]] = {
    "plain": "-->",
    "shuffle": "==>",
    "side": "-.->",
    "fused": "-.->",
}
_BRACKETS: Final[Mapping[Kind, tuple[str, str]]] = {
    "source": ("([", "])"),
    "step": ("[", "]"),
    "job": ("[[", "]]"),
    "fused": ("[[", "]]"),
    "side": (">", "]"),
    "sink": ("[(", ")]"),
}


def _mermaid(plan: Plan) -> Iterator[str]:
    yield "flowchart TD"
    stages = stages_of(plan)
    for stage in range(max(stages) + 1):
        yield f'  subgraph stage{stage}["{_stage_text(stage)}"]'
        for at, vertex in enumerate(plan.vertices):
            if stages[at] == stage:
                before, after = _BRACKETS[kind_of(vertex)]
                text = "<br/>".join(_quoted(line) for line in lines_of(vertex))
                yield f'    v{at}{before}"{text}"{after}:::{kind_of(vertex)}'
        yield "  end"
    for link in links_of(plan):
        yield f"  v{link.source} {_ARROWS[link.kind]} v{link.target}"
    for kind, (fill, stroke) in _COLORS.items():
        yield f"  classDef {kind} fill:{fill},stroke:{stroke},color:{_TEXT_COLOR}"


def _quoted(line: str) -> str:
    """Text without characters that have a meaning to Mermaid."""
    plain = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
    return "".join(plain.get(letter, letter) for letter in " ".join(line.split()))


# -- Graphviz ------------------------------------------------------------------------------

_SHAPES: Final[Mapping[Kind, str]] = {
    "source": 'shape=box, style="filled,rounded"',
    "step": "shape=box, style=filled",
    "job": "shape=box, style=filled, penwidth=2",
    "fused": 'shape=box, style="filled,dashed"',
    "side": "shape=cds, style=filled",
    "sink": "shape=cylinder, style=filled",
}
_STYLES: Final[Mapping[LinkKind, str]] = {
    "plain": "solid",
    "shuffle": "bold",
    "side": "dashed",
    "fused": "dotted",
}


def _dot(plan: Plan) -> Iterator[str]:
    yield f"digraph {_dot_text(plan.name)} {{"
    yield f'  node [fontname="sans-serif", fontcolor="{_TEXT_COLOR}"];'
    stages = stages_of(plan)
    for stage in range(max(stages) + 1):
        yield f"  subgraph cluster_stage{stage} {{"
        yield f"    label={_dot_text(_stage_text(stage))};"
        for at, vertex in enumerate(plan.vertices):
            if stages[at] == stage:
                fill, stroke = _COLORS[kind_of(vertex)]
                colors = f'fillcolor="{fill}", color="{stroke}"'
                text = _dot_text(*lines_of(vertex))
                yield f"    v{at} [label={text}, {_SHAPES[kind_of(vertex)]}, {colors}];"
        yield "  }"
    for link in links_of(plan):
        yield f"  v{link.source} -> v{link.target} [style={_STYLES[link.kind]}];"
    yield "}"


def _dot_text(*lines: str) -> str:
    """A quoted string of DOT, with lines that are centered."""
    plain = (" ".join(line.split()) for line in lines)
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in plain)
    return '"' + "\\n".join(escaped) + '"'

"""A plan as a picture: SVG that needs nothing else, or Mermaid for documents that know it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
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
from millstream.flow.layout import GAP_X, Box, Laid, Link, lay_out
from millstream.flow.plan import Plan
from millstream.flow.vertices import (
    FusedVertex,
    JobVertex,
    SideVertex,
    SinkVertex,
    SourceVertex,
    Vertex,
)

Kind = Literal["source", "step", "job", "led", "side", "sink"]

_LONGEST: Final = 40
_LETTER: Final = 6.8  # a letter of 12 pixels in most fonts, on the safe side
_HEIGHT: Final = {1: 34, 2: 50, 3: 66}
_COLORS: Final[Mapping[Kind, tuple[str, str]]] = {
    "source": ("#e3f1e5", "#3f8f55"),
    "step": ("#ffffff", "#8a939e"),
    "job": ("#e2ecfa", "#2f6cb5"),
    "led": ("#f1f6fd", "#2f6cb5"),
    "side": ("#fdf1dc", "#c08422"),
    "sink": ("#f3e6f5", "#8e4b9c"),
}
_SHAPES: Final[Mapping[Kind, tuple[str, str]]] = {
    "source": ("([", "])"),
    "step": ("[", "]"),
    "job": ("[[", "]]"),
    "led": ("[[", "]]"),
    "side": (">", "]"),
    "sink": ("[(", ")]"),
}
_BANDS: Final = ("#f7f9fb", "#eef2f6")
_RULES: Final = {  # all of them below the class of the picture: a notebook is one page
    "text": "font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;"
    "fill:#1f2933;text-anchor:middle",
    ".detail": "fill:#52606d;font-size:11px",
    ".title": "font-weight:600",
    ".stage": "fill:#7b8794;font-size:11px;text-anchor:start;paint-order:stroke;stroke-width:5px",
    ".link": "fill:none;stroke:#7b8794;stroke-width:1.4",
    ".link.shuffle": "stroke:#2f6cb5;stroke-width:2.4",
    ".link.side": "stroke:#c08422;stroke-dasharray:5 3",
    ".link.led": "stroke:#2f6cb5;stroke-dasharray:2 3",
}


@dataclass(frozen=True)
class Drawing:
    """A workflow as a picture; notebooks show it by themselves."""

    plan: Plan

    @cached_property
    def svg(self) -> str:
        """A picture that needs no other file."""
        return "\n".join(_svg(self.plan)) + "\n"

    @cached_property
    def mermaid(self) -> str:
        """The graph in Mermaid's language, for Markdown."""
        return "\n".join(_mermaid(self.plan)) + "\n"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file: ``.svg``, or ``.mmd`` or ``.md`` for Mermaid."""
        target = Path(path)
        match target.suffix.lower():
            case ".svg":
                text = self.svg
            case ".mmd":
                text = self.mermaid
            case ".md":
                text = f"```mermaid\n{self.mermaid}```\n"
            case _:
                raise ConfigError(f"a drawing is saved as .svg, .mmd or .md, got {str(path)!r}")
        target.write_text(text, encoding="utf-8")


def kind_of(vertex: Vertex) -> Kind:
    """How a vertex is drawn."""
    match vertex:
        case SourceVertex():
            return "source"
        case JobVertex():
            return "job"
        case FusedVertex():
            return "led"
        case SideVertex():
            return "side"
        case SinkVertex():
            return "sink"
        case _:
            return "step"


def lines_of(vertex: Vertex) -> tuple[str, ...]:
    """What is written into the box of a vertex; the first line is its name."""
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
    """Who reads whom; a led job reads its leader."""
    return [
        Link(source, at, _link_kind(plan.vertices[at]))
        for at, inputs in enumerate(plan.inputs)
        for source in dict.fromkeys(inputs)
    ]


def _link_kind(reader: Vertex) -> str:
    match reader:
        case JobVertex():
            return "shuffle"
        case SideVertex():
            return "side"
        case FusedVertex():
            return "led"
        case _:
            return "plain"


def stages_of(plan: Plan) -> tuple[int, ...]:
    """In which stage each vertex is drawn: the sides of a job beside it, though its map finds them.

    So every link goes downwards.
    """
    stages: list[int] = []
    for vertex, inputs in zip(plan.vertices, plan.inputs, strict=True):
        stage = max((stages[source] for source in inputs), default=0)
        stages.append(stage + 1 if isinstance(vertex, JobVertex) else stage)
    return tuple(stages)


def _stage_text(stage: int) -> str:
    return f"stage {stage}: {'shuffle and reduce' if stage else 'read'}"


# -- SVG -----------------------------------------------------------------------------------


def _svg(plan: Plan) -> Iterator[str]:
    texts = [lines_of(vertex) for vertex in plan.vertices]
    shown = [tuple(_cut(line) for line in lines) for lines in texts]
    laid = lay_out([_box(lines) for lines in shown], links_of(plan), stages_of(plan))
    size = f"{laid.width:.0f} {laid.height:.0f}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{laid.width:.0f}" '
        f'height="{laid.height:.0f}" class="millstream" role="img" '
        'style="max-width:100%;height:auto">'
    )
    yield f"<title>{escape(plan.name)}</title>"
    rules = "".join(f".millstream {where}{{{rule}}}" for where, rule in _RULES.items())
    yield f"<style>{rules}</style>"
    yield (
        '<defs><marker id="millstream-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#52606d"/></marker></defs>'
    )
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    yield from _bands(laid)
    for link, points in laid.paths:
        yield (
            f'<path class="link {link.kind}" d="{_curve(points)}" '
            'marker-end="url(#millstream-tip)"/>'
        )
    yield from _stage_names(laid)
    for at, vertex in enumerate(plan.vertices):
        yield from _drawn(kind_of(vertex), laid.centers[at], shown[at], texts[at])
    yield "</svg>"


def _bands(laid: Laid) -> Iterator[str]:
    for stage, (top, bottom) in enumerate(laid.bands):
        yield (
            f'<rect class="band" x="0" y="{top:.1f}" width="{laid.width:.0f}" '
            f'height="{bottom - top:.1f}" fill="{_BANDS[stage % 2]}"/>'
        )


def _stage_names(laid: Laid) -> Iterator[str]:
    """After the links, and with a rim of the band's colour: a link may pass behind a name."""
    for stage, (top, _) in enumerate(laid.bands):
        yield (
            f'<text class="stage" x="8" y="{top + 15:.1f}" stroke="{_BANDS[stage % 2]}">'
            f"{escape(_stage_text(stage))}</text>"
        )


def _drawn(
    kind: Kind, center: tuple[float, float], shown: tuple[str, ...], full: tuple[str, ...]
) -> Iterator[str]:
    x, y = center
    box = _box(shown)
    fill, stroke = _COLORS[kind]
    round_ = box.height / 2 if kind == "source" else 4 if kind in ("job", "led") else 9
    dash = ' stroke-dasharray="4 3"' if kind == "led" else ""
    yield f'<g class="vertex {kind}"><title>{escape(chr(10).join(full))}</title>'
    yield (
        f'<rect x="{x - box.width / 2:.1f}" y="{y - box.height / 2:.1f}" '
        f'width="{box.width:.1f}" height="{box.height}" rx="{round_}" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="{1.8 if kind == "job" else 1.2}"{dash}/>'
    )
    first = y - (len(shown) - 1) * 8 + 4
    for number, line in enumerate(shown):
        named = number == 0 and kind != "step"
        style = ' class="title"' if named else ' class="detail"' if number else ""
        yield f'<text x="{x:.1f}" y="{first + 16 * number:.1f}"{style}>{escape(line)}</text>'
    yield "</g>"


def _curve(points: tuple[tuple[float, float], ...]) -> str:
    """A line down through points, upright where it passes them."""
    (x, y), *others = points
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in others:
        middle = (y + to_y) / 2
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return path


def _box(lines: tuple[str, ...]) -> Box:
    widest = max(map(len, lines)) * _LETTER + GAP_X
    return Box(max(70.0, widest), _HEIGHT[len(lines)])


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


# -- Mermaid -------------------------------------------------------------------------------

_ARROWS: Final = {"plain": "-->", "shuffle": "==>", "side": "-.->", "led": "-.->"}


def _mermaid(plan: Plan) -> Iterator[str]:
    yield "flowchart TD"
    stages = stages_of(plan)
    for stage in range(max(stages) + 1):
        yield f'  subgraph stage{stage}["{_stage_text(stage)}"]'
        for at, vertex in enumerate(plan.vertices):
            if stages[at] == stage:
                before, after = _SHAPES[kind_of(vertex)]
                text = "<br/>".join(_quoted(line) for line in lines_of(vertex))
                yield f'    v{at}{before}"{text}"{after}:::{kind_of(vertex)}'
        yield "  end"
    for link in links_of(plan):
        yield f"  v{link.source} {_ARROWS[link.kind]} v{link.target}"
    for kind, (fill, stroke) in _COLORS.items():
        yield f"  classDef {kind} fill:{fill},stroke:{stroke},color:#1f2933"


def _quoted(line: str) -> str:
    """Text that Mermaid takes for nothing but text."""
    plain = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
    return "".join(plain.get(letter, letter) for letter in " ".join(line.split()))

"""The plan as a graph, in Mermaid and in DOT."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.flow.drawing import links_of, stages_of
from millstream.flow.plan import plan
from millstream.flow.workflow import Workflow
from tests.flow.test_explanation import averages, orders, word_count


def named(name: str) -> Callable[[Any], Any]:
    """A function with any name."""

    def function(record: Any) -> Any:
        return record

    function.__qualname__ = name
    return function


def wide() -> Workflow:
    """Fan-out and fan-in."""
    flow = Workflow("wide")
    source = flow.source("in", ms.read.rate())
    parts = [source]
    for _ in range(4):
        parts.append(parts[-1].map(named(f"f{len(parts)}")))
    joined = parts[0].union(*parts[1:])
    for name in ("a", "b", "c"):
        joined.filter(named(name)).map_reduce(name, reduce=ms.count()).sink(
            f"of_{name}", ms.write.console()
        )
    source.sink("raw", ms.write.console())
    return flow


FLOWS = [word_count, averages, orders, wide]


def test_every_link_goes_to_the_same_stage_or_a_later_one() -> None:
    for make in FLOWS:
        planned = plan(make())
        stages = stages_of(planned)

        assert all(stages[link.source] <= stages[link.target] for link in links_of(planned))


def test_kinds_of_links_tell_shuffles_side_outputs_and_fused_jobs_apart() -> None:
    kinds = [link.kind for link in links_of(plan(averages()))]

    assert kinds.count("shuffle") == 3
    assert kinds.count("side") == 1
    assert kinds.count("fused") == 1


# -- Mermaid -------------------------------------------------------------------------------


def test_mermaid_has_a_subgraph_for_each_stage() -> None:
    assert (
        word_count()
        .draw()
        .mermaid.startswith(
            """\
flowchart TD
  subgraph stage0["stage 0: read"]
    v0(["lines<br/>text files in books"]):::source
  end
  subgraph stage1["stage 1: shuffle and reduce"]
    v1[["counts<br/>words → value=count()"]]:::job
    v2[("out<br/>parquet files in counts")]:::sink
  end
  v0 ==> v1
  v1 --> v2
  classDef source """
        )
    )


@pytest.mark.parametrize("make", FLOWS)
def test_mermaid_names_every_vertex_once_and_links_those_it_names(
    make: Callable[[], Workflow],
) -> None:
    flow = make()
    text = flow.draw().mermaid

    vertices = re.findall(r'^    (v\d+)\S*"', text, re.MULTILINE)
    links = re.findall(r"^  (v\d+) (?:-->|==>|-\.->) (v\d+)$", text, re.MULTILINE)
    assert sorted(vertices) == sorted(f"v{at}" for at in range(len(plan(flow).vertices)))
    assert len(links) == len(links_of(plan(flow)))
    assert {end for link in links for end in link} <= set(vertices)


def test_names_of_users_are_text_in_mermaid() -> None:
    flow = Workflow("w")
    evil = '"]; end `x` <b> #1 &'
    flow.source("in", ms.read.rate()).map(named(evil)).sink("out", ms.write.console())

    text = flow.draw().mermaid

    assert 'v1["map #quot;]; end #96;x#96; #lt;b#gt; #35;1 #amp;"]:::step' in text


def test_a_notebook_renders_mermaid() -> None:
    drawing = word_count().draw()

    assert drawing._repr_mimebundle_()["text/vnd.mermaid"] == drawing.mermaid == str(drawing)


# -- Graphviz ------------------------------------------------------------------------------


def test_dot_has_a_cluster_for_each_stage() -> None:
    lines = word_count().draw().dot.splitlines()

    assert lines[0] == 'digraph "word_count" {'
    assert [line.strip() for line in lines if "label=" in line and "[" not in line] == [
        'label="stage 0: read";',
        'label="stage 1: shuffle and reduce";',
    ]
    assert '    v0 [label="lines\\ntext files in books", shape=box' in lines[4]
    assert lines[-3:] == ["  v0 -> v1 [style=bold];", "  v1 -> v2 [style=solid];", "}"]


@pytest.mark.parametrize("make", FLOWS)
def test_dot_names_every_vertex_once_and_links_those_it_names(
    make: Callable[[], Workflow],
) -> None:
    flow = make()
    text = flow.draw().dot

    vertices = re.findall(r"^    (v\d+) \[label=", text, re.MULTILINE)
    links = re.findall(r"^  (v\d+) -> (v\d+) ", text, re.MULTILINE)
    assert sorted(vertices) == sorted(f"v{at}" for at in range(len(plan(flow).vertices)))
    assert links == [(f"v{link.source}", f"v{link.target}") for link in links_of(plan(flow))]
    assert text.count("{") == text.count("}")


def test_names_of_users_are_text_in_dot() -> None:
    flow = Workflow("w")
    evil = '"]; \\ x -> y'
    flow.source("in", ms.read.rate()).map(named(evil)).sink("out", ms.write.console())

    text = flow.draw().dot

    assert r'v1 [label="map \"]; \\ x -> y", shape=box' in text


# -- files ---------------------------------------------------------------------------------


def test_a_drawing_is_saved_in_the_format_of_its_name(tmp_path: Path) -> None:
    drawing = word_count().draw()

    for name in ("a.mmd", "a.md", "a.dot", "a.gv"):
        drawing.save(tmp_path / name)

    assert (tmp_path / "a.mmd").read_text("utf-8") == drawing.mermaid
    assert (tmp_path / "a.md").read_text("utf-8") == f"```mermaid\n{drawing.mermaid}```\n"
    assert (tmp_path / "a.dot").read_text("utf-8") == drawing.dot
    assert (tmp_path / "a.gv").read_text("utf-8") == drawing.dot


def test_other_formats_are_refused_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.mmd, \.md, \.dot or \.gv, got .*a\.png"):
        word_count().draw().save(tmp_path / "a.png")

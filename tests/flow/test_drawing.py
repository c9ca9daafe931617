"""The plan as a picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.flow.drawing import Drawing, links_of, stages_of
from millstream.flow.layout import Box, Link, lay_out
from millstream.flow.plan import plan
from millstream.flow.workflow import Workflow
from tests.flow.test_explanation import averages, orders, word_count

SVG = "{http://www.w3.org/2000/svg}"


def named(name: str) -> Callable[[Any], Any]:
    """A function with a name that a file format could choke on."""

    def function(record: Any) -> Any:
        return record

    function.__qualname__ = name
    return function


def parsed(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.svg)


def boxes(drawing: Drawing) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, right and bottom of each vertex, by what its tooltip says."""
    found: dict[str, tuple[float, float, float, float]] = {}
    for group in parsed(drawing).iter(f"{SVG}g"):
        rect, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
        assert rect is not None and title is not None
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        found[f"{title.text} {len(found)}"] = (x, y, x + width, y + height)
    return found


def points(path: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def wide() -> Workflow:
    """Fan-out, fan-in, and links that pass several rows."""
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


# -- SVG -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", FLOWS)
def test_every_vertex_is_a_box_and_every_reading_a_line(make: Callable[[], Workflow]) -> None:
    flow = make()
    root = parsed(flow.draw())

    paths = [path for path in root.iter(f"{SVG}path") if path.get("class", "").startswith("link")]
    assert len(list(root.iter(f"{SVG}g"))) == len(plan(flow).vertices)
    assert len(paths) == len(links_of(plan(flow)))


@pytest.mark.parametrize("make", FLOWS)
def test_boxes_do_not_overlap_and_are_inside_the_picture(make: Callable[[], Workflow]) -> None:
    drawing = make().draw()
    width, height = (float(parsed(drawing).attrib[name]) for name in ("width", "height"))

    for left, top, right, bottom in boxes(drawing).values():
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for one, other in combinations(boxes(drawing).values(), 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart


@pytest.mark.parametrize("make", FLOWS)
def test_lines_go_down_and_touch_what_they_join(make: Callable[[], Workflow]) -> None:
    flow = make()
    places = list(boxes(flow.draw()).values())
    links = links_of(plan(flow))
    paths = [p.attrib["d"] for p in parsed(flow.draw()).iter(f"{SVG}path") if "class" in p.attrib]

    for link, path in zip(links, paths, strict=True):
        (x, y), *_, (to_x, to_y) = points(path)
        upper, lower = places[link.source], places[link.target]
        assert y == pytest.approx(upper[3], abs=0.1)
        assert to_y == pytest.approx(lower[1], abs=0.1)
        assert upper[0] < x < upper[2]
        assert lower[0] < to_x < lower[2]
        assert y < to_y


@pytest.mark.parametrize("make", FLOWS)
def test_lines_pass_beside_the_boxes_of_other_vertices(make: Callable[[], Workflow]) -> None:
    flow = make()
    places = list(boxes(flow.draw()).values())
    links = links_of(plan(flow))
    paths = [p.attrib["d"] for p in parsed(flow.draw()).iter(f"{SVG}path") if "class" in p.attrib]

    for link, path in zip(links, paths, strict=True):
        for at, (left, top, right, bottom) in enumerate(places):
            if at not in (link.source, link.target):
                inside = [(x, y) for x, y in points(path) if left < x < right and top < y < bottom]
                assert inside == []


def test_each_stage_is_a_band_with_its_boxes() -> None:
    flow = averages()
    root = parsed(flow.draw())

    bands = [
        (float(rect.attrib["y"]), float(rect.attrib["y"]) + float(rect.attrib["height"]))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("class") == "band"
    ]
    assert len(bands) == 3
    for stage, (_, top, _, bottom) in zip(
        stages_of(plan(flow)), boxes(flow.draw()).values(), strict=True
    ):
        assert bands[stage][0] <= top
        assert bottom <= bands[stage][1]


def test_kinds_of_lines_tell_shuffles_sides_and_led_jobs_apart() -> None:
    flow = averages()

    kinds = [path.get("class") for path in parsed(flow.draw()).iter(f"{SVG}path")]

    assert kinds.count("link shuffle") == 3
    assert kinds.count("link side") == 1
    assert kinds.count("link led") == 1


def test_names_of_users_are_text_and_nothing_else() -> None:
    flow = Workflow("w")
    evil = '<script>alert("x")</script> & \']]>'
    flow.source("in", ms.read.text(evil)).map(named(evil)).sink("out", ms.write.console())

    root = parsed(flow.draw())

    assert not any("script" in element.tag for element in root.iter())
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert f"map {evil}" in titles
    assert f"in\ntext files in {evil}" in titles


def test_long_texts_are_cut_and_told_in_full_by_the_tooltip() -> None:
    flow = Workflow("w")
    flow.source("in", ms.read.rate()).map(named("f" * 500)).sink("out", ms.write.console())

    root = parsed(flow.draw())

    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert max(map(len, texts)) <= 40
    assert any(text.endswith("…") for text in texts)
    assert any("f" * 500 in (title.text or "") for title in root.iter(f"{SVG}title"))


def test_the_picture_needs_no_other_file() -> None:
    svg = averages().draw().svg

    addresses = set(re.findall(r"https?://[^\"']+", svg))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "<image" not in svg
    assert "<script" not in svg


def test_rules_of_style_stay_inside_the_picture() -> None:
    style = parsed(averages().draw()).find(f"{SVG}style")

    assert style is not None and style.text is not None
    selectors = re.findall(r"([^{}]+)\{", style.text)
    assert selectors
    assert all(selector.startswith(".millstream ") for selector in selectors)


def test_a_notebook_shows_the_picture() -> None:
    drawing = word_count().draw()

    assert drawing._repr_svg_() == drawing.svg


# -- layout --------------------------------------------------------------------------------


def test_lines_that_need_not_cross_do_not() -> None:
    box = Box(80, 30)
    links = [Link(0, 5, ""), Link(1, 4, ""), Link(2, 3, "")]

    laid = lay_out([box] * 6, links, [0] * 6)

    upper = [laid.centers[link.source][0] for link in links]
    lower = [laid.centers[link.target][0] for link in links]
    assert sorted(range(3), key=upper.__getitem__) == sorted(range(3), key=lower.__getitem__)


def test_a_chain_is_drawn_straight() -> None:
    widths = [Box(80, 30), Box(200, 30), Box(40, 30)]

    laid = lay_out(widths, [Link(0, 1, ""), Link(1, 2, "")], [0, 0, 1])

    assert len({round(x, 6) for x, _ in laid.centers}) == 1


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


# -- files ---------------------------------------------------------------------------------


def test_a_drawing_is_saved_in_the_format_of_its_name(tmp_path: Path) -> None:
    drawing = word_count().draw()

    for name in ("a.svg", "a.mmd", "a.md"):
        drawing.save(tmp_path / name)

    assert (tmp_path / "a.svg").read_text("utf-8") == drawing.svg
    assert (tmp_path / "a.mmd").read_text("utf-8") == drawing.mermaid
    assert (tmp_path / "a.md").read_text("utf-8") == f"```mermaid\n{drawing.mermaid}```\n"


def test_other_formats_are_refused_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.svg, \.mmd or \.md, got .*a\.png"):
        word_count().draw().save(tmp_path / "a.png")

"""Plots are SVG that a browser can read, with every line in its panel."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks.plots import HEIGHT, WIDTH, Line, Panel, plot, round_up

SVG = "{http://www.w3.org/2000/svg}"


def test_a_plot_has_all_lines_titles_and_headings() -> None:
    points = [(0.0, 1.0), (5.0, 4.0), (10.0, 2.0)]
    panels = [
        Panel("a < b", [Line("one", points)]),
        Panel("nodes", [Line("x", points, steps=True), Line("y", points)]),
    ]

    drawn = ElementTree.fromstring(plot("title", [("left", panels), ("right", panels)]))

    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"title", "left", "right", "a < b", "nodes", "x", "y"} <= set(texts)
    assert "one" not in texts
    lines = [path for path in drawn.iter(f"{SVG}path") if path.get("stroke-width")]
    assert len(lines) == 6


def test_lines_stay_inside_their_panel() -> None:
    line = Line("one", [(0.0, 0.0), (10.0, 4.0)])

    drawn = ElementTree.fromstring(plot("title", [("only", [Panel("panel", [line])])]))

    [path] = [path for path in drawn.iter(f"{SVG}path") if path.get("stroke-width")]
    left, bottom, right, top = map(float, re.findall(r"[\d.]+", path.get("d", "")))
    assert (right - left, bottom - top) == (WIDTH, HEIGHT)


@pytest.mark.parametrize(
    ("value", "scale"), [(0, 1), (0.07, 0.1), (1, 1), (3, 4), (4.2, 5), (6, 10), (1100, 2000)]
)
def test_scales_end_at_round_numbers(value: float, scale: float) -> None:
    assert round_up(value) == pytest.approx(scale)

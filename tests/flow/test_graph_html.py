from __future__ import annotations

import re
from html import unescape

import millstream as ms

NONE = "\u2013"


def cells(html: str) -> list[list[str]]:
    """The rows of a table, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [
        [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows
    ]


def test_a_workflow_is_a_table_of_its_graph_by_stage() -> None:
    flow = ms.Workflow("wordcount")
    lines = flow.source("lines", ms.read.text("books"))
    words = lines.flat_map(str.split)
    counts = words.key_by(str).reduce("counts", ms.count())
    counts.sink("out", ms.write.parquet("counts"))

    header, *rows = cells(flow._repr_html_())

    assert header == ["Stage", "Kind", "Name", "Work", "Reads"]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("0", "source", "lines"),
        ("0", "step", NONE),
        ("1", "job", "counts"),
        ("1", "sink", "out"),
    ]
    assert [row[4] for row in rows] == [NONE, "lines", rows[1][3], "counts"]
    assert "books" in rows[0][3] and "split" in rows[1][3] and "count" in rows[2][3]


def test_what_users_write_is_escaped() -> None:
    flow = ms.Workflow("flow")
    source = flow.source("lines", ms.read.text("<img src=x onerror=alert(1)>"))
    source.sink("out", ms.write.parquet("out&\"'"))

    html = flow._repr_html_()

    assert "<img" not in html and "&lt;img src=x" in html
    assert 'out&"' not in html and "out&amp;&quot;" in html


def test_a_workflow_that_is_not_complete_says_what_it_lacks() -> None:
    flow = ms.Workflow("begun")

    html = flow._repr_html_()

    assert "Workflow begun cannot run yet" in html and "<table" not in html

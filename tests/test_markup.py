from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from millstream.markup import Html, block, facts, note, table, unfolding

MEAN = "<script>alert('\"&')</script>"


def everything(text: str) -> Html:
    return block(
        table(text, (text, "n"), [(text, 1), (text, None)]),
        facts(text, [(text, text), ("left out", None)]),
        unfolding(text, note(text)),
    )


def test_all_text_is_escaped_wherever_it_is() -> None:
    tree = ElementTree.fromstring(everything(MEAN).replace("&ndash;", "-"))

    shown = [element.text for element in tree.iter() if element.text]
    assert shown.count(MEAN) == 9
    assert not {"script", "img", "a"} & {element.tag for element in tree.iter()}
    assert "left out" not in shown


def test_it_needs_no_scripts_no_style_sheets_and_nothing_from_elsewhere() -> None:
    html = everything("text")

    assert not re.search(r"<script|<style|<link|<img|\bon\w+=|https?:|url\(|\bid=|\bclass=", html)


def test_colours_are_those_of_the_page() -> None:
    styles = ";".join(re.findall(r'style="([^"]*)"', everything("text")))

    colours = {value for name, value in re.findall(r"([\w-]+):([^;]*)", styles) if "color" in name}
    assert colours == {"inherit"}
    assert not re.search(r"#[0-9a-f]{3}|rgb|hsl|black|white|gr[ae]y", styles)


@pytest.mark.parametrize(
    ("cell", "shown"), [(1234, "1,234"), (0.456, "0.46"), (True, "True"), (None, "&ndash;")]
)
def test_cells_are_written_for_people(cell: object, shown: str) -> None:
    assert f">{shown}</td>" in table("", ("a",), [(cell,)])


def test_columns_of_numbers_are_flush_right() -> None:
    html = table("", ("word", "n"), [("mill", 1), ("stream", None)])

    aligned = re.findall(r"text-align:(left|right)[^>]*>(?:mill|stream|1|&ndash;|word|n)<", html)
    assert aligned == ["left", "right"] * 3

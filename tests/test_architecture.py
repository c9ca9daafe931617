"""The map of the code names files that exist, and the glossary stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "millstream"
PAGES = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    *sorted(p.name for p in (ROOT / "docs").glob("*.md")),
]
_FILE = re.compile(r"`([\w/]+\.py)`")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page).read_text()
    named = set(_FILE.findall(text))

    missing = [name for name in named if not ((SOURCES / name).exists() or (ROOT / name).exists())]

    assert missing == []


def test_every_package_is_on_the_map() -> None:
    packages = {init.parent.name for init in SOURCES.glob("*/__init__.py")}
    named = set(
        re.findall(r"^\| `(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    )

    assert named == packages


def test_the_glossary_has_only_terms_of_our_own() -> None:
    terms = re.findall(
        r"^\| \*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )

    assert terms == sorted(terms)
    assert len(terms) <= 40

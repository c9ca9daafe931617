from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millstream.cli.zipf import ZipfText, words_of
from millstream.errors import ConfigError


def _lines(folder: Path) -> list[list[str]]:
    files = sorted(folder.iterdir())
    return [line.split(" ") for file in files for line in file.read_text().splitlines()]


def test_words_are_distinct_and_longer_when_rarer() -> None:
    words = words_of(100_000)

    assert len(set(words)) == len(words) == 100_000
    assert [len(word) for word in words] == sorted(len(word) for word in words)


def test_lines_and_files_have_the_requested_size(tmp_path: Path) -> None:
    text = ZipfText(words=1050, words_per_line=10, lines_per_file=20)
    size = text.write(tmp_path / "text")
    files = sorted((tmp_path / "text").iterdir())

    assert [len(file.read_text().splitlines()) for file in files] == [20] * 5 + [5]
    assert {len(line) for line in _lines(tmp_path / "text")} == {10}
    assert size == sum(file.stat().st_size for file in files)


def test_an_odd_number_of_words_ends_with_a_short_line(tmp_path: Path) -> None:
    ZipfText(words=25, lines_per_file=100).write(tmp_path / "text")

    assert [len(line) for line in _lines(tmp_path / "text")] == [10, 10, 5]
    assert next((tmp_path / "text").iterdir()).read_bytes().endswith(b"\n")


def test_the_same_seed_gives_the_same_text_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        ZipfText(words=1000, seed=seed).write(tmp_path / name)
    first, again, other = (_lines(tmp_path / name) for name in "abc")

    assert first == again
    assert first != other


def test_a_shorter_text_is_a_prefix_of_a_longer_one(tmp_path: Path) -> None:
    ZipfText(words=400, lines_per_file=20).write(tmp_path / "short")
    ZipfText(words=1000, lines_per_file=20).write(tmp_path / "long")
    short, longer = _lines(tmp_path / "short"), _lines(tmp_path / "long")

    assert longer[: len(short)] == short


def test_frequencies_follow_the_exponent(tmp_path: Path) -> None:
    ZipfText(words=200_000, distinct=1000, exponent=1.1).write(tmp_path / "text")
    counts = Counter(word for line in _lines(tmp_path / "text") for word in line)
    first, second, tenth = (counts[words_of(10)[at]] for at in (0, 1, 9))

    assert first / second == pytest.approx(2**1.1, rel=0.05)
    assert first / tenth == pytest.approx(10**1.1, rel=0.05)


def test_sizes_below_one_are_rejected() -> None:
    with pytest.raises(ConfigError, match="words must be at least 1, got 0"):
        ZipfText(words=0)

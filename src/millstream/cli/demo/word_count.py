"""The workflow of the demo, and its answer as a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import millstream as ms

JOB = "count"
EXACT, NOT_EXACT = "exact: yes", "exact: no"
_SHOWN = 10


def split(line: str) -> Iterator[tuple[str, int]]:
    """Yield every word of a line with a one."""
    for word in line.split():
        yield word, 1


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    """Add to the count of a word, and yield it."""
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, state["n"]


def word_count(folder: Path, *, files_per_epoch: int) -> ms.Workflow:
    """Count the words of files that come into a folder."""
    flow = ms.Workflow("wordcount")
    source = ms.read.text(folder, follow=True, max_files_per_epoch=files_per_epoch)
    flow.source("lines", source).map_reduce(JOB, map=split, reduce=count)
    return flow


def batch_counts(spark: Any, folder: Path) -> dict[str, int]:
    """Count the words of all files with a batch query of Spark."""
    words = spark.read.text(str(folder)).selectExpr("explode(split(value, ' ')) AS word")
    return dict(map(tuple, words.groupBy("word").count().collect()))


def verdict(found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    """Some of the words that were counted wrong, and last whether all counts are right."""
    wrong = list(differences(found, expected).items())[:_SHOWN]
    lines = [f"{word}: counted {n}, should be {right}" for word, (n, right) in wrong]
    return [*lines, NOT_EXACT if wrong else EXACT]


def differences(
    found: Mapping[str, int], expected: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The words whose counts differ: what was found, and what is right."""
    if found == expected:
        return {}
    return {
        word: (found.get(word, 0), expected.get(word, 0))
        for word in sorted(found.keys() | expected.keys())
        if found.get(word) != expected.get(word)
    }

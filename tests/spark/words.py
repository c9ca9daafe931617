"""The word count that the tests on Spark run, its input, and its batch answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millstream as ms

WORDS = [f"w{n % 17}" for n in range(60)]
FILES = 6
LINES = 40


def write_books(folder: Path) -> Path:
    """Six files of lines; two files make an epoch."""
    books = folder / "books"
    books.mkdir()
    for number in range(FILES):
        lines = [" ".join(WORDS[(number + at) % 7 :: 3]) for at in range(LINES)]
        (books / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return books


def expected_counts(books: Path) -> Counter[str]:
    """The batch answer, in plain Python."""
    return Counter(word for book in books.iterdir() for word in book.read_text().split())


def split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, state["n"]


@dataclass
class Outcome:
    """What a run left behind: state by job, and rows of the sink by epoch."""

    state: dict[str, dict[Any, Any]] = field(default_factory=dict)
    rows: dict[int, list[Any]] = field(default_factory=dict)

    @property
    def newest(self) -> dict[Any, Any]:
        """The last value that the sink saw for each key."""
        return {row[0]: row[1] for epoch in sorted(self.rows) for row in self.rows[epoch]}


def run_to_end(spark: SparkSession, flow: ms.Workflow, *jobs: str, nodes: int = 2) -> Outcome:
    """Run a bounded workflow and read the state of its jobs."""
    outcome = Outcome()
    with ms.start(flow, spark=spark, nodes=nodes, partitions=4) as run:
        run.await_termination()
        for job in jobs:
            outcome.state[job] = dict(run.state(job).items())
    return outcome


def once(marker: Path, times: int = 1) -> bool:
    """True for the first ``times`` calls, over all processes."""
    for turn in range(times):
        try:
            marker.with_suffix(f".{turn}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False

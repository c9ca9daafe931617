"""Count words with a stateful reduce function, and check the counts."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millstream as ms

LINES = ["the mill by the stream", "the stream turns the mill", "by and by"] * 200


def split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, state["n"]


def workflow(folder: Path) -> ms.Workflow:
    flow = ms.Workflow("wordcount")
    lines = flow.source("lines", ms.read.text(folder / "books", max_files_per_epoch=2))
    counts = lines.map_reduce("count", map=split, reduce=count)
    counts.sink("out", ms.write.parquet(folder / "counts"))
    return flow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", help="the Spark master (default: local[2])", default="local[2]")
    master = parser.parse_args().master

    with tempfile.TemporaryDirectory() as folder:
        books = Path(folder, "books")
        books.mkdir()
        for number in range(4):
            text = "\n".join(LINES[number::4])
            Path(books, f"{number}.txt").write_text(text + "\n")

        flow = workflow(Path(folder))
        with ms.start(flow, checkpoint=Path(folder, "checkpoint"), nodes=2, master=master) as run:
            run.await_termination()
            found = {word: state["n"] for word, state in run.state("count").items()}

    expected = Counter(word for line in LINES for word in line.split())
    for word, number in expected.most_common(3):
        print(f"{word:8}{number:6}")
    if found != expected:
        raise SystemExit(f"expected {expected}, found {found}")
    print("exact: yes")


if __name__ == "__main__":
    main()

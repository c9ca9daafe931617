"""A workflow of three jobs: word counts fan out to lengths and initials."""

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
    """Count words, and hand on by how much each count has grown."""
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, sum(ones)


def by_length(grown: tuple[str, int]) -> Iterator[tuple[int, int]]:
    word, more = grown
    yield len(word), more


def by_initial(grown: tuple[str, int]) -> Iterator[tuple[str, int]]:
    word, more = grown
    yield word[0], more


def workflow(folder: Path) -> ms.Workflow:
    flow = ms.Workflow("words")
    lines = flow.source("lines", ms.read.text(folder / "books", max_files_per_epoch=2))
    counts = lines.map_reduce("count", map=split, reduce=count)
    lengths = counts.map_reduce("lengths", map=by_length, reduce=ms.sum())
    initials = counts.map_reduce("initials", map=by_initial, reduce=ms.sum())
    lengths.sink("lengths-out", ms.write.json(folder / "lengths"))
    initials.sink("initials-out", ms.write.csv(folder / "initials"))
    return flow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", help="the Spark master (default: local[2])", default="local[2]")
    master = parser.parse_args().master

    with tempfile.TemporaryDirectory() as folder:
        books = Path(folder, "books")
        books.mkdir()
        for number in range(4):
            Path(books, f"{number}.txt").write_text("\n".join(LINES[number::4]) + "\n")

        with ms.start(workflow(Path(folder)), nodes=2, master=master) as run:
            run.await_termination()
            found = {job: dict(run.state(job).items()) for job in ("lengths", "initials")}

    words = [word for line in LINES for word in line.split()]
    expected = {
        "lengths": Counter(map(len, words)),
        "initials": Counter(word[0] for word in words),
    }
    print("by length: ", dict(sorted(found["lengths"].items())))
    print("by initial:", dict(sorted(found["initials"].items())))
    if found != expected:
        raise SystemExit(f"expected {expected}, found {found}")
    print("exact: yes")


if __name__ == "__main__":
    main()

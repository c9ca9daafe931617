"""What people talk about: the most frequent words of the last 15 minutes, hour and 12 hours.

One job counts words over all three windows, which share its panes; another picks the top words of
each window as it closes.
"""

from __future__ import annotations

import argparse
import heapq
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import millstream as ms

SLIDE = timedelta(minutes=15)
LENGTHS = (timedelta(minutes=15), timedelta(hours=1), timedelta(hours=12))
TOP = 3
START = datetime(2026, 3, 1, tzinfo=UTC)
WORDS = [
    "mill",
    "stream",
    "water",
    "wheel",
    "stone",
    "grain",
    "flour",
    "river",
    "weir",
    "race",
    "sluice",
    "pond",
]


def words(message: Any) -> Iterator[tuple[str, int, datetime]]:
    for word in message.text.split():
        yield word, 1, message.time


def by_window(count: Any) -> tuple[timedelta, tuple[int, str]]:
    return count.window_end - count.window_start, (count.value, count.key)


def window_length(pair: tuple[timedelta, Any]) -> tuple[int, Any]:
    return pair[0] // timedelta(minutes=1), pair[1]


def top(minutes: int, counts: list[tuple[int, str]], window: Any) -> Iterator[dict[str, Any]]:
    """The most frequent words of one window; of equal ones, the first in the alphabet."""
    best = heapq.nsmallest(TOP, counts, key=lambda found: (-found[0], found[1]))
    for rank, (number, word) in enumerate(best, start=1):
        yield {"minutes": minutes, "end": window.end, "rank": rank, "word": word, "count": number}


def workflow(source: object, folder: Path) -> ms.Workflow:
    flow = ms.Workflow("trends")
    counts = flow.source("messages", source).map_reduce(
        "words",
        map=words,
        reduce=ms.count(),
        window=[ms.sliding(length, SLIDE) for length in LENGTHS],
    )
    of_windows = counts.map(by_window).map(window_length)
    tops = of_windows.map_reduce("top", reduce=top, window=ms.tumbling(SLIDE))
    tops.sink("out", ms.write.parquet(folder / "tops"))
    return flow


def messages(count: int, seed: int = 7) -> pa.Table:
    """Messages over a day and a half, about things that go in and out of fashion."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        time = START + timedelta(hours=36) * number / count
        fashion = int((time - START) / timedelta(hours=3)) % len(WORDS)
        weights = [8 if at == fashion else 1 + at % 3 for at in range(len(WORDS))]
        rows.append({"time": time, "text": " ".join(rng.choices(WORDS, weights, k=5))})
    return pa.Table.from_pylist(rows)


def batch(table: pa.Table) -> set[tuple[int, datetime, int, str, int]]:
    """The same, computed at once from all messages."""
    counts: dict[tuple[timedelta, datetime], Counter[str]] = {}
    for row in table.to_pylist():
        slide = START + (row["time"] - START) // SLIDE * SLIDE
        for length in LENGTHS:
            for number in range(length // SLIDE):
                end = slide + (number + 1) * SLIDE
                counts.setdefault((length, end), Counter()).update(row["text"].split())
    found = set()
    for (length, end), of_window in counts.items():
        best = sorted(of_window.items(), key=lambda item: (-item[1], item[0]))[:TOP]
        for rank, (word, number) in enumerate(best, start=1):
            found.add((length // timedelta(minutes=1), end, rank, word, number))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", help="the Spark master (default: local[2])", default="local[2]")
    parser.add_argument("--messages", type=int, help="how many messages", default=20_000)
    options = parser.parse_args()

    table = messages(options.messages)
    with tempfile.TemporaryDirectory() as folder:
        flow = workflow(ms.read.replay(table, rows_per_epoch=4000), Path(folder))
        ms.run(flow, nodes=2, master=options.master)
        rows = pq.read_table(Path(folder, "tops"), coerce_int96_timestamp_unit="us").to_pylist()
    found = {
        (row["minutes"], row["end"].replace(tzinfo=UTC), row["rank"], row["word"], row["count"])
        for row in rows
    }

    noon = START + timedelta(hours=24)
    for minutes, _, rank, word, number in sorted(row for row in found if row[1] == noon):
        print(f"{minutes:4} min  {rank}. {word:8}{number:6}")
    if found != batch(table) or len(found) != len(rows):
        raise SystemExit("the batch computation gives other words")
    print("exact: yes")


if __name__ == "__main__":
    main()

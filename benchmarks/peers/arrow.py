"""The limit in pyarrow: Arrow's own hash aggregation over the files, two of them at a time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from benchmarks.peers.protocol import Ran, Task, write_counts

THREADS = 2
_READ = csv.ReadOptions(column_names=["line"], use_threads=False)
_PARSE = csv.ParseOptions(delimiter="\x01", quote_char=False)


def group_by(task: Task) -> Ran:
    """Count file by file, and add up."""
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        parts = list(threads.map(_counts, task.paths()))
    counts = pa.concat_tables(parts).group_by("word").aggregate([("n", "sum")])
    seconds = time.perf_counter() - began
    if task.answer:
        words, sums = (counts[name].to_pylist() for name in ("word", "n_sum"))
        write_counts(task.answer, zip(words, sums, strict=True))
    return Ran(seconds=seconds)


def _counts(path: str) -> pa.Table:
    lines = csv.read_csv(path, read_options=_READ, parse_options=_PARSE)["line"]
    words = pc.list_flatten(pc.split_pattern(lines, " "))
    counted = pa.chunked_array(words).value_counts()
    return pa.table({"word": counted.field("values"), "n": counted.field("counts")})


FORMS = {"group_by": group_by}
PACKAGES = ("pyarrow",)

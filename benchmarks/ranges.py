"""Counting keys of ranges: large epochs load a state of any size, small ones touch a part of it.

The input, the workflow, the same query for Spark, and a sink that checks every small epoch.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import millstream as ms

TOUCHED = 600  # keys in a small epoch, of all nodes
KEYS_PER_LOAD = 200_000
FILES_PER_EPOCH = 2
JOB = "count"
PATIENCE = 60.0


@dataclass(frozen=True)
class Input:
    """Files of a few ranges of keys: large epochs that load the state, then small ones.

    An epoch is two files. Every small epoch touches each ``step``-th key, from ``offsets`` on.
    """

    folder: Path
    keys: int
    loads: int
    step: int
    offsets: Sequence[int]

    def expected(self, epoch: int) -> tuple[int, int]:
        """How many rows a small epoch gives, and the count that each of them shows."""
        offset = self.offsets[epoch - self.loads]
        earlier = self.offsets[: epoch - self.loads + 1]
        return len(range(offset, self.keys, self.step)), 1 + earlier.count(offset)

    def is_right(self, epoch: int, counts: Sequence[int]) -> bool:
        """Whether these are the counts of a small epoch."""
        size, number = self.expected(epoch)
        return len(counts) == size and all(count == number for count in counts)

    def count_after(self, epoch: int, key: int) -> int:
        """The count of a key when an epoch, with all loads before it, has been counted."""
        return 1 + self.offsets[: epoch - self.loads + 1].count(key % self.step)


def write_input(folder: Path, *, keys: int, epochs: int, seed: int = 1) -> Input:
    """Write the files, in the order of their times of change, which Spark goes by."""
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    step = max(1, keys // TOUCHED)
    loads = -(-keys // KEYS_PER_LOAD)
    offsets = [chance.randrange(step) for _ in range(epochs)]
    lines: list[list[str]] = []
    for number in range(loads):
        first, last = number * KEYS_PER_LOAD, min(keys, (number + 1) * KEYS_PER_LOAD)
        lines.append([f"{at} {min(at + 1000, last)} 1 0" for at in range(first, last, 1000)])
    half = keys // 2
    for offset in offsets:
        behind = offset + len(range(offset, half, step)) * step
        lines.append([f"{offset} {half} {step} 1", f"{behind} {keys} {step} 1"])
    begun = time.time() - 10_000
    for number, those in enumerate(lines):
        for part in range(FILES_PER_EPOCH):
            file = folder / f"{number:06}-{part}.txt"
            file.write_text("".join(f"{line}\n" for line in those[part::FILES_PER_EPOCH]))
            moment = begun + number * FILES_PER_EPOCH + part
            os.utime(file, (moment, moment))
    return Input(folder, keys, loads, step, offsets)


# -- ours ------------------------------------------------------------------------------------


def expand(line: str) -> Iterator[tuple[int, int]]:
    start, stop, step, shown = map(int, line.split())
    for key in range(start, stop, step):
        yield key, shown


def count_shown(key: int, shown: list[int], state: Any) -> Iterator[tuple[int, int, int]]:
    """Count; small epochs show the count, and the process that it comes from."""
    state["n"] = state.get("n", 0) + len(shown)
    if any(shown):
        yield key, state["n"], os.getpid()


class Witness:
    """The sink: notes when small epochs come, and checks that nothing is lost or counted twice."""

    def __init__(self, given: Input) -> None:
        self._given = given
        self._changed = threading.Condition()
        self.times: list[float] = []

    def __call__(self, rows: list[Any], epoch: int) -> None:
        now = time.monotonic()
        if epoch < self._given.loads:
            return
        if not self._given.is_right(epoch, [n for _, n, _ in rows]):
            raise RuntimeError(f"epoch {epoch} has wrong counts")
        with self._changed:
            self.note(now, rows)
            self._changed.notify_all()

    def note(self, now: float, rows: list[Any]) -> None:
        """Take note of a small epoch."""
        self.times.append(now)

    def wait(self, wanted: Callable[[], bool], run: ms.Run) -> None:
        """Wait until the epochs seen are as wanted."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not wanted():
                self._changed.wait(0.2)
                if run.status().phase != "running":
                    run.await_termination()  # raises if it failed
                    raise SystemExit("the run ended before it was measured: more epochs are needed")
                if time.monotonic() > deadline:
                    raise SystemExit(f"the run did not go on within {PATIENCE:.0f} s")

    def wait_for_more(self, epochs: int, run: ms.Run) -> None:
        """Wait for so many small epochs from now on."""
        wanted = len(self.times) + epochs
        self.wait(lambda: len(self.times) >= wanted, run)


def range_counts(name: str, given: Input, sink: Witness, *, follow: bool = False) -> ms.Workflow:
    """The workflow: it ends when all files are read, unless it is to ``follow``."""
    flow = ms.Workflow(name)
    source = ms.read.text(given.folder, follow=follow, max_files_per_epoch=FILES_PER_EPOCH)
    counts = flow.source("ranges", source).map_reduce(JOB, map=expand, reduce=count_shown)
    counts.sink("out", ms.write.callback(sink))
    return flow


def check_state(run: ms.Run, given: Input) -> None:
    """Compare the state of all keys with what it has to be after the epoch of the scan."""
    scan = run.state(JOB).items()
    found = {key: state["n"] for key, state in scan}
    by_offset = [given.count_after(scan.epoch, offset) for offset in range(given.step)]
    right = len(found) == given.keys and all(
        found.get(key) == by_offset[key % given.step] for key in range(given.keys)
    )
    if not right:
        raise SystemExit(f"the state after epoch {scan.epoch} is wrong")


# -- Spark's ---------------------------------------------------------------------------------


def spark_range_counts(spark: SparkSession, given: Input) -> DataFrame:
    """The same as a streaming aggregation of Spark's own: key and count."""
    lines = spark.readStream.option("maxFilesPerTrigger", FILES_PER_EPOCH).text(str(given.folder))
    start, stop, step = (f"CAST(split(value, ' ')[{at}] AS BIGINT)" for at in range(3))
    keys = lines.selectExpr(f"explode(sequence({start}, {stop} - 1, {step})) AS key")
    return keys.groupBy("key").count()

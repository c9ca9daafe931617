"""Pathway: its own reader of text files, two threads, input and progress persisted at an interval.

A stream of files has no end: beside the counts a run keeps their sum, and ends when that is the
number of words of the input. Each run is a process of its own, as Pathway has one graph in each.
Words are split by Python, for which Pathway has no function of its own; persistence of operators,
in place of the input, would need a licence key.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pathway as pw

from benchmarks.peers.protocol import Ran, Task, line_of, message_of, write_counts


def group_by(task: Task) -> Ran:
    """``groupby().reduce(count())``, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=line_of(task),
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"Pathway ended with {done.returncode}; its log has the reason")
    answer = message_of(done.stdout.splitlines()[-1])
    assert isinstance(answer, Ran)
    return answer


class _Run:
    """Ends this process when all words are counted."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._wanted = sum(len(Path(path).read_text().split()) for path in task.paths())
        self._last: dict[str, int] = {}
        self._began = time.perf_counter()

    def on_sum(self, *, row: dict[str, Any], is_addition: bool, **_: object) -> None:
        if is_addition and row["n"] == self._wanted:
            self._end()

    def on_count(self, *, row: dict[str, Any], is_addition: bool, **_: object) -> None:
        if is_addition:
            self._last[row["word"]] = row["n"]

    def on_time_end(self, _: int) -> None:
        if sum(self._last.values()) == self._wanted:
            write_counts(self._task.answer, self._last.items())
            self._end()

    def _end(self) -> None:
        sys.stdout.write(line_of(Ran(seconds=time.perf_counter() - self._began)))
        sys.stdout.flush()
        os._exit(0)


def _count(task: Task) -> None:
    run = _Run(task)
    milliseconds = int(1000 * task.interval)
    lines = pw.io.plaintext.read(task.folder, autocommit_duration_ms=milliseconds, name="lines")
    split = lines.select(word=pw.apply_with_type(str.split, list[str], lines.data))
    words = split.flatten(pw.this.word)
    counts = words.groupby(pw.this.word).reduce(pw.this.word, n=pw.reducers.count())
    if task.answer:
        pw.io.subscribe(counts, run.on_count, on_time_end=run.on_time_end)
    else:
        pw.io.null.write(counts)
        pw.io.subscribe(counts.reduce(n=pw.reducers.sum(pw.this.n)), run.on_sum)
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(
            pw.persistence.Backend.filesystem(task.work), snapshot_interval_ms=milliseconds
        ),
    )


FORMS = {"group_by": group_by}
PACKAGES = ("pathway",)

if __name__ == "__main__":
    asked = message_of(sys.stdin.readline())
    assert isinstance(asked, Task)
    _count(asked)

"""The limit without an engine: one Python process that counts in a dict, and keeps nothing."""

from __future__ import annotations

import time

from benchmarks.peers.protocol import Ran, Task, write_counts


def loop(task: Task) -> Ran:
    """A loop over lines and words."""
    began = time.perf_counter()
    counts: dict[str, int] = {}
    for path in task.paths():
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                for word in line.split():
                    counts[word] = counts.get(word, 0) + 1
    seconds = time.perf_counter() - began
    if task.answer:
        write_counts(task.answer, counts.items())
    return Ran(seconds=seconds)


FORMS = {"loop": loop}
PACKAGES: tuple[str, ...] = ()

"""Contenders that need a Spark session as forms of an engine's process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.data import Text
from benchmarks.harness import session
from benchmarks.peers.contender import Contender
from benchmarks.peers.protocol import Form, Ran, Task, write_counts


def form_of(contender: Callable[..., Contender]) -> Form:
    """Run a contender in the session of this process; its options are those of the task."""

    def run(task: Task) -> Ran:
        spark = session()
        text = Text(Path(task.folder), task.epochs, 0, 0)
        began = time.perf_counter()
        measured = contender(**task.options).run(spark, text, Path(task.work))
        seconds = time.perf_counter() - began
        write_counts(task.answer, measured.counts.items())
        facts = {f"{phase}_ms": took for phase, took in measured.phases.items()}
        if measured.reports:
            first, last = measured.reports[0], measured.reports[-1]
            for name, report in (("first", first), ("last", last)):
                facts[f"{name}_node_bytes"] = report.node_memory
                facts[f"{name}_keys"] = sum(job.state_keys for job in report.jobs.values())
        return Ran(seconds=seconds, ends=list(measured.ends), facts=facts)

    return run

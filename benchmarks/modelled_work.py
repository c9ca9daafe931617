"""Runs whose nodes have processors of their own, on a machine that has fewer.

The work of a reduce function is modelled: it sleeps for every value, on a slow node longer, and
nodes count that as CPU time. So nodes do not slow each other down, as if each was alone on its
host; all else (Spark, feeds, copies, the store, the policy) is real and shares the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millstream as ms
from millstream.elastic.events import Event
from millstream.observe.progress import EpochProgress

JOB = "count"
_SHORTEST = 0.002  # seconds: shorter sleeps would be inexact
_POLL = timedelta(seconds=0.2)


class Processor:
    """A node's own processor, which needs ``seconds`` for a value.

    With ``slowness``, the first node that works is slower by the first factor, and so on; nodes
    find out which they are in the folder ``ranks``.
    """

    def __init__(
        self, seconds: float, *, slowness: Sequence[float] = (1.0,), ranks: Path | None = None
    ) -> None:
        self._seconds = seconds
        self._slowness = slowness
        self._ranks = ranks
        self._factor: float | None = None
        self._owed = 0.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        # When it arrives in a node, and not at the first value: a node looks up how to measure
        # its CPU time once, after its functions have arrived.
        self.__dict__.update(state)
        _modelled_seconds()

    def work(self, values: int) -> float:
        """Take the time that so many values need; return it in seconds."""
        if self._factor is None:
            rank = 0 if self._ranks is None else _claimed_rank(self._ranks)
            self._factor = self._slowness[rank % len(self._slowness)]
        took = values * self._seconds * self._factor
        self._owed += took
        if self._owed >= _SHORTEST:
            started = time.perf_counter()
            time.sleep(self._owed)
            slept = time.perf_counter() - started
            self._owed -= slept  # a sleep that was too long shortens the next one
            _modelled_seconds()[0] += slept
        return took


def _modelled_seconds() -> list[float]:
    """The seconds of modelled work in this process, which count as its CPU time from now on."""
    found: list[float] | None = getattr(time.process_time, "modelled", None)
    if found is None:
        real, found = time.process_time, [0.0]
        modelled = found

        def process_time() -> float:
            return real() + modelled[0]

        process_time.modelled = modelled  # type: ignore[attr-defined]
        time.process_time = process_time
    return found


def _claimed_rank(folder: Path) -> int:
    """The lowest number that no other process has claimed."""
    for rank in count():
        try:
            os.close(os.open(folder / str(rank), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return rank
    raise AssertionError


def counting(processor: Processor) -> Callable[..., Iterator[tuple[str, int, int, float]]]:
    """A reduce function that counts, and tells by whom and how long it worked."""

    def counted(key: str, ones: list[int], state: Any) -> Iterator[tuple[str, int, int, float]]:
        took = processor.work(len(ones))
        state["n"] = state.get("n", 0) + len(ones)
        yield key, state["n"], os.getpid(), took

    return counted


@dataclass(frozen=True)
class Seen:
    """An epoch: when its outputs came, when and for how long it ran, and each process's work.

    Times are on one clock; all are in seconds.
    """

    epoch: int
    output: float
    began: float
    seconds: float
    rows: int
    work: Mapping[int, float]

    def imbalance(self, nodes: int) -> float:
        """The most work of a node over the mean of all nodes."""
        total = sum(self.work.values())
        return max(self.work.values()) * nodes / total if total else 1.0


@dataclass
class Observer:
    """The sink and listener of a run: puts together what is known of each epoch."""

    seen: list[Seen] = field(default_factory=list)
    _output: float = 0.0
    _work: dict[int, float] = field(default_factory=dict)

    def sink(self, rows: list[Any], _: int) -> None:
        self._output = time.monotonic()
        self._work = {}
        for _key, _n, pid, took in rows:
            self._work[pid] = self._work.get(pid, 0.0) + took

    def listener(self, report: EpochProgress) -> None:
        began = time.monotonic() - report.seconds
        self.seen.append(
            Seen(report.epoch, self._output, began, report.seconds, report.rows, self._work)
        )


@dataclass(frozen=True)
class Sample:
    """How many nodes lived at a time."""

    time: float
    nodes: int


@dataclass(frozen=True)
class Played:
    """A run to its end."""

    epochs: Sequence[Seen]
    samples: Sequence[Sample]
    events: Sequence[Event]


def play(
    spark: SparkSession,
    source: object,
    processor: Processor,
    expected: Mapping[str, int],
    *,
    work: Path,
    **options: Any,
) -> Played:
    """Count the words of a bounded source; the options are those of ``ms.start``."""
    observer = Observer()
    flow = ms.Workflow("modelled")
    rows = flow.source("rows", source)
    counts = rows.map_reduce(JOB, map=_pair_of, reduce=counting(processor))
    counts.sink("out", ms.write.callback(observer.sink))
    samples: list[Sample] = []
    started = ms.start(flow, spark=spark, checkpoint=work, progress=False, **options)
    with started as run:
        run.progress.listen(observer.listener)
        samples.append(Sample(time.monotonic(), len(run.status().nodes)))
        while not run.await_termination(_POLL):
            samples.append(Sample(time.monotonic(), len(run.status().nodes)))
        counted = {key: state["n"] for key, state in run.state(JOB).items()}
        if counted != expected:
            raise SystemExit(f"the counts of {work.name} are wrong")
        return Played(observer.seen, samples, run.events())


def _pair_of(row: Any) -> Iterator[tuple[str, int]]:
    yield row if isinstance(row, str) else row.key, 1  # a single column has plain values

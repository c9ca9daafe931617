"""What a contender is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.data import Text
from millstream.observe.progress import EpochProgress

Counts = dict[str, int]


@dataclass(frozen=True)
class Measured:
    """The trigger times of the epochs in milliseconds, in order, and the final counts.

    Beside them when each epoch was committed, in seconds of some clock, the median times of Spark's
    phases of an epoch, and what our own run reported.
    """

    triggers: list[float]
    counts: Counts
    ends: Sequence[float] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    reports: Sequence[EpochProgress] = ()

    def words_per_second(self, text: Text) -> float:
        """Words over trigger time, without the first epoch."""
        warm = self.triggers[1:]
        return text.words_per_epoch * len(warm) / (sum(warm) / 1000)

    @property
    def settled(self) -> list[float]:
        """The second half of the trigger times."""
        return self.triggers[len(self.triggers) // 2 :]


class Contender(Protocol):
    """Counts the words of a text in a streaming query."""

    @property
    def name(self) -> str:
        """Engine and manner, for people."""

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        """Count; ``work`` is a new folder for checkpoints."""


def trigger_times(query: StreamingQuery, text: Text) -> list[float]:
    """The trigger time of every epoch that had input."""
    times = [
        float(progress.durationMs["triggerExecution"])
        for progress in query.recentProgress
        if progress.numInputRows > 0
    ]
    if len(times) != text.epochs:
        raise RuntimeError(f"expected {text.epochs} epochs, Spark reports {len(times)}")
    return times


def end_times(query: StreamingQuery) -> list[float]:
    """When every epoch that had input was committed, in seconds since 1970."""
    return [
        datetime.fromisoformat(progress.timestamp).timestamp()
        + progress.durationMs["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress.numInputRows > 0
    ]


def phase_times(query: StreamingQuery) -> dict[str, float]:
    """The median time of each of Spark's phases, over the epochs that had input."""
    times: dict[str, list[float]] = {}
    for progress in query.recentProgress:
        if progress.numInputRows > 0:
            for phase, took in progress.durationMs.items():
                times.setdefault(phase, []).append(float(took))
    return {phase: median(took) for phase, took in times.items()}


def batch_counts(spark: SparkSession, text: Text) -> Counts:
    """The right answer, by a batch query."""
    words = spark.read.text(str(text.folder)).selectExpr("explode(split(value, ' ')) AS key")
    return counts_of(words.groupBy("key").count())


def counts_of(frame: DataFrame) -> Counts:
    """Words and their counts as a mapping; a word must not come twice."""
    words, numbers = (column.to_pylist() for column in frame.toArrow().columns)
    counts = dict(zip(words, numbers, strict=True))
    if len(counts) != len(words):
        raise RuntimeError(f"{len(words) - len(counts)} words came more than once")
    return counts


def median_of(runs: list[Measured]) -> float:
    """The median of the pooled second halves."""
    return median(trigger for run in runs for trigger in run.settled)

"""What durable epochs cost: off, at intervals, and every epoch; beside Spark's own state store.

The word count of ``compare``, with the stateful function and with the built-in count, over large
and over tiny epochs; contenders take turns. *Off* has no ``checkpoint=``; copies on other nodes are
made all the same. Spark's is ``groupBy().count()`` over RocksDB with changelog checkpointing. What
is written to the checkpoints' folders is counted in runs of their own, which are not timed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

from benchmarks.course import TINY_EPOCH, Course
from benchmarks.data import Text
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Options, Result, main, note
from benchmarks.peers.contender import Contender, Measured, median_of
from benchmarks.peers.ours import BuiltinSql, StatefulFunction
from benchmarks.peers.spark import ChangelogCount
from benchmarks.rounds import rounds
from benchmarks.watching import Watch, Written
from millstream.coordinator.journal import CheckpointResult

COST = 0.10
PHASES = ("triggerExecution", "addBatch", "walCommit", "commitOffsets")
PARTS = (*PHASES, "manifest", "serialise", "store")
Mode = Literal["off", "interval", "epoch"]
MODES: tuple[Mode, ...] = ("off", "interval", "epoch")
KINDS: dict[str, type[StatefulFunction] | type[BuiltinSql]] = {
    "stateful": StatefulFunction,
    "builtin": BuiltinSql,
}
SPARK = "spark"
SAME = "builtin_epoch"  # a count for each word, durable in every epoch: what Spark does


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything; there are fewer rounds if they take more than ``seconds``."""

    epochs: int
    words_per_epoch: int
    rounds: int
    tiny_epochs: int
    tiny_rounds: int
    seconds: float


FULL = Size(
    epochs=8,
    words_per_epoch=1_000_000,
    rounds=5,
    tiny_epochs=30,
    tiny_rounds=2,
    seconds=420.0,
)
QUICK = Size(
    epochs=3,
    words_per_epoch=100_000,
    rounds=1,
    tiny_epochs=10,
    tiny_rounds=1,
    seconds=100.0,
)


class Durable:
    """A contender: one of ours, durable in this way."""

    def __init__(self, kind: str, mode: Mode) -> None:
        self.name = f"{kind}_{mode}"
        self.checkpoints: list[CheckpointResult] = []  # of the last run
        options: dict[str, Any] = {"on_checkpoint": lambda result: self.checkpoints.append(result)}
        if mode == "off":
            options["checkpoint"] = None
        else:
            options["durability"] = mode
        self._contender = KINDS[kind](**options)

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        self.checkpoints.clear()
        return self._contender.run(spark, text, work)


class Changelog(ChangelogCount):
    """Spark's own, under the name that it has in the results."""

    name = SPARK


class Counted:
    """A contender whose folder is watched while it runs."""

    def __init__(self, contender: Contender) -> None:
        self.name = contender.name
        self._contender = contender
        self.written = Written(0, 0)

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        with Watch(work) as watch:
            measured = self._contender.run(spark, text, work)
        self.written = watch.written
        return measured


class PerEpoch(NamedTuple):
    """What an epoch writes, on average; the beginning and the end of the run are in it."""

    files: float
    bytes: float


@dataclass
class Taken:
    """What was measured of one contender: a number for each round."""

    rates: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)  # the median epoch of a run, in ms
    tiny: list[Measured] = field(default_factory=list)
    split: list[Mapping[str, float]] = field(default_factory=list)


def contenders() -> list[Contender]:
    """All of them."""
    ours = [Durable(kind, mode) for kind in KINDS for mode in MODES]
    return [*ours, Changelog()]


def durability(spark: SparkSession, options: Options) -> list[Result]:
    """Take all measurements."""
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)
    course = Course(spark, options.folder)
    large = course.text(epochs=size.epochs, words_per_epoch=size.words_per_epoch)
    tiny = course.text(epochs=size.tiny_epochs, words_per_epoch=TINY_EPOCH)
    note(f"{large.words:,} words in {large.epochs} epochs; the first is left out of the rates")
    note(f"tiny: {tiny.epochs} epochs of {tiny.lines_per_epoch:,} rows; the second half counts")
    warm_up = course.text(epochs=2, words_per_epoch=50_000)
    those = contenders()
    for contender in those:
        course.run(contender, warm_up)
    taken = in_turns(course, those, large, tiny, size)
    written = counted(course, {"large": large, "tiny": tiny})
    results = [*times(taken), *volumes(written), *costs(taken)]
    note_goals(results)
    return results


# -- times -----------------------------------------------------------------------------------


def in_turns(
    course: Course, those: Sequence[Contender], large: Text, tiny: Text, size: Size
) -> dict[str, Taken]:
    """Run contenders over the texts, round by round."""
    taken = {contender.name: Taken() for contender in those}
    for number in rounds(size.rounds, size.seconds):
        # There and back again: a machine that drifts treats all alike.
        for contender in those if number % 2 == 0 else reversed(those):
            mine = taken[contender.name]
            measured = course.run(contender, large)
            mine.rates.append(measured.words_per_second(large))
            mine.large.append(median(measured.triggers[1:]))
            mine.split.append(_split(contender, measured))
            said = f"{contender.name}: {mine.rates[-1]:,.0f} words/s"
            if number < size.tiny_rounds:
                mine.tiny.append(course.run(contender, tiny))
                said += f", {median_of(mine.tiny[-1:]):.0f} ms per tiny epoch"
            note(f"{said}, exact")
    return taken


def _split(contender: Contender, measured: Measured) -> dict[str, float]:
    """Where the time of a large epoch goes, in milliseconds.

    Spark's phases and our manifest come one after the other. What nodes need to serialise and to
    store is summed over nodes, and goes on beside other work.
    """
    parts = {phase: measured.phases.get(phase, 0.0) for phase in PHASES}
    if isinstance(contender, Durable):
        commits = [result.commit_seconds for result in contender.checkpoints]
        parts["manifest"] = 1000 * median(commits) if commits else 0.0
        stored = measured.reports[-1].store if measured.reports else None
        if stored is not None:
            parts["serialise"] = 1000 * stored.serialise_seconds / len(measured.triggers)
            parts["store"] = 1000 * stored.store_seconds / len(measured.triggers)
    return parts


def times(taken: Mapping[str, Taken]) -> list[Result]:
    """Throughput, latency, and the parts of an epoch."""
    results: list[Result] = []
    table = [["large epochs, ms", *PARTS]]
    for name, mine in taken.items():
        results += [
            Result(f"{name}_words_per_second", median(mine.rates), "words/s"),
            Result(f"{name}_epoch_ms", median(mine.large), "ms"),
            Result(f"{name}_tiny_epoch_ms", median_of(mine.tiny), "ms"),
        ]
        parts = {
            part: median(split.get(part, 0.0) for split in mine.split)
            for part in PARTS
            if any(part in split for split in mine.split)
        }
        for part in ("manifest", "serialise", "store"):
            if parts.get(part):
                results.append(Result(f"{name}_{part}_ms", parts[part], "ms"))
        table.append([name, *(f"{parts[part]:.1f}" if part in parts else "" for part in PARTS)])
    note_table(table)
    return results


def costs(taken: Mapping[str, Taken]) -> list[Result]:
    """The part of the throughput that durability takes; each round for itself."""
    results: list[Result] = []
    for mode in ("interval", "epoch"):
        for kind in KINDS:
            off, durable = taken.get(f"{kind}_off"), taken.get(f"{kind}_{mode}")
            if off is None or durable is None:
                continue
            pairs = zip(durable.rates, off.rates, strict=True)
            cost = median(1 - rate / base for rate, base in pairs)
            name = f"{mode}_durability_cost"
            if (kind, mode) == ("stateful", "epoch"):
                results.append(Goal(name, cost, "of the rate", at_most=COST))
            else:
                results.append(Result(f"{name}_{kind}", cost, "of the rate"))
    return results


# -- bytes and files -------------------------------------------------------------------------


def counted(course: Course, texts: Mapping[str, Text]) -> dict[tuple[str, str], PerEpoch]:
    """What is written, by contender and size of epochs."""
    found: dict[tuple[str, str], PerEpoch] = {}
    table = [["written per epoch", "epochs", "files", "KB"]]
    for size, text in texts.items():
        for contender in contenders():
            if contender.name.endswith("_off"):
                continue
            watched = Counted(contender)
            course.run(watched, text)
            mine = PerEpoch(*(each / text.epochs for each in watched.written))
            found[contender.name, size] = mine
            table.append([contender.name, size, f"{mine.files:.1f}", f"{mine.bytes / 1000:,.0f}"])
    note_table(table)
    return found


def volumes(found: Mapping[tuple[str, str], PerEpoch]) -> list[Result]:
    """What is written, and how many times as much as Spark writes for the same epochs."""
    results: list[Result] = []
    for (name, size), mine in found.items():
        results += [
            Result(f"{name}_{size}_files_per_epoch", mine.files, "files"),
            Result(f"{name}_{size}_bytes_per_epoch", mine.bytes, "bytes"),
        ]
        if name != SPARK:
            theirs = found[SPARK, size]
            suffix = "" if (name, size) == (SAME, "large") else f"_{name}_{size}"
            results += [
                Result(f"bytes_vs_spark{suffix}", mine.bytes / theirs.bytes, "times"),
                Result(f"files_vs_spark{suffix}", mine.files / theirs.files, "times"),
            ]
    return results


if __name__ == "__main__":
    main(__doc__.splitlines()[0], durability)

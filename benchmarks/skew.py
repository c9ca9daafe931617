"""How policies cope with skew: a small set of words that is repeated, and a single hot key.

Floe's experiment: uniform words, and from some moment on every second one is of a small set whose
slots belong to one node. Then the same with a single word. Four nodes with modelled processors
(``modelled_work``) reduce them with a function that cannot be combined; the imbalance of an epoch
is the most reduce time of a node over the mean. Last, a hot key before a combinable reducer: its
throughput over that of the same text without the hot key.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import mean, median

import pyarrow as pa
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.course import Course
from benchmarks.data import Text, write_text
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Options, Result, main, note
from benchmarks.modelled_work import Played, Processor, play
from benchmarks.peers.ours import BuiltinArrow
from benchmarks.rounds import rounds
from benchmarks.words import SLOTS, counts_of, repeated, uniform
from millstream.elastic.bottleneck_policy import BottleneckOptions, BottleneckPolicy
from millstream.elastic.latency_policy import LatencyPolicy
from millstream.elastic.policy import ManualPolicy, Policy
from millstream.elastic.ring_policy import RingPolicy

NODES = 4
MASTER = f"local[{NODES}]"
REPEATED = 40
ROWS = 4_000  # in an epoch
SECONDS_PER_VALUE = 0.0004
SKEWED_AT = 8  # the epoch with which the skew begins
PROMISED = 10  # epochs from then on until the load is balanced
SHOWN = (0, 2, 5, 10, 15)
HOT = "hot"
POLICIES: dict[str, Policy] = {
    "none": ManualPolicy(),
    "ring": RingPolicy(),
    # Reports as often as epochs: SEEP's 5 s are half of the ten epochs in which the load is to be
    # balanced.
    "bottleneck": BottleneckPolicy(BottleneckOptions(every=timedelta(seconds=0.5))),
    "latency": LatencyPolicy(),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything."""

    epochs: int
    text_epochs: int
    words_per_epoch: int
    rounds: int
    seconds: float


FULL = Size(epochs=32, text_epochs=8, words_per_epoch=1_000_000, rounds=4, seconds=240.0)
QUICK = Size(epochs=24, text_epochs=3, words_per_epoch=100_000, rounds=1, seconds=60.0)


def skew(spark: SparkSession, options: Options) -> list[Result]:
    """Take all measurements."""
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)
    numbers = count()
    results: list[Result] = []
    drawn = uniform(size.epochs * ROWS)
    for name, number in (("", REPEATED), ("hot_key_", 1)):
        words = repeated(drawn, SKEWED_AT * ROWS, number, NODES)
        series = {}
        for policy in POLICIES:
            work = options.folder / f"run{next(numbers)}"
            series[policy] = imbalances(played(spark, words, POLICIES[policy], work))
            note(f"{number} repeated words, {policy}: exact")
        note_series(series)
        results += imbalance_results(name, series)
    folder = options.folder / "throughput"
    folder.mkdir()
    results += hot_key_throughput(Course(spark, folder), folder, size)
    note_goals(results)
    return results


# -- imbalance -------------------------------------------------------------------------------


def played(spark: SparkSession, words: pa.Array, policy: Policy, work: Path) -> Played:
    return play(
        spark,
        ms.read.replay(pa.table({"key": words}), rows_per_epoch=ROWS),
        Processor(SECONDS_PER_VALUE),
        counts_of(words),
        work=work,
        nodes=NODES,
        slots=SLOTS,
        replicas=1,
        policy=policy,
        min_nodes=NODES,
        max_nodes=NODES,
    )


def imbalances(run: Played) -> list[float]:
    """The imbalance of each epoch from the skew on."""
    return [seen.imbalance(NODES) for seen in run.epochs if seen.epoch >= SKEWED_AT]


def balanced_after(series: Sequence[float], at_most: float) -> int | None:
    """The number of epochs after which the imbalance is, and stays, small."""
    large = [at for at, value in enumerate(series) if value > at_most]
    after = large[-1] + 1 if large else 0
    return after if after < len(series) else None


def note_series(series: dict[str, list[float]]) -> None:
    """Say how the imbalance develops with each policy."""
    heading = ["imbalance after epochs", *map(str, SHOWN), "balanced after"]
    table = [heading]
    for policy, values in series.items():
        after = balanced_after(values, 1.25)
        shown = [f"{values[at]:.2f}" for at in SHOWN]
        table.append([policy, *shown, "never" if after is None else f"{after} epochs"])
    note_table(table)


def imbalance_results(prefix: str, series: dict[str, list[float]]) -> Iterator[Result]:
    """The mean imbalance from the promised epoch on.

    With a single hot key it cannot be small: the node with that key has half of the load.
    """
    for policy, values in series.items():
        name, value = f"{prefix}imbalance_{policy}", mean(values[PROMISED:])
        if prefix or policy == "none":
            yield Result(name, value, "times the mean")
        else:
            yield Goal(name, value, "times the mean", at_most=1.25)


# -- throughput ------------------------------------------------------------------------------


def with_hot_key(text: Text, folder: Path) -> Text:
    """The same text with every second word replaced by one and the same."""
    folder.mkdir()
    for file in sorted(text.folder.iterdir()):
        replaced = re.sub(r"\S+ (\S+)", rf"{HOT} \1", file.read_text())
        (folder / file.name).write_text(replaced)
    return Text(folder, text.epochs, text.lines_per_epoch, text.words_per_epoch)


def hot_key_throughput(course: Course, folder: Path, size: Size) -> Iterator[Result]:
    """The rate of the built-in count with a hot key, and its share of that without."""
    plain = write_text(
        folder / "plain", epochs=size.text_epochs, words_per_epoch=size.words_per_epoch
    )
    texts = {"plain": course.add(plain), "hot": course.add(with_hot_key(plain, folder / "hot"))}
    course.run(BuiltinArrow(), plain)  # to warm up
    rates: dict[str, list[float]] = {name: [] for name in texts}
    for number in rounds(size.rounds, size.seconds):
        # There and back again: a machine that drifts treats all alike.
        for name in texts if number % 2 == 0 else reversed(texts):
            measured = course.run(BuiltinArrow(), texts[name])
            rates[name].append(measured.words_per_second(texts[name]))
            note(f"built-in count, {name} text: {rates[name][-1]:,.0f} words/s, exact")
    found = {name: median(of_text) for name, of_text in rates.items()}
    for name, rate in found.items():
        yield Result(f"words_per_second_{name}", rate, "words/s")
    share = found["hot"] / found["plain"]
    yield Goal("hot_key_throughput_share", share, "of the rate", at_least=0.75)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], skew, master=MASTER)

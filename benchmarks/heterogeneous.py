"""Nodes of different speed: what the latency policy gains over an even split.

Four nodes with modelled processors (``modelled_work``), of which one is half as fast as the fast
ones, and one a third, count uniform words. An even split waits for the slowest node in every
epoch. With the latency policy (C-MR's) the rounds of decisions are counted; after five of them
epochs have to be shorter.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean

import pyarrow as pa
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Options, Result, main, note
from benchmarks.modelled_work import Played, Processor, Seen, play
from benchmarks.words import SLOTS, counts_of, text_of, uniform
from millstream.elastic.events import Event

SLOWNESS = (1.0, 1.0, 2.0, 3.0)
NODES = len(SLOWNESS)
MASTER = f"local[{NODES}]"
ROWS = 4_000  # in an epoch
SECONDS_PER_VALUE = 0.0003
WARM_UP = 5  # epochs
ROUNDS = 5
GAIN = 0.15


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything."""

    epochs: int


FULL = Size(epochs=50)
QUICK = Size(epochs=30)


def heterogeneous(spark: SparkSession, options: Options) -> list[Result]:
    """Take all measurements."""
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)
    words = text_of(uniform(size.epochs * ROWS))
    numbers = count()

    def run(policy: str) -> Played:
        work = options.folder / f"run{next(numbers)}"
        ranks = options.folder / f"{work.name}-ranks"
        ranks.mkdir()
        return play(
            spark,
            ms.read.replay(pa.table({"key": words}), rows_per_epoch=ROWS),
            Processor(SECONDS_PER_VALUE, slowness=SLOWNESS, ranks=ranks),
            counts_of(words),
            work=work,
            nodes=NODES,
            slots=SLOTS,
            replicas=1,
            policy=policy,
            min_nodes=NODES,
            max_nodes=NODES,
        )

    even, balanced = run("manual"), run("latency")
    results = list(results_of(even, balanced))
    note_goals(results)
    return results


def results_of(even: Played, balanced: Played) -> Iterator[Result]:
    """The mean latencies of both, and the gain; predictions are noted beside what came."""
    decisions = rounds_of(balanced.events)
    note_decisions(decisions)
    settled = decisions[ROUNDS - 1].epoch if len(decisions) >= ROUNDS else decisions[-1].epoch
    before = mean_seconds([seen for seen in even.epochs if seen.epoch >= WARM_UP])
    after = mean_seconds([seen for seen in balanced.epochs if seen.epoch > settled + 1])
    note(f"even split {before:.2f} s; after {min(ROUNDS, len(decisions))} rounds {after:.2f} s")
    yield Result("even_latency_s", before, "s")
    yield Result("balanced_latency_s", after, "s")
    yield Result("balancing_rounds", len(decisions), "rounds")
    yield Goal("latency_gain", 1 - after / before, "of the latency", at_least=GAIN)


def mean_seconds(epochs: Sequence[Seen]) -> float:
    """The mean latency of a row: all rows of an epoch come out at its end."""
    return mean(seen.seconds for seen in epochs)


def rounds_of(events: Sequence[Event]) -> list[Event]:
    """The decisions that moved something."""
    return [event for event in events if event.kind == "decision"]


def note_decisions(decisions: Sequence[Event]) -> None:
    """Say what each decision predicted, and what came of it."""
    table = [["round", "epoch", "predicted", "seen"]]
    for number, event in enumerate(decisions, 1):
        table.append([str(number), str(event.epoch), str(event.facts), ""])
    note_table(table)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], heterogeneous, master=MASTER)

"""Nodes of different speed: what the latency policy gains over an even split.

Four nodes with modelled processors (``modelled_work``), of which one is half as fast as the fast
ones, and one a third, count uniform words. An even split waits for the slowest node in every
epoch. With the latency policy (C-MR's) the rounds of decisions are counted; after five of them
epochs have to be shorter.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    if not decisions:
        raise SystemExit("the policy has decided nothing")
    note_rounds(decisions, balanced.epochs)
    settled = decisions[:ROUNDS][-1].epoch
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


@dataclass(frozen=True)
class Round:
    """A decision, the mean latency that it predicts, and that seen before and after it.

    All are those of the policy's model: how long a value is at a node.
    """

    epoch: int
    before: float
    predicted: float
    after: float | None


def rounds_of(events: Sequence[Event]) -> list[Round]:
    """The decisions, each with what came of it before the next one."""
    found: list[Round] = []
    for event in events:
        if event.kind == "decision":
            before, predicted = _latency(event, "inputs"), _latency(event, "predicted")
            found.append(Round(event.epoch, before, predicted, None))
        elif event.kind == "outcome" and found:
            found[-1] = replace(found[-1], after=_latency(event, "after"))
    return found


def _latency(event: Event, fact: str) -> float:
    figures = event.facts[fact]
    assert isinstance(figures, Mapping)
    return float(figures["latency"])


def note_rounds(decisions: Sequence[Round], epochs: Sequence[Seen]) -> None:
    """Say what each decision predicted, and what came of it."""
    table = [["round", "after epoch", "latency before", "predicted", "seen", "epochs then took"]]
    ends = [*(decision.epoch for decision in decisions[1:]), epochs[-1].epoch]
    for number, (decision, end) in enumerate(zip(decisions, ends, strict=True), 1):
        then = [seen for seen in epochs if decision.epoch + 1 < seen.epoch <= end]
        table.append(
            [
                str(number),
                str(decision.epoch),
                _ms(decision.before),
                _ms(decision.predicted),
                _ms(decision.after),
                _ms(mean_seconds(then) if then else None),
            ]
        )
    note_table(table)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    main(__doc__.splitlines()[0], heterogeneous, master=MASTER)

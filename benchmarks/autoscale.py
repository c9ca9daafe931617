"""A load that rises and falls, under each policy: how many nodes there are, and what that costs.

Words come at a rate that follows a sine, or steps; nodes have modelled processors
(``modelled_work``). Policies begin with one node and may have six. Their node-seconds are compared
with those of the smallest fixed number of nodes whose latency is not worse (the 95th percentile of
all rows). Nodes, load and latency over time are written as data, and as plots. The load changes
within minutes instead of hours, so policies wait for shorter times between decisions. Epochs are
bounded, as users bound them where the load may exceed what nodes can do.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Options, Result, asked_of, note, parser_for, take
from benchmarks.load_shapes import PEAK, SHAPES, arrivals
from benchmarks.load_traces import Trace, trace_of
from benchmarks.modelled_work import Processor, play
from benchmarks.plots import Line, Panel, plot
from benchmarks.words import SLOTS, counts_of, text_of, uniform
from millstream.elastic.bottleneck_policy import BottleneckOptions, BottleneckPolicy
from millstream.elastic.latency_policy import LatencyOptions, LatencyPolicy
from millstream.elastic.policy import ManualPolicy, Policy
from millstream.elastic.ring_policy import RingPolicy

MOST = 6
MASTER = f"local[{MOST}]"
EVERY = timedelta(seconds=1)
SECONDS_PER_VALUE = 0.0005
# A second of the peak. Without a bound an overloaded run takes all that has come meanwhile into its
# next epoch, which is then longer still, and nodes join only between two epochs.
ROWS_PER_EPOCH = PEAK
GOAL = 1.25
POLICIES: dict[str, Policy] = {
    "ring": RingPolicy(),
    "bottleneck": BottleneckPolicy(BottleneckOptions(every=timedelta(seconds=2))),
    # A node whose epoch's work takes 0.7 s of the second is as busy as others let it be.
    "latency": LatencyPolicy(LatencyOptions(target=timedelta(seconds=0.7))),
}


COOLDOWN = ms.Cooldown(
    after_scaling=timedelta(seconds=4),
    scale_in_after=timedelta(seconds=8),
    no_return=timedelta(seconds=8),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything."""

    seconds: float
    shapes: tuple[str, ...]


FULL = Size(seconds=100.0, shapes=("sine", "steps"))
QUICK = Size(seconds=50.0, shapes=("sine",))


# -- runs ------------------------------------------------------------------------------------


class Track:
    """Runs one shape of load, with policies and with fixed numbers of nodes."""

    def __init__(self, spark: SparkSession, folder: Path, shape: str, seconds: float) -> None:
        self._spark = spark
        self._folder = folder
        self._shape = shape
        self._numbers = count()
        self._fixed: dict[int, Trace] = {}
        self._due = due = arrivals(SHAPES[shape](seconds), seconds)
        words = text_of(uniform(len(due)))
        midnight = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        times = pa.array(((midnight + due) * 1e6).astype(np.int64)).cast(pa.timestamp("us", "UTC"))
        self._table = pa.table({"key": words, "time": times})
        self._expected = counts_of(words)

    def run(self, policy: Policy, *, nodes: int, least: int, most: int) -> Trace:
        played = play(
            self._spark,
            ms.read.replay(
                self._table, speedup=1.0, time_column="time", rows_per_epoch=ROWS_PER_EPOCH
            ),
            Processor(SECONDS_PER_VALUE),
            self._expected,
            work=self._folder / f"{self._shape}{next(self._numbers)}",
            nodes=nodes,
            slots=SLOTS,
            replicas=1,
            every=EVERY,
            policy=policy,
            min_nodes=least,
            max_nodes=most,
            cooldown=COOLDOWN,
        )
        return trace_of(played, self._due)

    def elastic(self, name: str) -> Trace:
        trace = self.run(POLICIES[name], nodes=1, least=1, most=MOST)
        self._note(name, trace)
        return trace

    def fixed(self, nodes: int) -> Trace:
        if nodes not in self._fixed:
            trace = self.run(ManualPolicy(), nodes=nodes, least=nodes, most=nodes)
            self._fixed[nodes] = trace
            self._note(f"{nodes} nodes", trace)
        return self._fixed[nodes]

    def best_fixed(self, elastic: Trace) -> Trace:
        """The smallest number of nodes whose latency is not worse, else the largest.

        It is searched for from the mean number of the elastic run on: with far too few nodes a
        run takes very long.
        """
        nodes = min(MOST, math.ceil(elastic.mean_nodes))
        while nodes < MOST and self.fixed(nodes).p95 > elastic.p95:
            nodes += 1
        while nodes > 1 and self.fixed(nodes - 1).p95 <= elastic.p95:
            nodes -= 1
        return self.fixed(nodes)

    def _note(self, name: str, trace: Trace) -> None:
        note(
            f"{self._shape}, {name}: {trace.mean_nodes:.2f} nodes on average, 95 % of rows within "
            f"{trace.p95:.2f} s; exact"
        )


@dataclass(frozen=True)
class Compared:
    """A policy's run beside the best fixed number of nodes."""

    elastic: Trace
    fixed: Trace

    @property
    def ratio(self) -> float:
        """Node-hours over those of the fixed allocation."""
        return self.elastic.node_seconds / self.fixed.node_seconds


def autoscale(spark: SparkSession, options: Options, plots: Path | None) -> list[Result]:
    """Take all measurements."""
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)
    compared: dict[str, dict[str, Compared]] = {policy: {} for policy in POLICIES}
    for shape in size.shapes:
        track = Track(spark, options.folder, shape, size.seconds)
        for policy in POLICIES:
            trace = track.elastic(policy)
            compared[policy][shape] = Compared(trace, track.best_fixed(trace))
    if plots is not None:
        write_plots(plots, compared)
    results = list(results_of(compared))
    note_goals(results)
    return results


def results_of(compared: Mapping[str, Mapping[str, Compared]]) -> Iterator[Result]:
    """How each policy compares; the dearer of the shapes stands for it."""
    table = [["policy", "load", "nodes", "best fixed", "p95", "p95 fixed"]]
    for policy, of_shapes in compared.items():
        for shape, each in of_shapes.items():
            counts = [f"{trace.mean_nodes:.2f}" for trace in (each.elastic, each.fixed)]
            delays = [f"{trace.p95:.2f} s" for trace in (each.elastic, each.fixed)]
            table.append([policy, shape, *counts, *delays])
            yield Result(f"node_hours_{shape}_{policy}", each.ratio, "times the best fixed")
            yield Result(f"p95_s_{shape}_{policy}", each.elastic.p95, "s")
        dearest = max(each.ratio for each in of_shapes.values())
        yield Goal(f"node_hours_{policy}", dearest, "times the best fixed", at_most=GOAL)
    note_table(table)


# -- plots -----------------------------------------------------------------------------------


def write_plots(folder: Path, compared: Mapping[str, Mapping[str, Compared]]) -> None:
    """Write a plot for each policy, and the data of all."""
    folder.mkdir(parents=True, exist_ok=True)
    for policy, of_shapes in compared.items():
        columns = [(shape, panels_of(each)) for shape, each in of_shapes.items()]
        title = f"policy={policy!r}, beside the best fixed number of nodes"
        (folder / f"autoscale-{policy}.svg").write_text(plot(title, columns))
    data = {
        policy: {shape: vars(each.elastic) for shape, each in of_shapes.items()}
        for policy, of_shapes in compared.items()
    }
    (folder / "autoscale.json").write_text(json.dumps(rounded(data), indent=1) + "\n")
    note(f"wrote plots and data to {folder}")


def panels_of(each: Compared) -> list[Panel]:
    elastic, fixed = each.elastic, each.fixed
    return [
        Panel("load (rows per second)", [Line("load", elastic.rate)]),
        Panel(
            "nodes",
            [Line("elastic", elastic.nodes, steps=True), Line("fixed", fixed.nodes, steps=True)],
        ),
        Panel(
            "latency (seconds)", [Line("elastic", elastic.latency), Line("fixed", fixed.latency)]
        ),
    ]


def rounded(value: object) -> object:
    """Data with three digits after the point."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


if __name__ == "__main__":
    parser = parser_for(__doc__.splitlines()[0])
    parser.add_argument("--plots", metavar="FOLDER", type=Path, help="write plots and data there")
    asked = asked_of(parser)
    take(asked, partial(autoscale, plots=asked.plots), master=MASTER)

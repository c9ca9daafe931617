"""How long lost nodes hold up a run, beside a lost executor in Spark's own stateful streaming.

Ours: 6 nodes, one replica, ``durability="epoch"``, on ``local[2]`` (nodes are processes of their
own). Nodes that are not next to each other in the ring are killed at once. Recovery lasts from
the kill to the first epoch in which outputs of all their slots came from other processes.
Replacement lasts from the kill of one node until as many nodes as before have all their copies.
Spark: ``groupBy().count()`` on ``local-cluster``, of whose two executors one is killed.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Options, Result, main, note
from benchmarks.peers.spark_recovery import CLUSTER, spark_results
from benchmarks.ranges import (
    Input,
    Witness,
    range_counts,
    write_input,
)
from benchmarks.replacement import replace_results
from benchmarks.rounds import rounds
from millstream.ring.hashing import hash_column, slot_of
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring

NODES = 6
SETTLING = 8  # small epochs before the kill
GOAL_S = 1.5
FLAT = 1.5


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything; there are fewer rounds if they take more than ``seconds``."""

    keys: tuple[int, ...]
    failures: tuple[int, ...]
    rounds: int
    seconds: float
    epochs: int
    replacements: int
    spark_keys: int


FULL = Size(
    keys=(10_000, 100_000, 1_000_000),
    failures=(1, 2, 3),
    rounds=5,
    seconds=240.0,
    epochs=250,
    replacements=3,
    spark_keys=1_000_000,
)
QUICK = Size(
    keys=(10_000, 20_000),
    failures=(1, 3),
    rounds=1,
    seconds=240.0,
    epochs=120,
    replacements=1,
    spark_keys=20_000,
)


def recovery(spark: SparkSession, options: Options) -> list[Result]:
    """Take all measurements; the session is stopped on the way."""
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)  # nodes are lost on purpose
    note(f"ours: {NODES} nodes on {spark.sparkContext.master}")
    cells = our_cells(spark, options.folder, size)
    replaced = replace_results(
        spark, options.folder, nodes=NODES, keys=size.keys, rounds=size.replacements
    )
    spark.stop()
    note(f"Spark's: {size.spark_keys:,} keys on {CLUSTER}")
    reloaded = spark_results(options.folder, size.spark_keys)
    results = [*our_results(cells), *replaced, *reloaded]
    note_goals(results)
    return results


# -- ours ------------------------------------------------------------------------------------


@dataclass
class Cell:
    """What was measured for so many failures and keys."""

    failures: int
    keys: int
    recoveries: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"recovery_s_{self.failures}f_{self.keys // 1000}k"


@dataclass(frozen=True)
class Seen:
    """An epoch as the sink saw it: when, and which process reduced the slots of each node."""

    at: float
    pids: Mapping[int, frozenset[int]]


class OwnerWitness(Witness):
    """The sink: notes which processes reduced the slots of each node."""

    def __init__(self, given: Input) -> None:
        super().__init__(given)
        self._owners: npt.NDArray[np.int32] | None = None
        self.seen: list[Seen] = []

    def watch(self, ring: Ring) -> None:
        """Tell from now on whose slots the outputs are of, by this ring."""
        hashes = hash_column(pa.array(np.arange(self._given.keys)))
        self._owners = ring.table[slot_of(hashes, ring.slots)]

    def note(self, now: float, rows: list[Any]) -> None:
        if self._owners is None:
            return
        super().note(now, rows)
        pids: dict[int, set[int]] = {}
        for key, _, pid in rows:
            pids.setdefault(int(self._owners[key]), set()).add(pid)
        self.seen.append(Seen(now, {at: frozenset(found) for at, found in pids.items()}))

    def recovered(self, victims: Mapping[int, int], killed: float) -> float | None:
        """When outputs of all the victims' slots came from others than the victims.

        Victims are places in the ring with their processes.
        """
        for seen in self.seen:
            others = [at for at, pid in victims.items() if pid not in seen.pids.get(at, (pid,))]
            if seen.at > killed and len(others) == len(victims):
                return seen.at
        return None


def our_cells(spark: SparkSession, folder: Path, size: Size) -> list[Cell]:
    """Kill nodes, cell by cell, in rounds.

    The moment is random, but of each cell's n kills one falls into each n-th of an epoch: what
    is left of an epoch at the kill is then the same for all cells, on average.
    """
    chance = random.Random(1)
    numbers = count()
    inputs = [
        write_input(folder / f"keys{keys}", keys=keys, epochs=size.epochs) for keys in size.keys
    ]
    cells = [Cell(failures, given.keys) for given in inputs for failures in size.failures]
    measure(spark, Cell(1, inputs[0].keys), inputs[0], folder / "warm-up", 0.5)
    for number in rounds(size.rounds, size.seconds):
        for cell in cells:
            given = next(given for given in inputs if given.keys == cell.keys)
            phase = (number + chance.random()) / size.rounds
            measure(spark, cell, given, folder / f"run{next(numbers)}", phase)
            note(
                f"{cell.failures} of {NODES} nodes, {cell.keys:,} keys: output again after "
                f"{cell.recoveries[-1]:.2f} s; an epoch takes {cell.epochs[-1]:.2f} s; exact"
            )
    return cells


def measure(spark: SparkSession, cell: Cell, given: Input, work: Path, phase: float) -> None:
    """Load the state, let small epochs run, kill nodes, and add what was measured to the cell.

    The kill comes when so much of an epoch has passed since an output.
    """
    witness = OwnerWitness(given)
    flow = range_counts("recovery", given, witness)
    started = ms.start(flow, spark=spark, checkpoint=work, nodes=NODES, replicas=1, progress=False)
    with started as run:
        placement = run._coordinator.roster.placement
        witness.watch(placement.ring)
        pids = {node.node: node.pid for node in run.status().nodes}
        victims = {
            placement.ring.nodes.index(node): pids[node]
            for node in choose_victims(placement, cell.failures)
        }
        witness.wait(lambda: len(witness.seen) >= SETTLING, run)
        epoch_s = median(b.at - a.at for a, b in pairwise(witness.seen[SETTLING // 2 :]))
        time.sleep(phase * epoch_s)
        killed = time.monotonic()
        for pid in victims.values():
            os.kill(pid, signal.SIGKILL)
        witness.wait(lambda: witness.recovered(victims, killed) is not None, run)
        recovered = witness.recovered(victims, killed)
        assert recovered is not None
        cell.recoveries.append(recovered - killed)
        cell.epochs.append(epoch_s)


def choose_victims(placement: Placement, failures: int) -> list[NodeId]:
    """Every other node, clockwise; every slot keeps a copy."""
    victims = list(placement.ring.nodes[: 2 * failures : 2])
    for share in placement.shares(range(placement.ring.slots)):
        if {share.owner, *share.copies} <= set(victims):
            raise SystemExit(f"{failures} failures would lose slots {share.slots}")
    return victims


def our_results(cells: Sequence[Cell]) -> list[Result]:
    """The medians, how flat they are, and the duration of an epoch beside them."""
    epoch_s = median(epoch for cell in cells for epoch in cell.epochs)
    times = {(cell.failures, cell.keys): median(cell.recoveries) for cell in cells}
    failures = sorted({cell.failures for cell in cells})
    keys = sorted({cell.keys for cell in cells})
    heading = ["failures", *(f"{number:,} keys" for number in keys), "max/min"]
    table = [heading]
    for number in failures:
        row = [times[number, each] for each in keys]
        table.append([str(number), *(f"{value:.2f} s" for value in row), f"{_spread(row):.2f}"])
    columns = [[times[number, each] for number in failures] for each in keys]
    table.append(["max/min", *(f"{_spread(column):.2f}" for column in columns), ""])
    for each in keys:
        mine = [epoch for cell in cells if cell.keys == each for epoch in cell.epochs]
        note(f"{each:,} keys: an epoch takes {median(mine):.2f} s, {len(mine)} runs")
    note_table(table)
    goal = GOAL_S + epoch_s
    return [
        *(Goal(cell.name, median(cell.recoveries), "s", goal) for cell in cells),
        Result("epoch_s", epoch_s, "s"),
        Goal("flat_failures", max(map(_spread, columns)), "times", FLAT),
        Goal(
            "flat_keys",
            max(_spread([times[number, each] for each in keys]) for number in failures),
            "times",
            FLAT,
        ),
    ]


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], recovery)

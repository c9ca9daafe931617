"""How long it takes until a node that was killed is replaced, and all copies are in sync again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

import millstream as ms
from benchmarks.changes import PACE, PATIENCE
from benchmarks.harness import Result, note
from benchmarks.ranges import Input, Witness, check_state, range_counts, write_input
from benchmarks.wholeness import await_whole

SETTLING = 8  # small epochs before the kill
EPOCHS = 250


def replace_results(
    spark: SparkSession, folder: Path, *, nodes: int, keys: Sequence[int], rounds: int
) -> list[Result]:
    """Kill one of the nodes, for each number of keys; the largest median stands for all."""
    times: dict[int, list[float]] = {number: [] for number in keys}
    inputs = [write_input(folder / f"replace{n}", keys=n, epochs=EPOCHS) for n in keys]
    for number in range(rounds):
        for given in inputs:
            work = folder / f"replace-run{given.keys}-{number}"
            took = replaced_after(spark, given, work, nodes)
            times[given.keys].append(took)
            note(f"{given.keys:,} keys: replaced and in sync after {took:.2f} s; exact")
    medians = {number: median(found) for number, found in times.items()}
    return [
        *(Result(f"replace_s_{n // 1000}k", found, "s") for n, found in medians.items()),
        Result("replace_s", max(medians.values()), "s"),
    ]


def replaced_after(spark: SparkSession, given: Input, work: Path, nodes: int) -> float:
    """Kill a node of a run, and wait for its replacement."""
    witness = Witness(given)
    flow = range_counts("replace", given, witness, follow=True)
    started = ms.start(
        flow, spark=spark, checkpoint=work, nodes=nodes, replicas=1, every=PACE, progress=False
    )
    with started as run:
        witness.wait_for_more(SETTLING, run)
        victim = await_victim(run, nodes)
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        while any(node.pid == victim for node in run.status().nodes):
            if time.monotonic() > killed + PATIENCE.total_seconds():
                raise SystemExit("the killed node was not noticed")
            time.sleep(0.01)
        took = await_whole(run, nodes, PATIENCE) - killed
        witness.wait_for_more(1, run)
        check_state(run, given)
        return took


def await_victim(run: ms.Run, nodes: int) -> int:
    """The process of a node, once every slot has its copies."""
    await_whole(run, nodes, PATIENCE)
    return run.status().nodes[0].pid

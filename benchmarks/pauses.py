"""How long a node is ever silent with a million keys, and whether its memory stays as it is.

Two real nodes with a copy each, and a coordinator, without Spark. First the pauses, for keys with
plain, list and dict values: the keys are loaded, then some of them change in every epoch, and once
all of them do. Meanwhile a process pings one node, which has a processor to itself, and reads keys
from it, all the time; the longest pause counts, without time in which other processes had all
processors (``probing.py``); the waits beside it are with it. Then memory: small epochs of a job
with a time-to-live, whose keys are steady, come back before they expire, or are new and do expire.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Result, environment, note, print_table, write_results
from benchmarks.nodes import JOB, SLOTS, NodeRun
from benchmarks.probing import Target, probed, processor_for
from millstream.errors import Place
from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex
from millstream.ring.hashing import slot_of_key
from millstream.wire.commit import NOTHING_COMMITTED
from millstream.wire.membership import Ping
from millstream.wire.state_reads import GetStates

MAX_PAUSE_MS = 50
MAX_GROWTH = 0.02
SECOND = 1_000_000
_ANY_RING = -1


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    keys: int
    at_once: int
    epochs: int
    changes: int
    memory_epochs: int
    memory_keys: int
    kinds: tuple[str, ...] = ("plain", "list", "dict")


FULL = Size(1_000_000, 100_000, 200, 10_000, 2_000, 2_000)
QUICK = Size(50_000, 10_000, 10, 1_000, 60, 200)


# -- jobs ------------------------------------------------------------------------------------


def plain(key: Any, values: list[int], state: Any) -> None:
    state["count"] = state.get("count", 0) + len(values)
    state["last"] = values[-1]


def listed(key: Any, values: list[int], state: Any) -> None:
    state["last"] = [*state.get("last", ()), *values][-5:]


def mapped(key: Any, values: list[int], state: Any) -> None:
    counts = state.get("counts", {})
    for value in values:
        name = str(value % 5)
        counts[name] = counts.get(name, 0) + 1
    state["counts"] = counts


FUNCTIONS = {"plain": plain, "list": listed, "dict": mapped}


def job_of(function: Any, ttl: timedelta | None = None) -> JobVertex:
    """A job with a reduce function."""
    vertex = JobVertex(Place(__file__, 1), name="job", reducer=reducer_of(function, "job"))
    return replace(vertex, ttl=ttl)


def reads_of(run: NodeRun, keys: list[str]) -> list[GetStates]:
    """Reads of those keys that the first node owns."""
    slots = {key: slot_of_key(key, pa.string(), SLOTS) or 0 for key in keys}
    owner = run.coordinator.roster.placement.owner
    return [
        GetStates(JOB, (key,), (slot,), _ANY_RING, NOTHING_COMMITTED)
        for key, slot in slots.items()
        if owner(slot) == run.started[0].node
    ]


# -- pauses ----------------------------------------------------------------------------------


def pauses(size: Size, kind: str) -> list[Result]:
    """The longest waits with keys of one kind."""
    keys = [f"key-{number}" for number in range(size.keys)]
    rng = random.Random(kind)
    phases: dict[str, tuple[float, float]] = {}
    with NodeRun(job_of(FUNCTIONS[kind])) as run:
        run.run(run.blocks([(keys[0], 0)]), 0)
        changes = [
            run.blocks([(keys[at], at) for at in rng.sample(range(size.keys), size.changes)])
            for _ in range(size.epochs)
        ]
        everything = run.blocks([(key, 1) for key in keys])
        loads = [
            run.blocks([(key, 0) for key in keys[at : at + size.at_once]])
            for at in range(0, size.keys, size.at_once)
        ]
        some = keys[:: max(1, size.keys // 1000)]
        reads = [("get", request) for request in reads_of(run, some)]
        measured, *others = (Target(node.address, node.pid) for node in run.started)
        with (
            processor_for(measured, others),
            probed([measured], run.secret, [("ping", Ping()), *reads]) as found,
        ):
            for phase, epochs in (
                ("load", loads),
                ("changes", changes),
                ("everything", [everything]),
                ("after", changes[:5]),
            ):
                started = time.monotonic()
                for blocks in epochs:
                    run.run(blocks, run.epoch * SECOND)
                phases[phase] = started, time.monotonic()
                note(f"{kind}: {phase}, {len(epochs)} epochs, {phases[phase][1] - started:.1f} s")
    answers = sum(waits.answers for waits in found)
    note(f"{kind}: {answers:,} answers")
    results = []
    for phase, (start, end) in phases.items():
        slow = [s for waits in found for at, _, s in waits.slow if start <= at < end]
        results.append(Result(f"pause_{kind}_{phase}_ms", 1000 * max(slow, default=0.0), "ms"))
    for what in sorted({name for waits in found for name in waits.longest}):
        longest = max(waits.longest.get(what, 0.0) for waits in found)
        results.append(Result(f"pause_{kind}_{what}_ms", 1000 * longest, "ms"))
        wall = max(waits.walls.get(what, 0.0) for waits in found)
        results.append(Result(f"wait_{kind}_{what}_ms", 1000 * wall, "ms"))
    return results


# -- memory ----------------------------------------------------------------------------------


def growth(size: Size) -> list[Result]:
    """How much of their memory nodes gain in a thousand epochs of steady keys with a TTL."""
    rng = random.Random(1)
    steady = [f"steady-{number}" for number in range(size.memory_keys)]
    taken: list[list[int]] = []
    ttl = timedelta(seconds=20)
    with NodeRun(job_of(listed, ttl)) as run:
        for epoch in range(size.memory_epochs):
            some = rng.sample(steady, len(steady) // 10)
            passing = [f"passing-{epoch}-{number}" for number in range(len(steady) // 20)]
            result = run.run(
                run.blocks([(key, epoch) for key in (*some, *passing)]), epoch * SECOND
            )
            taken.append([result.reports[node.node].memory for node in run.started])
    memory = np.array(taken, dtype=float)
    settled = memory[len(memory) // 4 :]
    epochs = np.arange(len(settled))
    slopes = [np.polyfit(epochs, node, 1)[0] / node.mean() for node in settled.T]
    note_table(
        [("epoch", "MB of each node")]
        + [
            (str(at), " ".join(f"{bytes_ / 2**20:.1f}" for bytes_ in memory[at]))
            for at in np.linspace(0, len(memory) - 1, 9, dtype=int)
        ]
    )
    return [Goal("growth_per_1000_epochs", 1000 * max(slopes), "of the memory", at_most=MAX_GROWTH)]


def measure(size: Size, parts: Sequence[str]) -> list[Result]:
    """Take the measurements."""
    results: list[Result] = []
    if "pauses" in parts:
        for kind in size.kinds:
            results += pauses(size, kind)
        longest = max(r.value for r in results if r.name.startswith("pause_"))
        results.append(Goal("max_pause_ms", longest, "ms", at_most=MAX_PAUSE_MS))
    if "memory" in parts:
        results += growth(size)
    note_goals(results)
    return results


def main() -> None:
    """Take the measurements that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less data, for a first impression")
    parser.add_argument("--part", choices=("pauses", "memory"), help="one part alone")
    parser.add_argument("--kind", choices=tuple(FUNCTIONS), help="one kind of values alone")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    asked = parser.parse_args()
    size = QUICK if asked.quick else FULL
    if asked.kind:
        size = replace(size, kinds=(asked.kind,))
    results = measure(size, (asked.part,) if asked.part else ("pauses", "memory"))
    print_table(results)
    if asked.json is not None:
        write_results(asked.json, results, environment(None) | {"quick": asked.quick})


if __name__ == "__main__":
    main()

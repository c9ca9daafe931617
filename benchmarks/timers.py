"""What a million timers that wait cost an epoch.

Two runs of real nodes with a copy each, and a coordinator, without Spark. Both have the same job
with ``on_timer`` and the same keys: in one of them a million keys have a timer that waits, in the
other an entry instead. They take turns with epochs that change some of 100,000 other keys, and
with epochs that change as many of the million. The same changes go to both, one after the other:
the median of how much longer the one with timers takes, as a part of the other, is
``timer_wait_cost`` for the former, and ``timer_touched_cost`` for the latter, in which the timers
of every changed key are looked at. Epochs scatter by more than what is measured, so how uncertain
the medians are is given with them.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from benchmarks.goals import Goal, note_goals
from benchmarks.harness import (
    Result,
    asked_of,
    environment,
    note,
    parser_for,
    print_table,
    write_results,
)
from benchmarks.nodes import NodeRun
from benchmarks.paired import cost_of
from millstream.errors import Place
from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex

MAX_COST = 0.03
SECOND = 1_000_000
_WAIT, _WRITE = -1, -2
_FAR = timedelta(days=1000)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    waiting: int
    keys: int
    at_once: int
    warm: int
    epochs: int
    changes: int


FULL = Size(1_000_000, 100_000, 100_000, 20, 600, 5_000)
QUICK = Size(50_000, 5_000, 25_000, 3, 20, 1_000)


def act(key: str, values: list[int], state: Any) -> None:
    """Set a timer, write an entry, or count."""
    for value in values:
        if value == _WAIT:
            state.timers.set("far", after=_FAR)
        elif value == _WRITE:
            state["far"] = 0
        else:
            state["count"] = state.get("count", 0) + value


def ring(key: str, timer: Any, state: Any) -> None:
    """Nothing fires here."""


def timer_wait_cost(size: Size) -> list[Result]:
    """The cost of timers that wait, and the median epochs that it is computed from."""
    job = JobVertex(Place(__file__, 1), name="job", reducer=reducer_of(act, "job", on_timer=ring))
    changed = {
        "others": [f"key-{number}" for number in range(size.keys)],
        "touched": [f"waiting-{number}" for number in range(size.waiting)],
    }
    rng = random.Random(7)
    seconds: dict[tuple[str, str], list[float]] = {
        (of, name): [] for of in changed for name in ("waiting", "none")
    }
    with NodeRun(job) as waiting, NodeRun(job) as none:
        for run, value in ((waiting, _WAIT), (none, _WRITE)):
            run.run(run.blocks([(key, 1) for key in changed["others"]]), SECOND)
            for at in range(0, size.waiting, size.at_once):
                part = changed["touched"][at : at + size.at_once]
                run.run(run.blocks([(key, value) for key in part]), SECOND)
            note(f"{size.waiting:,} keys loaded")
        for epoch in range(2 * (size.warm + size.epochs)):
            of = ("others", "touched")[epoch % 2]
            pairs = [(key, 1) for key in rng.sample(changed[of], size.changes)]
            turns = [("waiting", waiting), ("none", none)]
            for name, run in turns if epoch // 2 % 2 else reversed(turns):
                blocks = run.blocks(pairs)
                started = time.perf_counter()
                run.run(blocks, (2 + epoch) * SECOND)
                if epoch >= 2 * size.warm:
                    seconds[of, name].append(time.perf_counter() - started)
    medians = {at: statistics.median(found) for at, found in seconds.items()}
    costs = {of: cost_of(seconds[of, "waiting"], seconds[of, "none"]) for of in changed}
    return [
        *(
            Result(f"epoch_{of}_{name}_ms", 1000 * median, "ms")
            for (of, name), median in medians.items()
        ),
        Goal("timer_wait_cost", costs["others"].median, "of an epoch", at_most=MAX_COST),
        Result("timer_wait_cost_uncertainty", costs["others"].uncertainty, "of an epoch"),
        Result("timer_touched_cost", costs["touched"].median, "of an epoch"),
        Result("timer_touched_cost_uncertainty", costs["touched"].uncertainty, "of an epoch"),
    ]


def main() -> None:
    """Take the measurement."""
    parser = parser_for(__doc__.splitlines()[0])
    asked = asked_of(parser)
    results = timer_wait_cost(QUICK if asked.quick else FULL)
    note_goals(results)
    print_table(results)
    if asked.json is not None:
        write_results(asked.json, results, environment(None) | {"quick": asked.quick})


if __name__ == "__main__":
    main()

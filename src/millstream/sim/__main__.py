"""``python -m millstream.sim``: run scenarios from many seeds, or print the trace of one."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from millstream.sim.scenario import Outcome, ScenarioFailedError, simulate


def main(arguments: list[str] | None = None) -> int:
    """Run the simulator; the exit code is 1 if any seed violated an invariant."""
    parser = argparse.ArgumentParser(prog="python -m millstream.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run one seed only, and print its last steps")
    parser.add_argument("--story", type=int, default=40, help="how many steps to print")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # takeovers are the rule here
    if options.seed is not None:
        return _one(options.seed, options.story)
    seeds = range(options.first, options.first + options.seeds)
    return _many(seeds, options.processes, options.story)


def _one(seed: int, story: int) -> int:
    try:
        print(simulate(seed, story))
    except ScenarioFailedError as failed:
        print(failed)
        return 1
    return 0


def _try(seed: int, story: int) -> Outcome | str:
    logging.disable(logging.WARNING)
    try:
        return simulate(seed, story)
    except ScenarioFailedError as failed:
        return str(failed)
    except Exception as problem:  # a seed that cannot be played must not end the others
        return f"seed {seed}: {type(problem).__name__}: {problem}"


def _many(seeds: range, processes: int, story: int) -> int:
    started, counts, failed = time.perf_counter(), Counter[str](), 0
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(_try, seed, story) for seed in seeds]):
            outcome = future.result()
            if isinstance(outcome, str):
                failed += 1
                print(outcome, file=sys.stderr, flush=True)
            else:
                counts["exact" if outcome.error is None else type(outcome.error).__name__] += 1
                counts["node faults"] += outcome.node_faults
                counts["nodes lost"] += outcome.lost_nodes
                counts["drivers replaced"] += outcome.drivers - 1
    text = ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} seeds in {seconds:.0f} s: {failed} violated an invariant; {text}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

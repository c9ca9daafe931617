"""What a thousand nodes cost the coordinator: its own processor time per epoch and per change.

The coordinator is the real one; net and nodes are simulated (``millstream.sim.large``). A thousand
nodes with 65,536 slots run some epochs, grow by a tenth, lose a rack of forty at once, and get it
replaced. Counted is what the coordinator computes, serialises and unpickles; not threads and gRPC,
nor full garbage collections, which traverse the whole simulation.
A change is what it takes until every slot is where it shall be and every copy in sync, beyond what
as many epochs took before. All of it again with a tenth of the nodes: growth is at most linear.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import logging
import pstats
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.goals import Goal, note_goals
from benchmarks.harness import Result, environment, note, print_table, write_results
from millstream.sim.large import DRIVER, LargeRun
from millstream.sim.network import World

MAX_EPOCH_MS = 100
MAX_CHANGE_MS = 500
_MOST_EPOCHS = 60
_LONG = 1e9
_NEVER = 2**31 - 1
_LOSS = "lose a rack"


@dataclass(frozen=True)
class Size:
    """How large a run is, and how long its parts without a change are."""

    nodes: int
    rack: int
    slots: int = 65_536
    epochs: int = 5

    @property
    def smaller(self) -> Size:
        """The same with a tenth of the nodes."""
        return Size(self.nodes // 10, self.rack // 10, self.slots, self.epochs)


FULL = Size(1_000, 40)
QUICK = Size(200, 10, slots=8_192, epochs=2)


class NotHealedError(Exception):
    """A change was not done after many epochs."""


@dataclass
class Measured:
    """Milliseconds per epoch in the parts without a change, and of each change."""

    epochs: dict[str, float]
    changes: dict[str, float]

    @property
    def per_epoch(self) -> float:
        return max(self.epochs.values())

    @property
    def per_change(self) -> float:
        return max(self.changes.values())


class _Scenario:
    def __init__(self, size: Size, run: LargeRun) -> None:
        self._size = size
        self._run = run
        self._per_epoch = 0.0
        self.measured = Measured({}, {})

    def go(self) -> Measured:
        run, size = self._run, self._size
        run.begin()
        run.run_epoch()  # the first one infers types
        self._steady("first")
        run.grow(size.nodes // 10)
        self._change("grow")
        self._steady("grown")
        lost = run.lose_rack()
        self._change(_LOSS)
        self._steady("without a rack")
        run.start(lost)
        self._change("replace it")
        self._steady("replaced")
        return self.measured

    def _steady(self, name: str) -> None:
        before = self._run.meter.seconds
        for _ in range(self._size.epochs):
            self._run.run_epoch()
        self._per_epoch = 1000 * (self._run.meter.seconds - before) / self._size.epochs
        self.measured.epochs[name] = self._per_epoch
        self._note(name, f"{self._per_epoch:.1f} ms per epoch")

    def _change(self, name: str) -> None:
        run, before, first = self._run, self._run.meter.seconds, self._run.epoch
        calls, sent = run.calls, run.bytes_sent
        run.run_epoch()
        while not (run.is_whole and (run.is_complete or name == _LOSS)):
            if run.epoch - first > _MOST_EPOCHS:
                raise NotHealedError(f"{name}: not done after {run.epoch - first} epochs")
            run.run_epoch()
        epochs = run.epoch - first
        took = 1000 * (run.meter.seconds - before) - epochs * self._per_epoch
        self.measured.changes[name] = took
        self._note(
            name,
            f"{took:.0f} ms, in {epochs} epochs; {run.calls - calls:,} calls, "
            f"{(run.bytes_sent - sent) / 2**20:,.0f} MB sent",
        )

    def _note(self, name: str, text: str) -> None:
        placement = self._run.coordinator.roster.placement
        shares = len(placement.shares(range(placement.ring.slots)))
        nodes = len(self._run.coordinator.roster.nodes)
        note(f"{name}: {text} ({nodes} nodes, {shares:,} shares)")


class _Discarded(logging.Handler):
    """Formats what is logged, as any handler does, and writes it nowhere."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


@contextmanager
def _younger_garbage() -> Iterator[None]:
    """Collect garbage of the oldest generation between epochs alone: it is the simulation's."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def measure(size: Size, profile: cProfile.Profile | None = None) -> Measured:
    """Run it all once."""
    began = time.monotonic()
    log = logging.getLogger("millstream")
    log.handlers, log.propagate = [_Discarded()], False
    with World(seed=size.nodes, trace_limit=100) as world, _younger_garbage():
        run = LargeRun(world, size.nodes, size.slots, rack=size.rack, profile=profile)
        measured = world.run(_Scenario(size, run).go, DRIVER, _LONG)
    note(f"{size.nodes} nodes: simulated in {time.monotonic() - began:.0f} s")
    return measured


def results_of(large: Measured, small: Measured, tenth: int) -> list[Result]:
    """The numbers, with their goals."""
    return [
        Goal("coordinator_ms_per_epoch", large.per_epoch, "ms", at_most=MAX_EPOCH_MS),
        Goal("ms_per_change", large.per_change, "ms", at_most=MAX_CHANGE_MS),
        Result(f"coordinator_ms_per_epoch_{tenth}", small.per_epoch, "ms"),
        Result(f"ms_per_change_{tenth}", small.per_change, "ms"),
        Goal("epoch_growth", large.per_epoch / small.per_epoch, "x for 10x nodes", at_most=10),
        Goal("change_growth", large.per_change / small.per_change, "x for 10x nodes", at_most=10),
        *(Result(f"epoch_{_name(n)}_ms", ms, "ms") for n, ms in large.epochs.items()),
        *(Result(f"change_{_name(n)}_ms", ms, "ms") for n, ms in large.changes.items()),
    ]


def _name(text: str) -> str:
    return text.replace(" ", "_")


def main() -> None:
    """Take the measurements that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer nodes, for a first impression")
    parser.add_argument("--profile", action="store_true", help="the larger run alone, profiled")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    asked = parser.parse_args()
    size = QUICK if asked.quick else FULL
    if asked.profile:
        profile = cProfile.Profile(time.thread_time)
        measure(size, profile)
        pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(60)
        return
    small = measure(size.smaller)
    results = results_of(measure(size), small, size.smaller.nodes)
    note_goals(results)
    print_table(results)
    if asked.json is not None:
        write_results(asked.json, results, environment(None) | {"quick": asked.quick})


if __name__ == "__main__":
    main()

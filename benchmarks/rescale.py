"""What a change of parallelism costs: live, by a restart, and in Spark's own stateful streaming.

A small epoch is due every half second; meanwhile the run goes from 2 nodes to 4, and back to 2.
*Live* is ``run.scale``. *Restart* stops the run and starts it again with another ``nodes=``.
*Spark* is ``groupBy().count()``: the query is stopped between two batches, its state repartitioned
offline, and the query started again with as many shuffle partitions. The *gap* is the longest time
between two outputs, from the call on, less the usual one. All counts of all of them are checked.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.changes import AFTER, BEFORE, PACE, PATIENCE, Change
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import Options, Result, main, note
from benchmarks.peers.spark_rescale import repartition
from benchmarks.ranges import Input, Witness, check_state, range_counts, write_input
from benchmarks.rounds import rounds
from benchmarks.wholeness import await_whole
from millstream.coordinator.rereplication import Rereplication
from millstream.coordinator.roster import MissingCopy
from millstream.observe.progress import EpochProgress, quantile

FEW, MANY = 2, 4
COURSE = (FEW, MANY, FEW)
MOVED = 512  # slots that move to a replica
WAYS = ("live", "restart", "spark")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything; there are fewer rounds if they take more than ``seconds``."""

    keys: tuple[int, ...]
    rounds: int
    seconds: float
    epochs: int


FULL = Size(keys=(100_000, 1_000_000), rounds=3, seconds=1500.0, epochs=500)
QUICK = Size(keys=(10_000, 50_000), rounds=1, seconds=120.0, epochs=250)


@dataclass
class Cell:
    """What was measured for so many keys."""

    keys: int
    changes: dict[str, list[Change]] = field(default_factory=lambda: {way: [] for way in WAYS})
    copied: list[int] = field(default_factory=list)

    @property
    def suffix(self) -> str:
        return f"{self.keys // 1000}k"

    def gap(self, way: str) -> float:
        return median(change.gap for change in self.changes[way])

    @property
    def epoch(self) -> float:
        """The usual duration of an epoch."""
        return median(took for change in self.changes["live"] for took in change.before)

    @property
    def p99_ratio(self) -> float:
        live = self.changes["live"]
        before = [took for change in live for took in change.before]
        during = [took for change in live for took in change.during]
        return quantile(during, 0.99) / quantile(before, 0.99)

    @property
    def seconds(self) -> float:
        """How long a change takes, live."""
        return median(change.done - change.called for change in self.changes["live"])


def rescale(spark: SparkSession, options: Options) -> list[Result]:
    """Take all measurements."""
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)
    numbers = count()
    inputs = [
        write_input(options.folder / f"keys{keys}", keys=keys, epochs=size.epochs)
        for keys in size.keys
    ]
    for way in WAYS:
        measure(spark, way, Cell(inputs[0].keys), inputs[0], options.folder / f"warm-up-{way}")
    cells = {given.keys: Cell(given.keys) for given in inputs}
    for number in rounds(size.rounds, size.seconds):
        for given in inputs:
            # There and back again: a machine that drifts treats all alike.
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                work = options.folder / f"run{next(numbers)}"
                measure(spark, way, cells[given.keys], given, work)
    results = results_of(list(cells.values()))
    note_goals(results)
    return results


def measure(spark: SparkSession, way: str, cell: Cell, given: Input, work: Path) -> None:
    """Take the course once, and add what was measured to the cell."""
    if way == "live":
        changes = list(live(spark, given, work, cell.copied))
    elif way == "restart":
        changes = list(restart(spark, given, work))
    else:
        changes = list(repartition(spark, given, work, COURSE))
    cell.changes[way] += changes
    for nodes, change in zip(COURSE[1:], changes, strict=True):
        note(
            f"{way}, {given.keys:,} keys, to {nodes}: gap {change.gap:.2f} s, done after "
            f"{change.done - change.called:.1f} s; exact"
        )


# -- ours ------------------------------------------------------------------------------------


class Recorder:
    """Notes when epochs end, and how long they took."""

    def __init__(self) -> None:
        self.epochs: list[tuple[float, float]] = []

    def __call__(self, report: EpochProgress) -> None:
        self.epochs.append((time.monotonic(), report.seconds))


def started(spark: SparkSession, given: Input, witness: Witness, work: Path, nodes: int) -> ms.Run:
    """Start the run, or resume it."""
    flow = range_counts("rescale", given, witness, follow=True)
    return ms.start(
        flow, spark=spark, checkpoint=work, nodes=nodes, replicas=1, every=PACE, progress=False
    )


def live(spark: SparkSession, given: Input, work: Path, copied: list[int]) -> Iterator[Change]:
    """Scale a run that goes on; then move slots to a replica, and count the slots copied."""
    witness, recorder = Witness(given), Recorder()
    with started(spark, given, witness, work, FEW) as run:
        run.progress.listen(recorder)
        for nodes in COURSE[1:]:
            witness.wait_for_more(BEFORE, run)
            called = time.monotonic()
            run.scale(nodes)
            if not run.await_moves(PATIENCE):
                raise SystemExit(f"slots still move {PATIENCE.total_seconds():.0f} s after scale()")
            done = time.monotonic()
            witness.wait_for_more(AFTER, run)
            yield Change(
                called=called,
                done=done,
                outputs=tuple(witness.times),
                epochs=tuple(recorder.epochs),
            )
            await_whole(run, nodes, PATIENCE)
        copied.append(move_to_replica(run, witness))
        check_state(run, given)


def move_to_replica(run: ms.Run, witness: Witness) -> int:
    """Move slots to a node that has copies of them; return how many slots were copied for it."""
    ring = run._coordinator.roster.placement.ring
    source, to = ring.nodes
    moved = ring.slots_of(source)[:MOVED].tolist()
    with copied_slots() as copied:
        run.move(moved, to)
        if not run.await_moves(PATIENCE):
            raise SystemExit("slots did not move to their replica")
        witness.wait_for_more(AFTER, run)
        await_whole(run, len(ring.nodes), PATIENCE)
    after = run._coordinator.roster.placement.ring
    if any(after.owner(slot) != to for slot in moved):
        raise SystemExit("slots are not where they were moved to")
    return sum(copied)


@contextmanager
def copied_slots() -> Iterator[list[int]]:
    """Gives the number of slots of each copy that the coordinator orders while this lasts."""
    ordered: list[int] = []
    fulfil = Rereplication._fulfil

    def counted(self: Rereplication, order: MissingCopy) -> None:
        ordered.append(sum(map(len, order.slots)))
        fulfil(self, order)

    Rereplication._fulfil = counted  # type: ignore[method-assign]
    try:
        yield ordered
    finally:
        Rereplication._fulfil = fulfil  # type: ignore[method-assign]


def restart(spark: SparkSession, given: Input, work: Path) -> Iterator[Change]:
    """Stop a run and start it again with another number of nodes."""
    witness = Witness(given)
    run = started(spark, given, witness, work, FEW)
    try:
        for nodes in COURSE[1:]:
            witness.wait_for_more(BEFORE, run)
            called = time.monotonic()
            run.stop()
            run = started(spark, given, witness, work, nodes)
            witness.wait_for_more(1, run)
            done = witness.times[-1]
            witness.wait_for_more(AFTER, run)
            yield Change(called=called, done=done, outputs=tuple(witness.times))
        check_state(run, given)
    finally:
        run.stop()


# -- results ---------------------------------------------------------------------------------


def results_of(cells: Sequence[Cell]) -> list[Result]:
    """The gaps in seconds and in epochs, how they compare, and latencies around a change."""
    heading = ["keys", *(f"gap, {way}" for way in WAYS), "gap in epochs", "p99 during/before"]
    table, results = [heading], list[Result]()
    for cell in cells:
        gaps = {way: cell.gap(way) for way in WAYS}
        epochs = gaps["live"] / cell.epoch
        shown = [f"{gap:.2f} s" for gap in gaps.values()]
        table.append([f"{cell.keys:,}", *shown, f"{epochs:.2f}", f"{cell.p99_ratio:.2f}"])
        results += [
            *(Result(f"gap_s_{way}_{cell.suffix}", gap, "s") for way, gap in gaps.items()),
            Result(
                f"gap_vs_spark_repartition_{cell.suffix}", gaps["spark"] / gaps["live"], "times"
            ),
            Result(f"change_s_{cell.suffix}", cell.seconds, "s"),
            Result(f"epoch_s_{cell.suffix}", cell.epoch, "s"),
            Result(f"p99_during_change_{cell.suffix}", cell.p99_ratio, "times"),
            Goal(f"gap_epochs_{cell.suffix}", epochs, "epochs", at_most=1),
        ]
    note_table(table)
    return [
        *results,
        Goal("gap_vs_spark_repartition", _shorter(cells, "spark"), "times", at_least=20),
        Result("gap_vs_own_restart", _shorter(cells, "restart"), "times"),
        Goal("p99_during_change", max(cell.p99_ratio for cell in cells), "times", at_most=1.5),
        Goal(
            "replica_move_copied_slots",
            max(copied for cell in cells for copied in cell.copied),
            "slots",
            at_most=0,
        ),
    ]


def _shorter(cells: Sequence[Cell], way: str) -> float:
    """How many times shorter the gap of a live change is, for the number of keys where least."""
    return min(cell.gap(way) / cell.gap("live") for cell in cells)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], rescale)

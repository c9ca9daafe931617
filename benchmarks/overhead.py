"""What copies cost: throughput, the size of checkpoints, and the pauses that they cause.

Part a runs the word count of ``compare`` with 0, 1 and 2 replicas and both durabilities, all
on 3 nodes, in turns. Parts b and c drive a node and its backup without Spark (``pair``).
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, takewhile
from pathlib import Path
from statistics import median, quantiles

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.course import Course
from benchmarks.data import FILES_PER_EPOCH, Text
from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import (
    Options,
    Result,
    asked_of,
    environment,
    note,
    parser_for,
    print_table,
    session,
    write_results,
)
from benchmarks.pair import EXPONENT, Fed, Primary, Words, count, distant_pair, local_pair
from benchmarks.peers.contender import Measured, trigger_times
from benchmarks.rounds import rounds
from millstream.node.machine import Durability
from millstream.wire.replication import ReplicateDelta

NODES = 3  # two copies of everything need three nodes
PARTITIONS = 3
REPLICAS = (0, 1, 2)
DURABILITIES: tuple[Durability, ...] = ("epoch", "interval")
WORDS_PER_SECOND = 15_000
EPOCHS_PER_SECOND = 2
LOSS_R1, LOSS_R2, SHARE, PAUSE_MS = 0.10, 0.15, 0.07, 20.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything; part a has fewer rounds if they take more than ``seconds``."""

    epochs: int
    words_per_epoch: int
    rounds: int
    seconds: float
    checkpoint_keys: int
    rates: tuple[int, ...]
    intervals: tuple[int, ...]
    checkpoints: int
    pause_keys: int
    pause_seconds: float


FULL = Size(
    epochs=8,
    words_per_epoch=1_000_000,
    rounds=4,
    seconds=280.0,
    checkpoint_keys=200_000,
    rates=(5_000, WORDS_PER_SECOND, 45_000),
    intervals=(1, 2, 5, 10),
    checkpoints=3,
    pause_keys=1_000_000,
    pause_seconds=12.0,
)
QUICK = Size(
    epochs=3,
    words_per_epoch=100_000,
    rounds=1,
    seconds=280.0,
    checkpoint_keys=20_000,
    rates=(WORDS_PER_SECOND,),
    intervals=(1, 2),
    checkpoints=1,
    pause_keys=50_000,
    pause_seconds=3.0,
)


# -- part a: throughput ----------------------------------------------------------------------


@dataclass(frozen=True)
class Copied:
    """A contender: the stateful word count with so many copies, made in this way."""

    replicas: int
    durability: Durability

    @property
    def name(self) -> str:
        return f"{self.replicas} replicas, {self.durability}"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        flow = ms.Workflow("overhead")
        lines = flow.source("lines", ms.read.text(text.folder, max_files_per_epoch=FILES_PER_EPOCH))
        lines.map_reduce("count", map=_split, reduce=count)
        started = ms.start(
            flow,
            spark=spark,
            checkpoint=work,
            nodes=NODES,
            partitions=PARTITIONS,
            replicas=self.replicas,
            durability=self.durability,
            progress=False,
        )
        with started as run:
            query = next(q for q in spark.streams.active if q.name.startswith(f"{flow.name}-"))
            run.await_termination()
            counts = {word: state["n"] for word, state in run.state("count").items()}
            return Measured(trigger_times(query, text), counts)


def _split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def throughput(spark: SparkSession, folder: Path, size: Size) -> list[Result]:
    """The fraction of the throughput that copies cost."""
    course = Course(spark, folder)
    contenders = [Copied(replicas, how) for replicas in REPLICAS for how in DURABILITIES]
    text = course.text(epochs=size.epochs, words_per_epoch=size.words_per_epoch)
    course.run(contenders[-1], text)  # to warm up
    note(f"{text.words:,} words in {text.epochs} epochs; the first is left out of the rates")
    rates: dict[Copied, list[float]] = {contender: [] for contender in contenders}
    for number in rounds(size.rounds, size.seconds):
        # There and back again: a machine that drifts treats all alike.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            rate = course.run(contender, text).words_per_second(text)
            rates[contender].append(rate)
            note(f"{contender.name}: {rate:,.0f} words/s, exact")
    return _losses({contender: median(found) for contender, found in rates.items()})


def _losses(rates: dict[Copied, float]) -> list[Result]:
    results = [
        Result(f"words_per_second_r{c.replicas}_{c.durability}", rate, "words/s")
        for c, rate in rates.items()
    ]
    # Without copies the two durabilities do nearly the same: the faster one is the base.
    base = max(rate for contender, rate in rates.items() if contender.replicas == 0)
    for replicas, at_most in ((1, LOSS_R1), (2, LOSS_R2)):
        lost = {
            c.durability: 1 - rate / base for c, rate in rates.items() if c.replicas == replicas
        }
        results += [
            Result(f"loss_r{replicas}_{how}", loss, "of the rate") for how, loss in lost.items()
        ]
        results.append(Goal(f"loss_r{replicas}", min(lost.values()), "of the rate", at_most))
    return results


# -- part b: the size of a checkpoint --------------------------------------------------------


def checkpoint_sizes(size: Size) -> list[Result]:
    """What incremental checkpoints send, as a part of the whole state.

    All words have a count before the first checkpoint, so that the state does not grow. The
    exponent is that of all texts here, 1.1: words of natural languages have about 1.0 to 1.1.
    """
    words = Words(size.checkpoint_keys)
    primary, net = local_pair()
    primary.load(words.all)
    whole = primary.state_bytes()
    note(f"{primary.keys:,} keys, {whole:,} bytes of state, Zipf exponent {EXPONENT}")
    heading = ["tuples/s", *(f"every {seconds} s" for seconds in size.intervals)]
    table = [heading]
    results: list[Result] = []
    for rate in size.rates:
        row = [f"{rate:,}"]
        for seconds in size.intervals:
            sent = []
            for _ in range(size.checkpoints):
                for _ in range(seconds * EPOCHS_PER_SECOND):
                    primary.epoch(primary.packed(words.draw(rate // EPOCHS_PER_SECOND)))
                net.sent.clear()
                primary.checkpoint()
                sent.append(net.sent[ReplicateDelta])
            share = median(sent) / whole
            row.append(f"{share:.1%}")
            if (rate, seconds) == (WORDS_PER_SECOND, 2):
                results.append(Goal("delta_share_2s", share, "of the state", SHARE))
            else:
                name = f"delta_share_{seconds}s_{rate // 1000}k"
                results.append(Result(name, share, "of the state"))
        table.append(row)
    note_table(table)
    return results


# -- part c: pauses --------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """How long small reduce steps took, and for how long they had no core; in milliseconds."""

    times: list[float]
    waits: list[float]

    @property
    def longest_pause(self) -> float:
        """By how much the slowest step was slower than the usual one."""
        return max(self.times) - median(self.times)

    @property
    def longest_own_pause(self) -> float:
        """The same without the time that a step was ready to run, but had no core.

        On a machine with other work this tells what the node did to itself: locks, and the
        interpreter's lock.
        """
        own = [whole - wait for whole, wait in zip(self.times, self.waits, strict=True)]
        return max(own) - median(own)

    def row(self, name: str) -> list[str]:
        late = quantiles(self.times, n=1000, method="inclusive")[-1]
        pauses = (self.longest_pause, self.longest_own_pause)
        shown = [f"{each:.2f}" for each in (median(self.times), late, max(self.times), *pauses)]
        return [name, f"{len(self.times):,}", *shown]


class _Core:
    """Tells for how long this thread was ready to run, but had no core (Linux; else nothing)."""

    def __init__(self) -> None:
        file = Path("/proc/thread-self/schedstat")
        self._file = os.open(file, os.O_RDONLY) if file.exists() else None

    def waited_ms(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e6


_WORDS_PER_STEP = 150


def pauses(folder: Path, size: Size) -> list[Result]:
    """The longest reduce pause while checkpoints are made in the background every 2 s.

    A step is an epoch of 150 words. *Paced*, 100 steps fall due every second, the paper's 15,000
    tuples a second, and count from that moment on: that is the result. *In a loop* the next step
    begins when the last is done, some thousand a second, far more epochs than Spark can admit.
    """
    words = Words(size.pause_keys)
    with distant_pair(folder) as primary:
        primary.load(words.all)
        note(f"{primary.keys:,} keys; steps of {_WORDS_PER_STEP} words")
        feeds = [primary.packed(words.draw(_WORDS_PER_STEP)) for _ in range(2_000)]
        quiet, busy = (_Course(primary, feeds) for _ in range(2))
        short, long = size.pause_seconds / 2, size.pause_seconds
        quiet.warm_up()
        without = [quiet.paced(short), quiet.in_a_loop(short)]
        primary.copy_all()
        primary.service.start()
        during = [busy.paced(long), busy.in_a_loop(long)]
    names = ("paced", "in a loop")
    table = [["steps", "number", "median ms", "99.9 % ms", "max ms", "pause ms", "own ms"]]
    for name, one, other in zip(names, without, during, strict=True):
        table += [one.row(f"{name}, no checkpoints"), other.row(f"{name}, checkpoints")]
    note_table(table)
    return [
        Result("max_pause_loop_without_ms", without[1].longest_pause, "ms"),
        Result("max_pause_loop_ms", during[1].longest_pause, "ms"),
        Result("max_pause_without_ms", without[0].longest_pause, "ms"),
        Result("max_own_pause_ms", during[0].longest_own_pause, "ms"),
        Goal("max_pause_ms", during[0].longest_pause, "ms", PAUSE_MS),
    ]


class _Course:
    def __init__(self, primary: Primary, feeds: Sequence[Fed]) -> None:
        self._primary = primary
        self._feeds = cycle(feeds)

    def warm_up(self) -> None:
        for _ in range(200):
            self._primary.epoch(next(self._feeds))

    def in_a_loop(self, seconds: float) -> Steps:
        ends = time.perf_counter() + seconds
        moments = iter(time.perf_counter, ends)
        return self._steps(takewhile(lambda now: now < ends, moments))

    def paced(self, seconds: float) -> Steps:
        return self._steps(self._dues(seconds))

    def _dues(self, seconds: float) -> Iterator[float]:
        every = _WORDS_PER_STEP / WORDS_PER_SECOND
        begun = time.perf_counter()
        for number in range(round(seconds / every)):
            due = begun + number * every
            time.sleep(max(0.0, due - time.perf_counter()))
            yield due

    def _steps(self, begins: Iterable[float]) -> Steps:
        """Run a step at each moment; times count from that moment on."""
        core = _Core()
        steps = Steps([], [])
        before = core.waited_ms()
        for begun in begins:
            self._primary.epoch(next(self._feeds))
            steps.times.append((time.perf_counter() - begun) * 1000)
            after = core.waited_ms()
            steps.waits.append(after - before)
            before = after
        return steps


def main() -> None:
    """Take the measurements that the command line asks for."""
    parser = parser_for(__doc__.splitlines()[0])
    parser.add_argument("--part", choices="abc", help="take one part only")
    asked = asked_of(parser)
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        results, about = _measure(Options(asked.quick, Path(folder)), asked.part or "abc")
    print_table(results)
    note_goals(results)
    if asked.json is not None:
        write_results(asked.json, results, about)


def _measure(options: Options, parts: str) -> tuple[list[Result], dict[str, object]]:
    size = QUICK if options.quick else FULL
    logging.getLogger("millstream").setLevel(logging.ERROR)
    results: list[Result] = []
    spark = session()  # also for parts without Spark: the versions are told by it
    try:
        if "a" in parts:
            results += throughput(spark, options.folder, size)
        about = environment(spark)
    finally:
        spark.stop()
    without_spark: dict[str, Callable[[], list[Result]]] = {
        "b": lambda: checkpoint_sizes(size),
        "c": lambda: pauses(options.folder, size),
    }
    for part, measure in without_spark.items():
        if part in parts:
            results += measure()
    return results, {**about, "quick": options.quick, "parts": parts}


if __name__ == "__main__":
    main()

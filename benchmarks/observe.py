"""What it costs to look at a running workflow: reads of its state, and the HTTP API.

Part ``reads`` has two real nodes without Spark: how many keys are read a second if driver and nodes
share one core, and by how much epochs slow down while 10,000 keys are read a second. Part ``api``
runs a word count on Spark with and without the HTTP API, of which a client follows the live stream.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.course import Course
from benchmarks.data import FILES_PER_EPOCH, Text
from benchmarks.goals import Goal, note_goals
from benchmarks.harness import Result, environment, note, print_table, session, write_results
from benchmarks.nodes import JOB, NodeRun
from benchmarks.pauses import SECOND, job_of, plain
from benchmarks.peers.contender import Measured, trigger_times
from millstream.coordinator.state_reader import StateReader
from millstream.wire.run_registry import RunRegistry

READS, SLOWDOWN, COST = 10_000, 0.10, 0.02
_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything."""

    keys: int
    changes: int
    epochs: int
    seconds: float
    rounds: int
    words_per_epoch: int
    text_epochs: int


FULL = Size(
    keys=200_000,
    changes=20_000,
    epochs=40,
    seconds=10.0,
    rounds=4,
    words_per_epoch=100_000,
    text_epochs=20,
)
QUICK = Size(
    keys=20_000,
    changes=5_000,
    epochs=10,
    seconds=2.0,
    rounds=1,
    words_per_epoch=20_000,
    text_epochs=6,
)


# -- reads -----------------------------------------------------------------------------------


def reads(size: Size) -> list[Result]:
    """How fast keys are read, and what that does to epochs."""
    keys = [f"key-{number}" for number in range(size.keys)]
    rng = random.Random(1)
    with NodeRun(job_of(plain)) as run:
        run.run(run.blocks([(key, 0) for key in keys]), 0)
        changes = [
            run.blocks([(key, 1) for key in rng.sample(keys, size.changes)])
            for _ in range(size.epochs)
        ]
        reader = StateReader(run.coordinator)
        with _one_core([node.pid for node in run.started]):
            together = _rate(reader, keys, size.seconds)
            alone = _rate(reader, keys, size.seconds / 2, at_once=1)
        quiet, busy = [], []
        for number in range(2 * size.rounds):
            if number % 2 == 0:
                quiet += _epochs(run, changes)
            else:
                with _reading(reader, keys) as counted:
                    begun = time.perf_counter()
                    busy += _epochs(run, changes)
                    took = time.perf_counter() - begun
                note(f"{counted[0] / took:,.0f} keys/s were read while epochs ran")
    slowdown = median(busy) / median(quiet) - 1
    note(
        f"epochs of {size.changes:,} keys: {1000 * median(quiet):.1f} ms, with reads "
        f"{1000 * median(busy):.1f} ms"
    )
    return [
        Goal("state_reads_per_second", together, "keys/s on one core", at_least=READS),
        Result("state_single_reads_per_second", alone, "keys/s on one core"),
        Goal("read_slowdown", slowdown, "of an epoch", at_most=SLOWDOWN),
    ]


@contextmanager
def _one_core(nodes: list[int]) -> Iterator[None]:
    """Run this process and its nodes on one core."""
    before = os.sched_getaffinity(0)
    threads = [(pid, int(task)) for pid in nodes for task in os.listdir(f"/proc/{pid}/task")]
    own = [(os.getpid(), int(task)) for task in os.listdir("/proc/self/task")]
    for _, thread in (*threads, *own):
        os.sched_setaffinity(thread, {min(before)})
    try:
        yield
    finally:
        for _, thread in (*threads, *own):
            if Path(f"/proc/{thread}").exists():
                os.sched_setaffinity(thread, before)


def _rate(reader: StateReader, keys: list[str], seconds: float, at_once: int = _AT_ONCE) -> float:
    rng, read = random.Random(2), 0
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        found = reader.get_many(JOB, rng.sample(keys, at_once))
        read += sum(value is not None for value in found.values)
    return read / (time.perf_counter() - begun)


def _epochs(run: NodeRun, changes: list[Any]) -> list[float]:
    took = []
    for blocks in changes:
        begun = time.perf_counter()
        run.run(blocks, run.epoch * SECOND)
        took.append(time.perf_counter() - begun)
    return took


@contextmanager
def _reading(reader: StateReader, keys: list[str]) -> Iterator[list[int]]:
    """Read 10,000 keys a second in the background; the list has how many were read."""
    counted, end = [0], threading.Event()

    def read() -> None:
        rng, due = random.Random(3), time.perf_counter()
        while not end.wait(max(0.0, due - time.perf_counter())):
            counted[0] += len(reader.get_many(JOB, rng.sample(keys, _AT_ONCE // 2)).values)
            due += _AT_ONCE / 2 / READS

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield counted
    finally:
        end.set()
        thread.join()


# -- the HTTP API ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """A contender: the stateful word count, with or without a client of its HTTP API."""

    by_http: bool

    @property
    def name(self) -> str:
        return "with the HTTP API and a client" if self.by_http else "without the HTTP API"

    def run(self, spark: SparkSession, text: Text, work: Path) -> Measured:
        flow = ms.Workflow("observed")
        lines = flow.source("lines", ms.read.text(text.folder, max_files_per_epoch=FILES_PER_EPOCH))
        lines.map_reduce("count", map=_split, reduce=_count)
        with ms.start(flow, spark=spark, nodes=2, progress=False, dashboard=self.by_http) as run:
            if self.by_http:
                threading.Thread(target=_follow, daemon=True).start()
            query = next(q for q in spark.streams.active if q.name.startswith(f"{flow.name}-"))
            run.await_termination()
            counts = {word: state["n"] for word, state in run.state("count").items()}
            return Measured(trigger_times(query, text), counts)


def _follow() -> None:
    """Read the live stream until the run ends."""
    [run] = RunRegistry.of_user().runs()
    assert run.api is not None
    address = urlsplit(run.api.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    connection.request(
        "GET", "/api/v1/stream", headers={"Authorization": f"Bearer {run.api.viewer}"}
    )
    answer = connection.getresponse()
    while answer.read1(1 << 16):
        pass


def _split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def _count(key: str, values: list[int], state: Any) -> None:
    state["n"] = state.get("n", 0) + sum(values)


def api(spark: SparkSession, folder: Path, size: Size) -> list[Result]:
    """By how much the HTTP API slows epochs down."""
    course = Course(spark, folder)
    text = course.text(epochs=size.text_epochs, words_per_epoch=size.words_per_epoch)
    course.run(Observed(True), text)  # to warm up
    triggers: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(size.rounds):  # in turn, since machines drift
        for served, mine in triggers.items():
            mine += course.run(Observed(served), text).triggers[1:]
    without, with_api = median(triggers[False]), median(triggers[True])
    return [
        Result("epoch_ms_without_api", without, "ms"),
        Result("epoch_ms_with_api", with_api, "ms"),
        Goal("observe_cost", with_api / without - 1, "of an epoch", at_most=COST),
    ]


def main() -> None:
    """Take the measurements that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less data, for a first impression")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    parser.add_argument("--part", choices=("reads", "api"), help="take one part only")
    asked = parser.parse_args()
    size = QUICK if asked.quick else FULL
    results, spark = [], None
    if asked.part != "api":
        results += reads(size)
    if asked.part != "reads":
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
            os.environ["XDG_STATE_HOME"] = folder
            spark = session()
            results += api(spark, Path(folder), size)
    about = environment(spark) | {"quick": asked.quick}
    if spark is not None:
        spark.stop()
    print_table(results)
    note_goals(results)
    if asked.json is not None:
        write_results(asked.json, results, about)


if __name__ == "__main__":
    main()

"""What it costs to look at a running workflow: reads of its state, and the HTTP API.

Part ``reads`` has two real nodes without Spark: how many keys are read a second if driver and nodes
share one core, and by how much epochs slow down while 10,000 keys are read a second. Part ``api``
runs a word count on Spark, and in turns switches the HTTP API on, of which a client follows the
live stream, and off: a pair of turns is some seconds of one run. Epochs scatter by more than what
is measured, so how uncertain the median of all pairs is, is given with it.
"""

from __future__ import annotations

import argparse
import http.client
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

import millstream as ms
from benchmarks.data import FILES_PER_EPOCH, Text, write_text
from benchmarks.goals import Goal, note_goals
from benchmarks.harness import Result, environment, note, print_table, session, write_results
from benchmarks.nodes import JOB, NodeRun
from benchmarks.paired import cost_of
from benchmarks.pauses import SECOND, job_of, plain
from benchmarks.peers.contender import batch_counts
from millstream.api.live_run import LiveRun
from millstream.api.run_api import RunApi
from millstream.coordinator.state_reader import StateReader
from millstream.observe.history import RunHistory
from millstream.observe.progress import EpochProgress
from millstream.spark.dashboard_option import LOOPBACK
from millstream.wire.run_registry import ApiAccess

READS, SLOWDOWN, COST = 10_000, 0.10, 0.02
_AT_ONCE = 1_000
_SKIPPED = 2  # epochs of a turn, which were under way when the API was switched
_SPARE = 2  # epochs before the first that is counted, and after the last


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything; a ``turn`` is so many epochs with the API, or without it."""

    keys: int
    changes: int
    epochs: int
    seconds: float
    rounds: int
    words_per_epoch: int
    text_epochs: int
    warm: int
    pairs: int
    turn: int


FULL = Size(
    keys=200_000,
    changes=20_000,
    epochs=40,
    seconds=10.0,
    rounds=4,
    words_per_epoch=100_000,
    text_epochs=20,
    warm=40,
    pairs=40,
    turn=10,
)
QUICK = Size(
    keys=20_000,
    changes=5_000,
    epochs=10,
    seconds=2.0,
    rounds=1,
    words_per_epoch=20_000,
    text_epochs=6,
    warm=6,
    pairs=6,
    turn=5,
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


class Api:
    """The HTTP API of a run, as ``ms.start`` makes it, with a client of its live stream."""

    def __init__(self, run: ms.Run) -> None:
        coordinator = run._coordinator
        history = RunHistory(coordinator.load.newest)
        run.progress.listen(history.add)
        self._live = LiveRun(
            run._plan,
            coordinator,
            run.progress,
            history,
            StateReader(coordinator),
            phase=run.phase,
            stop=run.stop,
            backlog=run._backlog,
        )
        self._served: RunApi | None = None

    def switch(self, on: bool) -> None:
        """Serve it from now on, or no longer."""
        if not on and self._served is not None:
            self._served.close()
            self._served = None
        elif on and self._served is None:
            self._served = RunApi(self._live, LOOPBACK, version="benchmark")
            self._served.start(lambda access: None)
            access = self._served.access()
            threading.Thread(target=_follow, args=(access,), daemon=True).start()


def _follow(access: ApiAccess) -> None:
    """Read the live stream until it ends."""
    address = urlsplit(access.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    connection.request(
        "GET", "/api/v1/stream", headers={"Authorization": f"Bearer {access.viewer}"}
    )
    answer = connection.getresponse()
    assert answer.status == 200
    while answer.read1(1 << 16):
        pass


class Turns:
    """Switches the API on and off between the epochs of a run, and times those in between.

    Of a pair of turns the one with it is the first and the second as often, since a run drifts.
    """

    def __init__(self, switch: Callable[[bool], None], size: Size) -> None:
        self._switch = switch
        self._size = size
        self._turns = [on for pair in range(size.pairs) for on in (pair % 2 == 0, pair % 2 == 1)]
        self._committed = -size.warm
        self._began = 0.0
        self.seconds: dict[bool, list[float]] = {False: [], True: []}

    def add(self, report: EpochProgress) -> None:
        """Take the report of an epoch that is committed now."""
        self._committed += 1
        turn, epoch = divmod(self._committed, self._size.turn)
        if turn < 0:
            return
        if epoch == _SKIPPED:
            self._began = time.perf_counter()
        elif epoch == 0:
            if 0 < turn <= len(self._turns):
                took = time.perf_counter() - self._began
                timed = self._size.turn - _SKIPPED
                self.seconds[self._turns[turn - 1]].append(took / timed)
            if turn < len(self._turns):
                self._switch(self._turns[turn])


def _split(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def _count(key: str, values: list[int], state: Any) -> None:
    state["n"] = state.get("n", 0) + sum(values)


def api(spark: SparkSession, folder: Path, size: Size) -> list[Result]:
    """By how much the HTTP API slows epochs down."""
    text = write_text(
        folder / "text", epochs=size.text_epochs, words_per_epoch=size.words_per_epoch
    )
    flow = ms.Workflow("observed")
    source = ms.read.text(folder / "input", max_files_per_epoch=FILES_PER_EPOCH)
    flow.source("lines", source).map_reduce("count", map=_split, reduce=_count)
    times = _repeat(text, folder / "input", size.warm + 2 * size.pairs * size.turn + _SPARE)
    with ms.start(flow, spark=spark, nodes=2, progress=False, dashboard=False) as run:
        served = Api(run)
        turns = Turns(served.switch, size)
        run.progress.listen(turns.add)
        run.await_termination()
        served.switch(False)
        counts = {word: state["n"] for word, state in run.state("count").items()}
    if counts != {word: times * n for word, n in batch_counts(spark, text).items()}:
        raise SystemExit("counted wrong")
    without, with_api = turns.seconds[False], turns.seconds[True]
    cost = cost_of(with_api, without)
    return [
        Result("epoch_ms_without_api", 1000 * median(without), "ms"),
        Result("epoch_ms_with_api", 1000 * median(with_api), "ms"),
        Goal("observe_cost", cost.median, "of an epoch", at_most=COST),
        Result("observe_cost_uncertainty", cost.uncertainty, "of an epoch"),
    ]


def _repeat(text: Text, folder: Path, epochs: int) -> int:
    """Link the files of a text into a folder so often that there are enough epochs."""
    folder.mkdir()
    files = sorted(text.folder.iterdir())
    times = math.ceil(epochs / text.epochs)
    for number in range(times):
        for file in files:
            os.link(file, folder / f"{number:04d}-{file.name}")
    return times


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

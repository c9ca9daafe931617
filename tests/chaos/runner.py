"""Chaos: real processes are killed and stopped during a run, which must not be noticed.

Every run has a seed, which gives its input, its workflow and its faults. A fault falls when the
ring is whole again after the one before. At the end, the state of all jobs and the rows of all
sinks, epoch by epoch, are compared with the batch answer, and no process may be left.

    python -m tests.chaos.runner --runs 20 --replicas 1 --seed 0 --durability both --master both
    python -m tests.chaos.runner --runs 40 --replicas 2 --stops --keys 1000000
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import millstream as ms
from millstream.node.machine import Durability
from millstream.ring.ring import NodeId
from millstream.spark.handle import Run
from millstream.spark.node_launch import ZoneFunction
from millstream.wire.control import NodeStatus
from tests.chaos.clusters import Cluster, Master, cluster
from tests.chaos.faults import LEFT, Fault, Mode, is_complete, schedule, victims
from tests.chaos.plans import Outcome, Plan
from tests.chaos.processes import descendants, executor_of, gone_within, send, workers_of
from tests.chaos.workload import (
    JOBS,
    LOAD,
    Answer,
    Input,
    Shape,
    answer,
    differences,
    workflow,
)

SLOTS = 512
PARTITIONS = 6
AHEAD = 2
HEAL_TIMEOUT = 60.0
LOADED = 4  # with many keys, all takes longer
COMMIT_TIMEOUT = 90.0
GONE_TIMEOUT = 10.0
STOP_TIMEOUT = 30.0
SLOW = 5.0
SHOWN = 12


class BrokenRunError(Exception):
    """A run did not do what it must."""


class StuckRunError(BrokenRunError):
    """A run does not even end: nothing more can be tried in this process."""


class _Log(logging.Handler):
    """Keeps what Millstream logs, with the time since the run began."""

    def __init__(self, began: float, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self._began, self._lines = began, lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"  {time.monotonic() - self._began:6.1f} s  {record.getMessage()}")


def run_once(there: Cluster, plan: Plan) -> Outcome:
    """Make one run and check it; failures are in the outcome."""
    outcome = Outcome(plan, there.master)
    began, since = time.monotonic(), time.time()
    logger, handler = logging.getLogger("millstream"), _Log(began, outcome.log)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
            _Chaos(there, plan, outcome, Path(folder), began).go()
    except StuckRunError as problem:
        raise StuckRunError(f"{problem}\n{outcome.report()}") from None
    except Exception as problem:
        reported = "".join(traceback.format_exception(problem, limit=-6)).strip()
        outcome.problems.append(f"  {type(problem).__name__} at the end:\n{reported}")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        outcome.seconds = time.monotonic() - began
        if outcome.problems:
            outcome.problems += [f"  {text}" for text in there.complaints(since)[:SHOWN]]
    return outcome


class _Chaos:
    """One run under faults."""

    def __init__(
        self, there: Cluster, plan: Plan, outcome: Outcome, folder: Path, began: float
    ) -> None:
        self._cluster = there
        self._plan = plan
        self._outcome = outcome
        self._folder = folder
        self._began = began
        self._shape = Shape.of(plan.seed)
        self._source = Input(folder, plan.seed)
        self._pids: dict[str, int] = {}
        self._may_go: set[str] = set()
        self._patience = LOADED if plan.keys else 1
        self._full = threading.Event()
        self._hungry: Exception | None = None

    def go(self) -> None:
        plan, there = self._plan, self._cluster
        there.await_executors()
        self._source.add()
        run = ms.start(
            workflow(self._source, self._folder, self._shape, plan.keys),
            spark=there.spark,
            nodes=plan.nodes,
            partitions=PARTITIONS,
            slots=SLOTS,
            replicas=plan.replicas,
            durability=plan.durability,
            checkpoint_every=timedelta(seconds=1),
            node_timeout=timedelta(seconds=plan.node_timeout),
            zone=self._zones() if plan.mode == "zones" else None,
            listen=there.listen,
            progress=False,
        )
        self._pids = {node.node: node.pid for node in run.status().nodes}
        try:
            with self._feeding(run):
                committed = -1
                for fault in schedule(plan.seed, plan.mode, plan.faults):
                    self._await_commit(run, committed + fault.epochs)
                    self._await_whole(run)
                    self._inject(run, fault)
                    committed = run.status().committed
                self._await_whole(run)
                self._await_commits(run, plan.epochs - 1)
            self._await_commits(run, self._source.epochs - 1)
            found = self._read(run)
            self._outcome.problems += self._judged(found)
            if plan.faults and not self._outcome.landed:
                raise BrokenRunError("no fault was injected")
        except Exception:
            self._outcome.problems.append(f"  at the failure:\n{run.status().drawing}")
            raise
        finally:
            self._outcome.epochs = run.status().committed + 1
            self._outcome.lost = len(run.status().lost)
            self._count_fenced(run.status().lost)
            self._outcome.slow = [
                f"  epoch {report.epoch}: {report.seconds:.1f} s, {report.tries} tries"
                for report in run.progress.recent
                if report.seconds > SLOW or report.tries > 1
            ]
            self._end(run)
        left = gone_within(self._pids.values(), GONE_TIMEOUT)
        if left:
            send(left, signal.SIGKILL)
            raise BrokenRunError(f"the processes {left} of nodes were left behind")

    def _count_fenced(self, lost: Sequence[str]) -> None:
        """Nodes that were neither killed nor stopped for longer than ``node_timeout``, and went."""
        self._outcome.fenced = [node for node in lost if node not in self._may_go]
        for node in self._outcome.fenced:
            self._outcome.problems.append(f"  node {node[:8]} was alive, and fenced for being slow")

    def _zones(self) -> ZoneFunction:
        """Two zones, each with half of the executors that are there now."""
        executors = self._cluster.executor_ids()
        first = set(executors[: len(executors) // 2])
        return lambda host, executor: "north" if executor in first else "south"

    # -- input ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _feeding(self, run: Run) -> Iterator[None]:
        """Keep a few epochs ahead of what is committed: the input lasts as long as the faults."""
        feeder = threading.Thread(target=self._feed, args=(run,), daemon=True)
        feeder.start()
        try:
            yield
        finally:
            self._full.set()
            feeder.join()

    def _feed(self, run: Run) -> None:
        try:
            while not self._full.wait(0.05):
                if self._source.epochs <= run.status().committed + AHEAD:
                    self._source.add()
        except Exception as problem:
            self._hungry = problem

    # -- faults ---------------------------------------------------------------------------

    def _inject(self, run: Run, fault: Fault) -> None:
        time.sleep(fault.wait)
        status = run.status()
        if not is_complete(status, self._plan.replicas, SLOTS):
            self._skip(fault, "the ring is no longer whole")
            return
        hit = victims(fault, status)
        if not hit:
            self._skip(fault, f"fewer than {LEFT} nodes would be left")
            return
        if not self._is_survivable(run, hit):
            self._skip(fault, "the ring is no longer whole")
            return
        match fault.kind:
            case "kill" | "zone":
                self._kill(run, fault, hit)
            case "neighbours":
                if fault.length < 0.5:
                    self._kill(run, fault, hit)
                else:
                    self._freeze(run, fault, hit[:1], also_killed=hit[1:])
            case "freeze":
                self._freeze(run, fault, hit)
            case "pause":
                self._pause(fault, hit, 0.2 + 0.5 * self._plan.node_timeout * fault.length)
            case "half":
                self._pause(fault, hit, 0.5 * self._plan.node_timeout)
            case "twice":
                self._may_go.update(node.node for node in hit)
                self._pause(fault, hit, 2.0 * self._plan.node_timeout)
                self._require_gone(run, hit)
            case "worker":
                self._kill_worker(fault, hit)
            case "executor":
                self._note(fault, f"SIGKILL to executor {hit[0].executor}, with {_names(hit)}")
                self._may_go.update(node.node for node in hit)
                send([executor_of(hit[0].pid)], signal.SIGKILL)
                self._await_lost(run, hit)

    def _is_survivable(self, run: Run, hit: Sequence[NodeStatus]) -> bool:
        """Whether others have copies of all slots that a fault ends, as in a complete ring."""
        if self._plan.replicas == 0:
            return True
        roster, nodes = run._coordinator.roster, [NodeId(node.node) for node in hit]
        for _ in range(3):  # a commit may be just changing what is known
            if roster.survives_without(nodes):
                return True
            time.sleep(0.1)
        if is_complete(run.status(), self._plan.replicas, SLOTS):
            raise BrokenRunError(f"{_names(hit)} of a whole ring hold all copies of some slots")
        return False

    def _kill(self, run: Run, fault: Fault, hit: Sequence[NodeStatus]) -> None:
        self._note(fault, f"SIGKILL to {_names(hit)}")
        self._may_go.update(node.node for node in hit)
        send([node.pid for node in hit], signal.SIGKILL)
        self._await_lost(run, hit)

    def _pause(self, fault: Fault, hit: Sequence[NodeStatus], length: float) -> None:
        self._note(fault, f"SIGSTOP to {_names(hit)} for {length:.1f} s")
        with _stopped([node.pid for node in hit]):
            time.sleep(length)

    def _require_gone(self, run: Run, hit: Sequence[NodeStatus]) -> None:
        """Nodes that were fenced while they were stopped must end when they wake up."""
        lost = set(run.status().lost)
        if gone_within([node.pid for node in hit if node.node in lost], GONE_TIMEOUT):
            raise BrokenRunError(
                f"{_names(hit)} woke up after others took its slots, and did not go"
            )

    def _freeze(
        self,
        run: Run,
        fault: Fault,
        hit: Sequence[NodeStatus],
        also_killed: Sequence[NodeStatus] = (),
    ) -> None:
        and_killed = f", SIGKILL to {_names(also_killed)}" if also_killed else ""
        self._note(fault, f"SIGSTOP to {_names(hit)} until it is declared dead{and_killed}")
        self._may_go.update(node.node for node in (*hit, *also_killed))
        with _stopped([node.pid for node in hit]):
            send([node.pid for node in also_killed], signal.SIGKILL)
            self._await_lost(run, [*hit, *also_killed])
            time.sleep(fault.length)
        self._require_gone(run, hit)

    def _kill_worker(self, fault: Fault, hit: Sequence[NodeStatus]) -> None:
        workers = workers_of(executor_of(hit[0].pid))
        if not workers:
            self._skip(fault, f"executor {hit[0].executor} has no Python worker")
            return
        worker = fault.of(workers)
        self._note(fault, f"SIGKILL to Python worker {worker} of executor {hit[0].executor}")
        send([worker], signal.SIGKILL)

    def _note(self, fault: Fault, what: str) -> None:
        self._outcome.landed += 1
        self._outcome.faults.append(self._line(fault, what))

    def _skip(self, fault: Fault, why: str) -> None:
        self._outcome.faults.append(self._line(fault, f"not injected: {why}"))

    def _line(self, fault: Fault, what: str) -> str:
        return f"  {time.monotonic() - self._began:6.1f} s  {fault.kind:<10} {what}"

    # -- waiting -------------------------------------------------------------------------

    def _await(self, run: Run, done: Callable[[], bool], seconds: float, what: str) -> None:
        seconds *= self._patience
        deadline = time.monotonic() + seconds
        while not done():
            if self._hungry is not None:
                raise self._hungry
            if run.await_termination(timedelta(0)):
                raise BrokenRunError("the run ended by itself")
            if time.monotonic() > deadline:
                raise BrokenRunError(f"waited {seconds:.0f} s in vain for {what}")
            time.sleep(0.05)

    def _await_whole(self, run: Run) -> None:
        replicas = self._plan.replicas
        self._await(
            run, lambda: is_complete(run.status(), replicas, SLOTS), HEAL_TIMEOUT, "a whole ring"
        )

    def _await_lost(self, run: Run, hit: Sequence[NodeStatus]) -> None:
        names = {node.node for node in hit}
        self._await(
            run,
            lambda: names <= set(run.status().lost),
            HEAL_TIMEOUT,
            f"{_names(hit)} to be declared dead",
        )

    def _await_commit(self, run: Run, epoch: int) -> None:
        self._await(
            run,
            lambda: run.status().committed >= epoch,
            COMMIT_TIMEOUT,
            f"the commit of epoch {epoch}",
        )

    def _await_commits(self, run: Run, last: int) -> None:
        """Wait for all commits through an epoch, with patience for each."""
        for epoch in range(run.status().committed + 1, last + 1):
            self._await_commit(run, epoch)

    # -- the end -------------------------------------------------------------------------

    def _read(self, run: Run) -> Answer:
        found = Answer()
        for job in (*JOBS, LOAD) if self._plan.keys else JOBS:
            pairs = list(run.state(job).items())
            found.state[job] = dict(pairs)
            if len(found.state[job]) != len(pairs):
                self._outcome.problems.append(f"  state of {job!r}: keys are given twice")
        return found

    def _judged(self, found: Answer) -> list[str]:
        expected = answer(self._plan.seed, self._source.epochs, self._shape, self._plan.keys)
        for sink in expected.rows:
            found.rows[sink] = _rows_of(self._folder / sink)
        lines = differences(found, expected)
        more = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return [f"  {line}" for line in lines[:SHOWN]] + more

    def _end(self, run: Run) -> None:
        """Stop; a run that does not end cannot be left alone."""
        ending = threading.Thread(target=run.stop, daemon=True)
        ending.start()
        ending.join(STOP_TIMEOUT * self._patience)
        if ending.is_alive():
            faulthandler.dump_traceback()
            send(self._pids.values(), signal.SIGKILL)
            raise StuckRunError(f"stop() did not return within {STOP_TIMEOUT:.0f} s")


def _rows_of(folder: Path) -> dict[int, list[tuple[Any, ...]]]:
    """All rows that readers of a sink see, by epoch."""
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for epoch in folder.glob("epoch=*"):
        found = rows.setdefault(int(epoch.name.removeprefix("epoch=")), [])
        for file in epoch.glob("*.parquet"):
            found += [tuple(row.values()) for row in pq.read_table(file).to_pylist()]
        found.sort()
    return rows


@contextlib.contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signal.SIGCONT)


def _names(nodes: Sequence[NodeStatus]) -> str:
    return ", ".join(f"node {node.node[:8]} ({node.pid})" for node in nodes)


# -- the command ---------------------------------------------------------------------------


def plans(options: argparse.Namespace) -> list[Plan]:
    """The runs that were asked for; with both durabilities, in turn."""
    both: tuple[Durability, ...] = ("epoch", "interval")
    chosen = both if options.durability == "both" else (options.durability,)
    mode: Mode = "single"
    for name in ("zones", "neighbours", "stops"):
        mode = name if getattr(options, name) else mode
    replicas = options.replicas if options.replicas is not None else 1 + options.neighbours
    return [
        Plan(
            seed=options.seed + at,
            mode=mode,
            replicas=replicas,
            # Shapes alternate with the seed; not in step with it, or some pairs never meet.
            durability=chosen[(at + at // 4) % len(chosen)],
            nodes=options.nodes,
            faults=1 if mode == "zones" else options.faults,
            epochs=options.epochs,
            keys=options.keys,
            node_timeout=options.node_timeout,
        )
        for at in range(options.runs)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs; 0 if all were exact."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through all that ends processes
    if options.verbose:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    masters: tuple[Master, ...] = ("local-cluster", "standalone")
    chosen = masters if options.master == "both" else (options.master,)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    for master in chosen:
        executors = 2 if options.zones or master == "standalone" else 3
        with cluster(master, executors, log_level="ERROR" if options.verbose else "OFF") as there:
            for plan in plans(options):
                try:
                    outcome = run_once(there, plan)
                except StuckRunError as problem:
                    print(f"seed {plan.seed}: {problem}", flush=True)
                    send(descendants(os.getpid()), signal.SIGKILL)
                    os._exit(1)
                outcomes.append(outcome)
                print(outcome.line(), flush=True)
                if not outcome.exact or options.verbose:
                    print(outcome.report(), flush=True)
    exact = sum(outcome.exact for outcome in outcomes)
    print(
        f"{exact} of {len(outcomes)} runs exact, {sum(o.landed for o in outcomes)} faults, "
        f"{sum(o.lost for o in outcomes)} nodes lost, {sum(o.epochs for o in outcomes)} epochs, "
        f"{time.monotonic() - began:.0f} s"
    )
    print(f"living nodes fenced for being slow: {sum(len(o.fenced) for o in outcomes)}")
    return 0 if exact == len(outcomes) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--replicas", type=int, default=None, help="1, or 2 with --neighbours")
    parser.add_argument("--durability", choices=("epoch", "interval", "both"), default="both")
    parser.add_argument(
        "--master", choices=("local-cluster", "standalone", "both"), default="local-cluster"
    )
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--faults", type=int, default=5, help="in each run")
    parser.add_argument("--epochs", type=int, default=20, help="at least, in each run")
    parser.add_argument("--keys", type=int, default=0, help="of one more job, that is only load")
    parser.add_argument("--node-timeout", type=float, default=3.0, help="in seconds")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--stops", action="store_true", help="stop nodes for half of, and twice, node_timeout"
    )
    kinds.add_argument("--neighbours", action="store_true", help="two neighbours at once")
    kinds.add_argument("--zones", action="store_true", help="all nodes of one of two zones at once")
    parser.add_argument("--verbose", action="store_true", help="show faults and logs of all runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

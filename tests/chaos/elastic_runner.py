"""Chaos for elasticity: nodes come and go, slots move, and processes are killed, during a run.

A run's seed gives its input, its workflow, its master, and the steps of its drivers
(``elastic_plans``). Input comes as long as the steps last. A reader looks at the sinks all the
time. At the end, all that was ever visible, the rows of all sinks, and the state of all jobs are
compared with the batch answer; after every start, no process may be left.

    python -m tests.chaos.elastic_runner --runs 20 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.chaos.clusters import standalone
from tests.chaos.driver_process import Driver
from tests.chaos.elastic_driver import CORES
from tests.chaos.elastic_plans import ElasticPlan, Outcome, plan_of
from tests.chaos.processes import send
from tests.chaos.reader import Reader
from tests.chaos.stored import State, stored_state
from tests.chaos.workload import JOBS, Answer, Input, answer, differences

EXECUTORS = 3
HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
AHEAD = 3
START_TIMEOUT = 900.0
GONE_TIMEOUT = 20.0
SHOWN = 12
LOCAL_CLUSTER = f"local-cluster[{EXECUTORS},{CORES},1024]"


class BrokenRunError(Exception):
    """A run did not do what it must."""


def run_once(plan: ElasticPlan, keep: Path | None = None) -> Outcome:
    """Make one run and check it; failures are in the outcome."""
    outcome = Outcome(plan)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-elastic-"))
    chaos = _Chaos(plan, outcome, folder)
    try:
        with _master(plan, folder) as url:
            chaos.go(url)
    except Exception as problem:
        outcome.problems.append(f"  {type(problem).__name__}: {problem}")
    finally:
        for driver in chaos.drivers:
            driver.kill()
        outcome.seconds = time.monotonic() - began
        if outcome.problems:
            outcome.log = [line for driver in chaos.drivers for line in driver.log()]
            if keep is not None:
                shutil.copytree(folder, keep / f"seed{plan.seed}", dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


@contextlib.contextmanager
def _master(plan: ElasticPlan, folder: Path) -> Iterator[str]:
    if plan.master == "local-cluster":
        yield LOCAL_CLUSTER
        return
    workers = folder / "workers"
    workers.mkdir()
    with standalone(workers, HOSTS[:EXECUTORS], CORES) as url:
        yield url


class _Chaos:
    """One run."""

    def __init__(self, plan: ElasticPlan, outcome: Outcome, folder: Path) -> None:
        self._plan = plan
        self._outcome = outcome
        self._folder = folder
        self._began = time.monotonic()
        self._source = Input(folder, plan.seed)
        self._full = threading.Event()
        self._sinks = [folder / sink for sink in answer(plan.seed, 1, plan.shape).rows]
        self._hungry: Exception | None = None
        self.drivers: list[Driver] = []

    def go(self, url: str) -> None:
        self._source.add()
        reader = Reader(self._sinks)
        feeding = threading.Thread(target=self._feed, daemon=True)
        feeding.start()
        try:
            with reader:
                for number in range(len(self._plan.starts)):
                    self._drive(url, number)
                    self._require_gone(self.drivers[-1])
            self._judge(reader)
        finally:
            self._full.set()
            feeding.join()

    # -- input ---------------------------------------------------------------------------

    def _feed(self) -> None:
        """Keep a few epochs ahead of what is visible: the input lasts as long as the steps."""
        try:
            while not self._full.wait(0.05):
                if self._source.epochs <= self._published() + AHEAD:
                    self._source.add()
        except Exception as problem:
            self._hungry = problem

    def _published(self) -> int:
        """The newest epoch that is visible in all sinks."""
        newest = [
            max((int(path.name.partition("=")[2]) for path in sink.glob("epoch=*")), default=-1)
            for sink in self._sinks
        ]
        return min(newest)

    # -- drivers -------------------------------------------------------------------------

    def _drive(self, url: str, number: int) -> None:
        """Start a driver, and see it do its steps, and be killed or come to the end."""
        start = self._plan.starts[number]
        driver = Driver(
            "tests.chaos.elastic_driver", self._folder, number + 1, self._plan, number, url
        )
        self.drivers.append(driver)
        self._tell(f"driver {driver.number} starts with {start.nodes} nodes")
        if start.end is None:
            self._await(driver, lambda: bool(driver.reports("done")), "its last step")
            self._full.set()
            # Written at once, and then renamed: the driver reads it as soon as it is there.
            written = self._folder / "last.new"
            written.write_text(str(self._source.epochs))
            written.rename(self._folder / "last")
        self._await(driver, lambda: driver.process.poll() is not None, "its end")
        self._count(driver)
        self._tell(f"driver {driver.number} is gone: {driver.ended or 'killed'}")
        killed = bool(driver.reports("moment"))
        expected = ("", "SparkLostError") if start.end else ("finished",)
        if driver.ended not in expected or killed != (start.end is not None):
            why = driver.reports("text")
            raise BrokenRunError(
                f"driver {driver.number} ended as {driver.ended or 'killed'!r}: {why}"
            )

    def _count(self, driver: Driver) -> None:
        self._outcome.done.update(driver.reports("step"))
        self._outcome.done.update("driver" for _ in driver.reports("moment"))
        for fact in driver.facts:
            if "step" in fact:
                self._outcome.story.append(
                    f"           {fact['step']} {fact['what']} (epoch {fact['committed']})"
                )
            elif "skipped" in fact:
                self._outcome.story.append(f"           no {fact['skipped']}: {fact['what']}")

    def _await(self, driver: Driver, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not done():
            if self._hungry is not None:
                raise self._hungry
            if driver.process.poll() is not None:
                if done():
                    return
                self._count(driver)
                why = driver.reports("text")
                raise BrokenRunError(
                    f"driver {driver.number} ended as {driver.ended or 'killed'!r} before {what}: "
                    f"{why}"
                )
            if time.monotonic() > deadline:
                send([driver.process.pid], signal.SIGUSR1)  # tells where it is
                time.sleep(1.0)
                raise BrokenRunError(f"driver {driver.number}: waited in vain for {what}")
            time.sleep(0.05)

    def _require_gone(self, driver: Driver) -> None:
        deadline = time.monotonic() + GONE_TIMEOUT
        while left := driver.left():
            if time.monotonic() > deadline:
                self._outcome.problems.append(
                    f"  the processes {left} of driver {driver.number} were left behind"
                )
                send(left, signal.SIGKILL)
                return
            time.sleep(0.1)

    def _tell(self, what: str) -> None:
        self._outcome.story.append(f"  {time.monotonic() - self._began:6.1f} s  {what}")

    # -- the end -------------------------------------------------------------------------

    def _judge(self, reader: Reader) -> None:
        reader.look()
        last, state = pickle.loads((self._folder / "state").read_bytes())
        self._outcome.epochs = last + 1
        problems = [*reader.problems, *self._compared("the last driver", state, reader)]
        if self._plan.has_checkpoint:
            found, damage = stored_state(self._folder / "checkpoint", JOBS, last)
            problems += [*damage, *self._compared("the store", found, reader)]
        more = [f"  and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        self._outcome.problems += [f"  {line}" for line in problems[:SHOWN]] + more

    def _compared(self, who: str, state: State, reader: Reader) -> Iterator[str]:
        found = Answer({job: dict(pairs) for job, pairs in state.items()}, reader.rows)
        for job, pairs in state.items():
            if len(found.state[job]) != len(pairs):
                yield f"{who}: state of {job!r} gives keys twice"
        expected = answer(self._plan.seed, self._outcome.epochs, self._plan.shape)
        for line in differences(found, expected):
            yield f"{who}: {line}"


# -- the command ---------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the runs; 0 if all were exact."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through all that ends processes
    began = time.monotonic()
    outcomes: list[Outcome] = []
    for seed in options.seeds or range(options.seed, options.seed + options.runs):
        outcome = run_once(plan_of(seed), options.keep)
        outcomes.append(outcome)
        print(outcome.line(), flush=True)
        if not outcome.exact or options.verbose:
            print(outcome.report(), flush=True)
    exact = sum(outcome.exact for outcome in outcomes)
    done: Counter[str] = Counter()
    for outcome in outcomes:
        done.update(outcome.done)
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(done.items()))
    print(
        f"{exact} of {len(outcomes)} runs exact, {done.total()} steps ({counts}), "
        f"{sum(o.epochs for o in outcomes)} epochs, {time.monotonic() - began:.0f} s"
    )
    return 0 if exact == len(outcomes) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="chaos-elastic", description=about)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--seeds", type=int, nargs="+", help="these seeds, and no others")
    parser.add_argument("--keep", type=Path, help="a folder for what failed runs leave")
    parser.add_argument("--verbose", action="store_true", help="show the story of all runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

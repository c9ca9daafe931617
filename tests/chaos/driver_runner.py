"""Chaos for drivers: they are killed or stopped, and started again on the same checkpoint.

A run's seed gives its input, its workflow and the moments of its drivers (``driver_plans``). A
reader looks at the sinks all the time. At the end, all that was ever visible, the rows of all
sinks, and the state of all jobs, as the last driver and as the store has it, are compared with the
batch answer; and no process of a dead driver may be left.

    python -m tests.chaos.driver_runner --runs 20 --seed 0
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.driver_plans import DriverPlan, Outcome, Start, plan_of
from tests.chaos.driver_process import Driver
from tests.chaos.processes import send
from tests.chaos.reader import Reader
from tests.chaos.stored import stored_state
from tests.chaos.windowed import in_one, lines_that_differ, windowed_answer
from tests.chaos.workload import Answer, Input, answer, differences
from tests.stores.redis_servers import RedisServer

START_TIMEOUT = 300.0
GONE_TIMEOUT = 15.0
SHOWN = 12


class BrokenRunError(Exception):
    """A run did not do what it must."""


def run_once(plan: DriverPlan, keep: Path | None = None) -> Outcome:
    """Make one run and check it; failures are in the outcome."""
    outcome = Outcome(plan)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-driver-"))
    chaos = _Chaos(plan, outcome, folder)
    try:
        chaos.go()
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


class _Chaos:
    """One run."""

    def __init__(self, plan: DriverPlan, outcome: Outcome, folder: Path) -> None:
        self._plan = plan
        self._outcome = outcome
        self._folder = folder
        self._began = time.monotonic()
        self._watches: list[threading.Thread] = []
        answer_of = windowed_answer if plan.shape.windows else answer
        self._expected = answer_of(plan.seed, plan.epochs, plan.shape)
        self.drivers: list[Driver] = []

    def go(self) -> None:
        source = Input(self._folder, self._plan.seed)
        for _ in range(self._plan.epochs):
            source.add()
        reader = Reader([self._folder / sink for sink in self._expected.rows])
        with _store(self._plan.store, self._folder):
            with reader:
                if self._plan.order is None:
                    self._one_after_the_other()
                else:
                    self._two_at_once()
                for watch in self._watches:
                    watch.join()
            self._judge(reader)

    # -- drivers -------------------------------------------------------------------------

    def _one_after_the_other(self) -> None:
        if not any(self._is_over(start) for start in self._plan.starts):
            raise BrokenRunError("no driver came to the end")

    def _is_over(self, start: Start) -> bool:
        """Start a driver, and see it killed, or else come to the end."""
        driver = self._begin(start)
        self._await_end(driver)
        if driver.reports("moment"):
            self._outcome.landed += 1
        elif driver.ended != "finished":
            raise BrokenRunError(f"driver {driver.number} ended as {driver.ended or 'killed'!r}")
        return driver.ended == "finished"

    def _two_at_once(self) -> None:
        *before_them, one, other = self._plan.starts
        if any(self._is_over(start) for start in before_them):
            raise BrokenRunError("a driver that was to be killed came to the end")
        first = self._begin(one)
        self._await(first, lambda: bool(first.reports("moment")), "its moment")
        self._outcome.landed += 1
        before = len(first.reports("manifest"))
        second = self._begin(other)
        match self._plan.order:
            case "after the end":
                self._await_end(second)
            case "while it runs":
                self._await(second, lambda: bool(second.reports("manifest")), "a manifest")
            case "before it begins":
                self._await(second, lambda: bool(second.reports("moment")), "its moment")
                self._outcome.landed += 1
        first.wake()
        self._tell(f"driver {first.number} goes on")
        self._await_end(first)
        if second.process.poll() is None:
            second.wake()
            self._await_end(second)
        if first.ended != "SupersededError" or len(first.reports("manifest")) > before:
            raise BrokenRunError(
                f"driver {first.number} was replaced, but ended as {first.ended!r}"
            )
        if second.ended != "finished":
            raise BrokenRunError(f"driver {second.number} ended as {second.ended!r}")

    def _begin(self, start: Start) -> Driver:
        number = len(self.drivers) + 1
        driver = Driver("tests.chaos.driver", self._folder, number, self._plan, start)
        self.drivers.append(driver)
        what = f"{start.nodes} nodes, {start.recovery}, {start.moment or 'to the end'}"
        self._tell(f"driver {driver.number} starts: {what}")
        return driver

    def _await(self, driver: Driver, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not done():
            if driver.process.poll() is not None:
                if done():
                    return
                raise BrokenRunError(f"driver {driver.number} ended before {what}")
            if time.monotonic() > deadline:
                send([driver.process.pid], signal.SIGUSR1)  # tells where it is
                time.sleep(1.0)
                raise BrokenRunError(f"driver {driver.number}: waited in vain for {what}")
            time.sleep(0.05)

    def _await_end(self, driver: Driver) -> None:
        self._await(driver, lambda: driver.process.poll() is not None, "its end")
        self._tell(f"driver {driver.number} is gone: {driver.ended or 'killed'}")
        # Aside: the next driver does not wait for what the last one has left.
        watch = threading.Thread(target=self._watch, args=(driver,), daemon=True)
        watch.start()
        self._watches.append(watch)

    def _watch(self, driver: Driver) -> None:
        deadline = time.monotonic() + GONE_TIMEOUT
        while left := driver.left():
            if time.monotonic() > deadline:
                self._outcome.problems.append(
                    f"  the processes {left} of driver {driver.number} were left behind"
                )
                return
            time.sleep(0.1)

    def _tell(self, what: str) -> None:
        self._outcome.story.append(f"  {time.monotonic() - self._began:6.1f} s  {what}")

    # -- the end -------------------------------------------------------------------------

    def _judge(self, reader: Reader) -> None:
        reader.look()
        problems = [*reader.problems]
        committed, state = pickle.loads((self._folder / "state").read_bytes())
        last = self._plan.epochs - 1
        # With windows, heartbeats make epochs of their own, and one more closes what is open.
        if committed <= last if self._plan.shape.windows else committed != last:
            problems.append(f"the last epoch is {committed}, and that with the last data {last}")
        problems += self._compared("the last driver", state, reader)
        found, damage = stored_state(self._folder / "checkpoint", self._plan.jobs, committed)
        problems += damage
        problems += self._compared("the store", found, reader)
        more = [f"  and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        self._outcome.problems += [f"  {line}" for line in problems[:SHOWN]] + more

    def _compared(
        self, who: str, state: dict[str, list[tuple[Any, Any]]], reader: Reader
    ) -> Iterator[str]:
        found = Answer({job: dict(pairs) for job, pairs in state.items()}, reader.rows)
        for job, pairs in state.items():
            if len(found.state[job]) != len(pairs):
                yield f"{who}: state of {job!r} gives keys twice"
        expected = self._expected
        if self._plan.shape.windows:
            yield from lines_that_differ(in_one(found.rows), expected.rows)
            found, expected = Answer(found.state), Answer(expected.state)
        for line in differences(found, expected):
            yield f"{who}: {line}"


@contextlib.contextmanager
def _store(kind: str, folder: Path) -> Iterator[None]:
    """Have a store, and leave its URL for the drivers, if it is another than the default."""
    if kind == "redis":
        server = RedisServer(folder / "redis")
        server.start()
        try:
            (folder / "store").write_text(server.url)
            yield
        finally:
            server.kill()
        return
    if kind == "files":
        (folder / "store").write_text(f"files://{folder}/elsewhere")
    yield


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
    print(
        f"{exact} of {len(outcomes)} runs exact, {sum(o.landed for o in outcomes)} faults, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0 if exact == len(outcomes) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="chaos-driver", description=about)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--seeds", type=int, nargs="+", help="these seeds, and no others")
    parser.add_argument("--keep", type=Path, help="a folder for what failed runs leave")
    parser.add_argument("--verbose", action="store_true", help="show the story of all runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

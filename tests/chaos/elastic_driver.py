"""A driver whose nodes come and go: it does the steps of a start, and perhaps ends in the middle.

    python -m tests.chaos.elastic_driver FOLDER PLAN NUMBER MASTER

``FOLDER`` holds input, sinks and checkpoint; the others are pickles, in base64: the plan, the
number of the start, and the URL of Spark's master. What happens is reported in lines of JSON. When
the last steps are done, the file ``last`` tells how many epochs there are; then the state is
written to the file ``state``.
"""

from __future__ import annotations

import base64
import faulthandler
import logging
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import millstream as ms
from millstream.flow.sources import Source
from millstream.ring.ring import NodeId
from millstream.spark.handle import Run
from millstream.wire.control import NodeStatus
from tests.chaos import moments
from tests.chaos.clusters import session
from tests.chaos.driver import say
from tests.chaos.elastic_plans import ElasticPlan, Start, Step
from tests.chaos.faults import is_complete
from tests.chaos.processes import executor_of, send
from tests.chaos.workload import FILES, JOBS, bounded_workflow

SLOTS = 256
CORES = 2
SETTLE_TIMEOUT = 120.0
COMMIT_TIMEOUT = 90.0
_POLL = 0.05


class StuckError(Exception):
    """Something did not happen in time."""


def main(arguments: list[str]) -> int:
    """Run the workflow to its end, if nothing comes between."""
    folder = Path(arguments[0])
    plan, number, master = (pickle.loads(base64.b64decode(each)) for each in arguments[1:])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    more = {
        "spark.executor.cores": str(CORES),
        # On a standalone master, executors do not inherit it.
        f"spark.executorEnv.{moments.MARK}": os.environ[moments.MARK],
    }
    with session(master, "ERROR", more) as spark:
        try:
            with ms.start(
                bounded_workflow(_source(folder), folder, plan.shape),
                spark=spark,
                checkpoint=folder / "checkpoint" if plan.has_checkpoint else None,
                nodes=plan.starts[number].nodes,
                durability=plan.durability,
                checkpoint_every=timedelta(seconds=0.5),
                slots=SLOTS,
                replicas=plan.replicas,
                node_timeout=timedelta(seconds=3),
                listen="127.0.0.1" if plan.master == "standalone" else None,
                progress=False,
            ) as run:
                say(started=True)
                _Script(run, plan, plan.starts[number], folder).go()
        except (ms.MillstreamError, StuckError) as problem:
            say(ended=type(problem).__name__, text=str(problem)[:2000])
            return 1
    say(ended="finished")
    return 0


def _source(folder: Path) -> Source:
    return ms.read.text(f"{folder}/ready/*", follow=True, max_files_per_epoch=FILES)


class _Script:
    """The steps of one start."""

    def __init__(self, run: Run, plan: ElasticPlan, start: Start, folder: Path) -> None:
        self._run = run
        self._plan = plan
        self._start = start
        self._folder = folder

    def go(self) -> None:
        for step in self._start.steps:
            self._await_commit(self._run.status().committed + step.epochs)
            if step.settled:
                self._settle()
            time.sleep(step.wait)
            self._do(step)
        if self._start.end is not None:
            time.sleep(self._start.wait)
            moments.inject(self._start.end, say)
            self._run.await_termination()  # raises that Spark was lost
        self._finish()

    def _do(self, step: Step) -> None:
        match step.kind:
            case "scale":
                self._run.scale(step.nodes)
                self._did(step, f"to {step.nodes} nodes")
            case "rebalance":
                self._run.rebalance()
                self._did(step, "")
            case "move":
                self._move(step)
            case "drain":
                self._drain(step)
            case "kill":
                victim = step.of([node.node for node in self._run.status().nodes])
                hit = [node for node in self._run.status().nodes if node.node == victim]
                self._kill(step, hit, [node.pid for node in hit])
            case "executor":
                nodes = self._run.status().nodes
                executor = step.of(sorted({node.executor for node in nodes}))
                hit = [node for node in nodes if node.executor == executor]
                self._kill(step, hit, [executor_of(hit[0].pid)])

    def _active(self) -> list[str]:
        return [node.node for node in self._run.status().nodes if node.role == "active"]

    def _move(self, step: Step) -> None:
        """Move a run of slots, or scattered ones."""
        to = step.of(self._active())
        dice = random.Random(f"slots {self._plan.seed} {step.pick}")
        first, count = dice.randrange(SLOTS), 1 + int(step.size * SLOTS / 2)
        together = [slot % SLOTS for slot in range(first, first + count)]
        scattered = dice.sample(range(SLOTS), count)
        slots = dice.choice((together, scattered))
        try:
            self._run.move(slots, to)
        except ms.MillstreamError as problem:  # it died or left just now
            self._skip(step, str(problem))
        else:
            self._did(step, f"{count} slots to {to[:8]}")

    def _drain(self, step: Step) -> None:
        active = self._active()
        if len(active) < 2:
            self._skip(step, "there is one active node")
            return
        try:
            self._run.drain(step.of(active))
        except ms.MillstreamError as problem:
            self._skip(step, str(problem))
        else:
            self._did(step, step.of(active)[:8])

    def _kill(self, step: Step, hit: list[NodeStatus], pids: list[int]) -> None:
        names = ", ".join(node.node[:8] for node in hit)
        nodes = [NodeId(node.node) for node in hit]
        roster, status = self._run._coordinator.roster, self._run.status()
        others = [n for n in status.nodes if n.node not in nodes and n.role != "leaving"]
        # With a store that has every epoch, slots without a copy are restored.
        restorable = self._plan.has_checkpoint and self._plan.durability == "epoch"
        if not others or not (restorable or roster.survives_without(nodes)):
            self._skip(step, f"the state would be lost with {names}")
            return
        self._did(step, f"SIGKILL to {names}")
        send(pids, signal.SIGKILL)

    def _finish(self) -> None:
        """Report that all is done, let the rest of the input come, and write the state."""
        self._settle()
        say(done=True)
        file = self._folder / "last"
        self._await(file.exists, COMMIT_TIMEOUT, "the number of epochs")
        last = int(file.read_text()) - 1
        while (committed := self._run.status().committed) < last:
            self._await_commit(committed + 1)
        self._settle()
        found = {job: list(self._run.state(job).items()) for job in JOBS}
        (self._folder / "state").write_bytes(pickle.dumps((last, found)))

    # -- waiting -------------------------------------------------------------------------

    def _await_commit(self, epoch: int) -> None:
        self._await(
            lambda: self._run.status().committed >= epoch,
            COMMIT_TIMEOUT,
            f"the commit of epoch {epoch}",
        )

    def _settle(self) -> None:
        """Wait until all moves are done, all nodes are there, and all copies are in sync."""
        self._await(self._is_settled, SETTLE_TIMEOUT, "moves, nodes and copies")

    def _is_settled(self) -> bool:
        status = self._run.status()
        roles = [node.role for node in status.nodes]
        return (
            not status.pending
            and roles.count("active") == status.target
            and "leaving" not in roles
            and is_complete(status, self._plan.replicas, SLOTS)
        )

    def _await(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if self._run.await_termination(timedelta(0)):
                raise StuckError("the run ended by itself")
            if time.monotonic() > deadline:
                raise StuckError(f"waited {seconds:.0f} s in vain for {what}\n{self._situation()}")
            time.sleep(_POLL)

    def _situation(self) -> str:
        status = self._run.status()
        roles = ", ".join(f"{node.node[:8]} {node.role}" for node in status.nodes)
        events = [f"{event.kind}: {event.text}" for event in self._run.events()[-20:]]
        head = f"target {status.target}, {status.pending} slots pending; {roles}"
        return "\n".join([head, *status.waits, status.drawing, *events])

    # -- reports -------------------------------------------------------------------------

    def _did(self, step: Step, what: str) -> None:
        say(step=step.kind, what=what, committed=self._run.status().committed)

    def _skip(self, step: Step, why: str) -> None:
        say(skipped=step.kind, what=why)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

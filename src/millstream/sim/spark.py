"""Spark as an adversary: it does to the body of an epoch whatever it is allowed to do.

Tasks are attempted more than once and side by side, killed before, during and after their feeds;
a success is never run again, or all is; stages are retried in part; sinks evaluate twice, or in
part; closures are stale; there are few cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.roster import StateLostError
from millstream.errors import MillstreamError
from millstream.sim.map_task import MapTask, Row
from millstream.sim.network import SimNet, World
from millstream.sim.sink_models import SINK, Sink
from millstream.sim.workload import PLAIN, Outputs, Pair, Workload, in_order, some_key, spelled
from millstream.sim.write_job import TaskPool
from millstream.state.records import decode_records
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.epoch_record import EpochRecord
from millstream.wire.feed import NotDeterministicError, RecutError
from millstream.work.feeder import Feeder, fetch_record
from millstream.work.program import program_of

_ATTEMPTS = 12
_SHORTEST_NAP, _LONGEST_NAP = 0.005, 0.1
Given = tuple[pa.RecordBatch, ...]
Target = tuple[int, int]
"""A job, and one of its partitions."""


class TaskFailedError(MillstreamError):
    """Spark gave up on a task."""


class IndeterminateError(MillstreamError):
    """Spark noticed that a retried stage has other blocks, and failed the job."""


@dataclass(frozen=True, kw_only=True)
class SparkFaults:
    """The probabilities of what Spark may do to tasks."""

    kill: float = 0.1
    speculate: float = 0.1
    rerun: float = 0.1
    twice: float = 0.1
    partly: float = 0.1
    flaky: float = 0.0
    late: float = 0.0


@dataclass(frozen=True)
class Shape:
    """How an epoch is cut: into how many map tasks, and at least how many partitions."""

    slots: int
    partitions: int
    tasks: int


class SparkBody:
    """The body of one epoch."""

    def __init__(
        self,
        world: World,
        driver: SimNet,
        hosts: Callable[[], list[str]],
        shape: Shape,
        faults: SparkFaults,
        inputs: list[list[Pair]],
        sink: Sink,
        workload: Workload = PLAIN,
    ) -> None:
        self.world = world
        self.driver = driver
        self.hosts = hosts
        self.shape = shape
        self.faults = faults
        self.inputs = inputs
        self.workload = workload
        self.program = program_of(workload.plan, shape.slots)
        self._sink = sink
        self._shown = False

    @contextmanager
    def attempt(self, record: EpochRecord) -> Iterator[SparkAttempt]:
        self._shown = False
        yield SparkAttempt(self, record)

    def stage(self, record: EpochRecord, outputs: Outputs) -> None:
        """Stage the outputs of a try."""
        faults = self.faults
        pool = TaskPool(
            self.world,
            self.driver,
            self.hosts,
            faults.kill,
            faults.speculate,
            faults.late,
        )
        self._shown = self._sink.stage(record.epoch, record.attempt, outputs, pool)

    def discard(self, record: EpochRecord) -> None:
        self._sink.discard(record.epoch, record.attempt)

    def is_retryable(self, problem: Exception) -> bool:
        return isinstance(problem, IndeterminateError)

    def staged(self, record: EpochRecord) -> Staged:
        return Staged(record.epoch, record.attempt, (SINK,) if self._shown else ())

    def publish(self, staged: Staged) -> None:
        if staged.sinks:
            self._sink.publish(staged.epoch, staged.attempt)


class SparkAttempt:
    """One try of the body: stages of tasks."""

    def __init__(self, body: SparkBody, record: EpochRecord) -> None:
        self._body = body
        self._record = record
        self._world = body.world
        self._driver = body.driver
        self._coordinator = body.driver.process.name
        self._faults = body.faults
        self._parts = list(range(len(record.partitions)))
        self._program = body.program

    def stage(self) -> None:
        world, faults, parts = self._world, self._faults, self._parts
        if world.maybe(faults.partly):
            # A sink that looks at a part, and shows nothing of it.
            self._evaluate(sorted(world.random.sample(parts, world.random.randrange(len(parts)))))
            return
        if world.maybe(faults.twice):
            self._evaluate(parts)
        self._body.stage(self._record, self._evaluate(parts))

    def evaluate(self) -> None:
        self._evaluate(self._parts)

    def call_back(self) -> None:
        return

    def _evaluate(self, last: list[int]) -> Outputs:
        """Run the stages; of the last one, only some partitions."""
        program = self._program
        blocks, shown = self._sources()
        for stage in range(1, program.last_stage + 1):
            parts = last if stage == program.last_stage else self._parts
            targets = [(job, part) for job in program.stages[stage] for part in parts]
            results = self._run_stage(targets, blocks)
            if stage == 1 < program.last_stage and self._world.maybe(self._faults.rerun):
                self._run_again(results)
            more, seen = self._behind(stage, results)
            blocks += more
            for sink, records in seen.items():
                shown.setdefault(sink, []).extend(records)
        plan = self._body.workload.plan
        return {plan.inputs[at][0]: in_order(shown.get(at, [])) for at, _ in plan.sinks}

    def _run_again(self, first: dict[Target, Given]) -> None:
        """An executor died with its shuffle files: some tasks of the first stage run again."""
        lost = [target for target in first if self._world.maybe(0.5)]
        blocks, _ = self._sources()
        for target, outputs in self._run_stage(lost, blocks).items():
            before, after = _rows(first[target]), _rows(outputs)
            same = in_order(after) == in_order(before)
            assert same or self._may_differ(), f"partition {target} differs"
            if after != before:
                what = "another order" if same else "other rows"
                raise IndeterminateError(f"a re-run of partition {target} gave {what}")

    def _may_differ(self) -> bool:
        """Whether frozen units may be lost with their owner, and maps may differ when run again."""
        record = self._record
        now = fetch_record(self._driver, self._coordinator, *record.at, known=record)
        return self._faults.flaky > 0 and now.placement.version != record.placement.version

    def _sources(self) -> tuple[list[Row], Outputs]:
        """The blocks of the tasks that read the sources."""
        tasks = []
        for number in range(len(self._body.inputs)):
            task = MapTask(self._program, self._record, 0, number)
            for source, records in self._body.workload.by_source(self._input(number)):
                task.read(source, records)
            tasks.append(task)
        return _gathered(tasks)

    def _behind(self, stage: int, results: dict[Target, Given]) -> tuple[list[Row], Outputs]:
        """The blocks of tasks that have fed jobs and got these results."""
        tasks = []
        for number, ((job, _), outputs) in enumerate(results.items()):
            task = MapTask(self._program, self._record, stage, number)
            for output in outputs:
                task.take(job, output)
            tasks.append(task)
        return _gathered(tasks)

    def _input(self, task: int) -> list[Pair]:
        given = list(self._body.inputs[task])
        if given and self._world.maybe(self._faults.flaky):
            # Another key, too: what one attempt has touched, the other may leave alone.
            given[-1] = (some_key(self._world.random), self._world.random.randrange(100, 200))
        return given

    def _run_stage(self, targets: list[Target], blocks: list[Row]) -> dict[Target, Given]:
        """Run the tasks of a stage, a few at a time and in any order."""
        world, results = self._world, {}
        waiting = list(targets)
        world.random.shuffle(waiting)

        def core() -> None:
            while waiting:
                target = waiting.pop()
                # Blocks arrive in a different order on every attempt.
                mine = [row for row in blocks if row[1:3] == target]
                results[target] = self._run_task(*target, mine)

        for outcome in self._driver.gather([core] * (1 + world.random.randrange(3))):
            if isinstance(outcome, Exception):
                raise outcome
        return dict(sorted(results.items()))

    def _run_task(self, job: int, part: int, blocks: list[Row]) -> Given:
        world, faults = self._world, self._faults
        for number in range(_ATTEMPTS):
            if number and faults.flaky and job in self._program.stages[1]:
                # Its shuffle files went with an executor: the maps have run again.
                blocks = [row for row in self._sources()[0] if row[1:3] == (job, part)]
            together = 2 if world.maybe(faults.speculate) else 1
            outcomes = self._driver.gather(
                [partial(self._attempt_task, job, part, list(blocks)) for _ in range(together)]
            )
            done = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
            if done:
                return done[0]
            for outcome in outcomes:
                if isinstance(outcome, NotDeterministicError | RecutError | StateLostError):
                    raise outcome
        raise TaskFailedError(f"partition {part} of job {job} failed {_ATTEMPTS} times")

    def _attempt_task(self, job: int, part: int, blocks: list[Row]) -> Given:
        """One attempt, in a process of its own on some executor; it may be killed at any time."""
        world, number = self._world, self._world.serial()
        hosts = self._body.hosts()
        name = f"task-{number}@{world.random.choice(hosts)}"
        net = world.process(name)
        found: list[Any] = []
        world.random.shuffle(blocks)
        if world.maybe(self._faults.kill):
            world.at(world.random.random() * 0.02, lambda: world.crash(name))

        def work() -> None:
            try:
                found.append(self._feed(net, number, job, part, blocks))
            except MillstreamError as problem:
                found.append(problem)

        net.spawn(work, "task")
        nap = _SHORTEST_NAP
        while not found and world.alive(name):
            self._driver.sleep(nap)
            nap = min(nap * 1.5, _LONGEST_NAP)
        world.crash(name)
        if not found:
            raise TaskFailedError(f"attempt {number} of partition {part} was killed")
        if isinstance(found[0], MillstreamError):
            raise found[0]
        outputs: Given = found[0]
        return outputs

    def _feed(self, net: SimNet, attempt: int, job: int, part: int, blocks: list[Row]) -> Given:
        record = self._record
        if not self._world.maybe(0.5):  # else a stale closure: the ring as it was at admission
            record = fetch_record(net, self._coordinator, *record.at, known=record)
        rows = pa.Table.from_pylist(
            [dict(zip(BLOCK_SCHEMA.names, block, strict=True)) for block in blocks],
            schema=BLOCK_SCHEMA,
        )
        feeder = Feeder(net, self._coordinator, record, attempt)
        return tuple(feeder.feed(job, record.slots_of(part), rows, self._program.is_read(job)))


def _gathered(tasks: list[MapTask]) -> tuple[list[Row], Outputs]:
    """The blocks of tasks, and what sinks see of them."""
    blocks: list[Row] = []
    shown: Outputs = {}
    for task in tasks:
        task.finish()
        blocks.extend(task.rows)
        for sink, found in task.shown.items():
            shown.setdefault(sink, []).extend(found)
    return blocks, shown


def _rows(batches: Given) -> list[Any]:
    return [spelled(record) for batch in batches for record in decode_records(batch)]

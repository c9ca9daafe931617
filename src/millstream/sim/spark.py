"""Spark as the adversary: what it may do to the body of an epoch, it does.

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
from millstream.coordinator.feeder import Feeder, fetch_record
from millstream.coordinator.record import EpochRecord
from millstream.coordinator.roster import StateLost
from millstream.errors import MillstreamError
from millstream.node.messages import NotDeterministic
from millstream.ring.ring import partition_slots
from millstream.sim.network import SimNet, World
from millstream.sim.sinks import SINK, Outputs, Sink
from millstream.sim.workload import JOBS, Pair
from millstream.state.blocks import to_bytes
from millstream.state.records import decode_records
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.work.chunk import Chunk
from millstream.work.keying import keyed
from millstream.work.packing import cut, packer_for

_ATTEMPTS = 12
Row = tuple[Any, ...]
Rows = tuple[Row, ...]


class TaskFailed(MillstreamError):
    """Spark gave a task up."""


class Indeterminate(MillstreamError):
    """Spark found that a stage gave other blocks when it ran again, and gave the job up."""


@dataclass(frozen=True, kw_only=True)
class Malice:
    """How likely Spark does what hurts."""

    kill: float = 0.1
    speculate: float = 0.1
    rerun: float = 0.1
    twice: float = 0.1
    partly: float = 0.1
    flaky: float = 0.0


@dataclass(frozen=True)
class Shape:
    """How an epoch is cut."""

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
        malice: Malice,
        inputs: list[list[Pair]],
        sink: Sink,
    ) -> None:
        self.world = world
        self.driver = driver
        self.hosts = hosts
        self.shape = shape
        self.malice = malice
        self.inputs = inputs
        self._sink = sink
        self._shown = False

    @contextmanager
    def attempt(self, record: EpochRecord) -> Iterator[SparkAttempt]:
        self._shown = False
        yield SparkAttempt(self, record)

    def stage(self, record: EpochRecord, outputs: Outputs) -> None:
        """Keep what a try gave out of sight."""
        self._sink.stage(record.epoch, record.attempt, outputs)
        self._shown = True

    def discard(self, record: EpochRecord) -> None:
        self._sink.discard(record.epoch, record.attempt)

    def worth_another_try(self, problem: Exception) -> bool:
        return isinstance(problem, Indeterminate)

    def staged(self, record: EpochRecord) -> Staged:
        return Staged(record.epoch, record.attempt, (SINK,) if self._shown else ())

    def publish(self, staged: Staged) -> None:
        if staged.sinks:
            self._sink.publish(staged.epoch, staged.attempt)


class SparkAttempt:
    """One try of the body: two stages of tasks."""

    def __init__(self, body: SparkBody, record: EpochRecord) -> None:
        self._body = body
        self._record = record
        self._world = body.world
        self._driver = body.driver
        self._coordinator = body.driver.process.name
        self._malice = body.malice
        self._shape = body.shape

    def stage(self) -> None:
        world, malice = self._world, self._malice
        parts = list(range(self._shape.partitions))
        if world.maybe(malice.partly):
            # A sink that looks at a part, and shows nothing of it.
            self._evaluate(sorted(world.random.sample(parts, world.random.randrange(len(parts)))))
            return
        if world.maybe(malice.twice):
            self._evaluate(parts)
        outputs = self._evaluate(parts)
        shown = {job: sorted(found) for job, found in outputs.items()}
        self._body.stage(self._record, shown)

    def evaluate(self) -> None:
        self._evaluate(list(range(self._shape.partitions)))

    def call_back(self) -> None:
        return

    def _evaluate(self, last: list[int]) -> dict[int, list[Pair]]:
        """Run the stages; of the last one, only some partitions."""
        first = self._run_stage(1, list(range(self._shape.partitions)), self._source_blocks())
        if self._world.maybe(self._malice.rerun):
            # An executor died with its shuffle files: some tasks of the stage run again.
            lost = [part for part in first if self._world.maybe(0.5)]
            again = self._run_stage(1, lost, self._source_blocks())
            for part, outputs in again.items():
                assert sorted(outputs) == sorted(first[part]), f"partition {part} differs"
                if outputs != first[part]:
                    raise Indeterminate(f"a re-run of partition {part} gave another order")
        blocks = [
            row
            for part, outputs in first.items()
            for row in self._blocks(2, 1, part, list(outputs))
        ]
        second = self._run_stage(2, last, blocks)
        return {
            1: [pair for outputs in first.values() for pair in outputs],
            2: [pair for outputs in second.values() for pair in outputs],
        }

    def _source_blocks(self) -> list[Row]:
        rows: list[Row] = []
        for task, records in enumerate(self._body.inputs):
            given = list(records)
            if given and self._world.maybe(self._malice.flaky):
                given[-1] = (given[-1][0], self._world.random.randrange(100, 200))
            rows.extend(self._blocks(1, 0, task, given))
        return rows

    def _blocks(self, job: int, stage: int, task: int, records: list[Pair]) -> Iterator[Row]:
        """What a map task gives to the shuffle: as in ``millstream.spark.stage``."""
        packer = packer_for(JOBS[job], self._shape.slots)
        if records:
            for values in keyed(JOBS[job], Chunk(records=records)):
                packer.add(values)
        packed = packer.flush()
        if packed is not None:
            shares = cut(packed, self._shape.slots, self._shape.partitions)
            for sequence, (part, rows) in enumerate(shares):
                yield part, job, part, stage, task, sequence, len(records), to_bytes(rows)

    def _run_stage(
        self, job: int, parts: list[int], blocks: list[Row]
    ) -> dict[int, tuple[Pair, ...]]:
        """Run the tasks of a stage, a few at a time and in any order."""
        world, results = self._world, {}
        waiting = list(parts)
        world.random.shuffle(waiting)

        def core() -> None:
            while waiting:
                part = waiting.pop()
                # Blocks arrive in a different order on every attempt.
                mine = [row for row in blocks if row[2] == part]
                results[part] = self._run_task(job, part, mine)

        for outcome in self._driver.gather([core] * (1 + world.random.randrange(3))):
            if isinstance(outcome, Exception):
                raise outcome
        return dict(sorted(results.items()))

    def _run_task(self, job: int, part: int, blocks: list[Row]) -> tuple[Pair, ...]:
        world, malice = self._world, self._malice
        for _ in range(_ATTEMPTS):
            together = 2 if world.maybe(malice.speculate) else 1
            outcomes = self._driver.gather(
                [partial(self._attempt_task, job, part, list(blocks)) for _ in range(together)]
            )
            done = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
            if done:
                return done[0]
            for outcome in outcomes:
                if isinstance(outcome, NotDeterministic | StateLost):
                    raise outcome
        raise TaskFailed(f"partition {part} of job {job} failed {_ATTEMPTS} times")

    def _attempt_task(self, job: int, part: int, blocks: list[Row]) -> tuple[Pair, ...]:
        """One attempt, in a process of its own on some executor; it may be killed at any time."""
        world, number = self._world, self._world.serial()
        hosts = self._body.hosts()
        name = f"task-{number}@{world.random.choice(hosts)}"
        net = world.process(name)
        found: list[Any] = []
        world.random.shuffle(blocks)
        if world.maybe(self._malice.kill):
            world.at(world.random.random() * 0.02, lambda: world.crash(name))

        def work() -> None:
            try:
                found.append(self._feed(net, number, job, part, blocks))
            except MillstreamError as problem:
                found.append(problem)

        net.spawn(work, "task")
        while not found and world.alive(name):
            self._driver.sleep(0.005)
        world.crash(name)
        if not found:
            raise TaskFailed(f"attempt {number} of partition {part} was killed")
        if isinstance(found[0], MillstreamError):
            raise found[0]
        outputs: tuple[Pair, ...] = found[0]
        return outputs

    def _feed(
        self, net: SimNet, attempt: int, job: int, part: int, blocks: list[Row]
    ) -> tuple[Pair, ...]:
        record = self._record
        if not self._world.maybe(0.5):  # else a stale closure: the ring as it was at admission
            record = fetch_record(net, self._coordinator, *record.at)
        rows = pa.Table.from_pylist(
            [dict(zip(BLOCK_SCHEMA.names, block, strict=True)) for block in blocks],
            schema=BLOCK_SCHEMA,
        )
        slots = partition_slots(self._shape.slots, self._shape.partitions)[part]
        feeder = Feeder(net, self._coordinator, record, attempt)
        outputs = [
            pair for batch in feeder.feed(job, slots, rows, True) for pair in decode_records(batch)
        ]
        return tuple((key, tuple(value)) for key, value in outputs)

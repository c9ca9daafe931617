"""Simulated clusters on which nothing goes wrong but what a test makes go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.epochs import EpochResult, run_epoch
from millstream.coordinator.state_reader import StateReader
from millstream.node.machine import Durability
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.sim.cluster import DRIVER, Cluster, Size
from millstream.sim.sink_models import MemorySink
from millstream.sim.spark import Shape, SparkAttempt, SparkBody, SparkFaults
from millstream.sim.workload import Pair, Reference, records
from millstream.wire.epoch_record import EpochRecord

T = TypeVar("T")
N0, N1, N2, N3 = (NodeId(f"node-{number}") for number in range(4))
SLOTS = 12
KIND = SparkFaults(kill=0, speculate=0, rerun=0, twice=0, partly=0)


class Run:
    """A cluster and the plain answer; ``at`` holds what a test does at points of an epoch."""

    def __init__(
        self,
        world: World,
        nodes: int = 3,
        replicas: int = 1,
        durability: Durability = "epoch",
        executors: int | None = None,
    ) -> None:
        self.world = world
        size = Size(
            nodes=nodes,
            executors=executors or nodes,
            slots=SLOTS,
            replicas=replicas,
            durability=durability,
        )
        self.cluster = Cluster(world, size, world.process(DRIVER))
        self.coordinator = self.cluster.coordinator
        self.reference = Reference()
        self.sink = MemorySink()
        self.at: dict[str, Callable[[], None]] = {}
        self.events: list[str] = []
        self.input = random.Random(7)

    def main(self, main: Callable[[], T], until: float = 500.0) -> T:
        """Form the ring, and run a function in the driver."""

        def begun() -> T:
            self.cluster.begin(partitions=3)
            return main()

        return self.world.run(begun, DRIVER, self.world.now + until)

    def more(self, main: Callable[[], T], until: float = 500.0) -> T:
        """Run another function in the driver, when the ring is there."""
        return self.world.run(main, DRIVER, self.world.now + until)

    def rest(self, seconds: float) -> None:
        self.cluster.driver.sleep(seconds)

    def epoch(self) -> EpochResult:
        """Run the next epoch; to be called within the driver."""
        given = records(self.input, 2)
        self.reference.add(given)
        return run_epoch(self.coordinator, self.next_epoch, 0, self.body(given))

    @property
    def next_epoch(self) -> int:
        return self.coordinator.ledger.committed.epoch + 1

    def body(self, given: list[list[Pair]]) -> Body:
        body = SparkBody(
            self.world,
            self.cluster.driver,
            self.cluster.hosts,
            Shape(SLOTS, 3, 2),
            KIND,
            given,
            self.sink,
        )
        return Body(self, body)

    def reached(self, point: str) -> None:
        """Note a point of an epoch, and do once what the test wants done there."""
        self.events.append(point)
        self.at.pop(point, lambda: None)()

    def states(self) -> dict[int, dict[str, Any]]:
        """What users read."""
        return {job: dict(StateReader(self.coordinator).items(job)) for job in (1, 2)}

    def expected(self) -> dict[int, dict[str, Any]]:
        return self.reference.after[-1]

    def owned_by(self, node: NodeId) -> list[int]:
        placement = self.coordinator.roster.placement
        return [slot for slot in range(SLOTS) if placement.owner(slot) == node]


class Body:
    """An epoch's body that reports its points to the test."""

    def __init__(self, run: Run, inner: SparkBody) -> None:
        self._run, self._inner = run, inner

    @contextmanager
    def attempt(self, record: EpochRecord) -> Iterator[Attempt]:
        with self._inner.attempt(record) as inner:
            yield Attempt(self._run, inner)

    def discard(self, record: EpochRecord) -> None:
        self._run.reached("discard")
        self._inner.discard(record)

    def is_retryable(self, problem: Exception) -> bool:
        return self._inner.is_retryable(problem)

    def staged(self, record: EpochRecord) -> Staged:
        return self._inner.staged(record)

    def publish(self, staged: Staged) -> None:
        self._run.reached("publish")
        self._inner.publish(staged)


class Attempt:
    def __init__(self, run: Run, inner: SparkAttempt) -> None:
        self._run, self._inner = run, inner

    def stage(self) -> None:
        self._run.reached("stage")
        self._inner.stage()
        self._run.reached("staged")

    def evaluate(self) -> None:
        self._run.reached("evaluate")
        self._inner.evaluate()

    def call_back(self) -> None:
        self._run.reached("call back")
        self._inner.call_back()

"""The ticks of the pool, with a real coordinator in a simulated world and a stand-in for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.coordinator.launch_tickets import VALID
from millstream.elastic.pool_options import ExecutorSupply, PoolOptions
from millstream.elastic.pool_plan import Executor
from millstream.sim import World
from millstream.spark.node_pool import NodePool
from millstream.wire.membership import ClaimLaunch, Join
from tests.coordinator.clusters import N2, Run


@dataclass
class Spark:
    """Executors and launch jobs; a job takes as long as a test wants."""

    cores: dict[str, int]
    calls: list[tuple[str, Any]] = field(default_factory=list)
    is_busy: bool = False
    problem: Exception | None = None

    def living(self) -> list[Executor]:
        return [Executor(name=name, host=name, cores=n) for name, n in self.cores.items()]

    def request(self, total: int) -> None:
        self.calls.append(("request", total))

    def release(self, names: Sequence[str]) -> None:
        self.calls.append(("release", tuple(names)))

    def begin(self, tasks: int) -> None:
        assert not self.is_busy
        self.calls.append(("begin", tasks))
        self.is_busy = True

    def failure(self) -> Exception | None:
        problem, self.problem = self.problem, None
        return problem

    def close(self) -> None:
        self.calls.append(("close", None))


@pytest.fixture
def world() -> Iterator[World]:
    with World(11) as running:
        yield running


@pytest.fixture
def run(world: World) -> Run:
    return Run(world)


def pool_of(run: Run, **options: Any) -> tuple[NodePool, Spark]:
    spark = Spark({f"executor-{number}": 2 for number in range(3)})
    chosen = PoolOptions(supply=ExecutorSupply.ELASTIC, **options)
    return NodePool(run.coordinator, spark, spark, chosen), spark


def claim(run: Run, executor: str) -> str | None:
    return run.coordinator.answer(ClaimLaunch(executor, "host"))


def join(run: Run, ticket: str) -> None:
    """A node that was started with a ticket joins."""
    member = run.cluster._start_node()
    request = Join(member.node, member.address, 77, member.domain, ticket)
    assignment = run.coordinator.answer(request)
    run.cluster.services[member.node].answer(assignment)


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.coordinator.events.all()]


def test_a_node_that_died_is_started_again_by_one_job_with_more_tasks_than_cores(run: Run) -> None:
    def main() -> None:
        run.epoch()
        pool, spark = pool_of(run)
        pool.tick()
        assert spark.calls == []
        run.world.crash(N2)
        run.coordinator.investigate(N2)

        pool.tick()
        pool.tick()  # the job is under way
        assert spark.calls == [("begin", 12)]
        assert claim(run, "executor-0") is None
        ticket = claim(run, "executor-2")
        assert ticket is not None
        spark.is_busy = False
        pool.tick()
        join(run, ticket)
        pool.tick()
        assert spark.calls == [("begin", 12)] and claim(run, "executor-2") is None
        assert "replaced" in kinds(run)
        while run.coordinator.roster.pending or len(run.coordinator.roster.active) < 3:
            run.epoch()
            run.rest(0.5)
        assert run.states() == run.expected()

    run.main(main)


def test_jobs_are_repeated_and_after_some_any_executor_may_claim(run: Run) -> None:
    def main() -> None:
        pool, spark = pool_of(run, replace_after=None)
        spark.cores["executor-9"] = 2
        run.coordinator.scaling.scale_to(4)
        for _ in range(3):
            pool.tick()
            assert claim(run, "executor-0") is None  # executor-9 has no node at all
            spark.is_busy = False

        pool.tick()
        assert spark.calls == [("begin", 16)] * 4
        assert claim(run, "executor-0") is not None
        assert claim(run, "executor-9") is None  # one is enough

    run.main(main)


def test_a_node_that_never_joins_is_reported_and_started_again(run: Run) -> None:
    def main() -> None:
        pool, spark = pool_of(run, standby=1)
        pool.tick()
        assert claim(run, "executor-0") is not None
        spark.is_busy = False
        pool.tick()
        assert len(spark.calls) == 1
        run.rest(VALID)

        pool.tick()
        assert kinds(run) == ["not-started"]
        assert len(spark.calls) == 2

    run.main(main)


def test_a_job_that_fails_is_reported_and_repeated(run: Run) -> None:
    def main() -> None:
        pool, spark = pool_of(run, standby=1)
        pool.tick()
        spark.is_busy, spark.problem = False, RuntimeError("no space left")
        pool.tick()

        [event] = run.coordinator.events.all()
        assert (event.kind, event.facts["unclaimed"]) == ("launch-failed", 1)
        assert "no space left" in event.text
        assert len(spark.calls) == 2

    run.main(main)


def test_a_node_too_many_is_drained(run: Run) -> None:
    def main() -> None:
        run.epoch()
        pool, _ = pool_of(run, standby=1)
        pool.tick()
        for _ in range(2):
            run.coordinator.launches.expect("ticket", "executor-0", "host")
            join(run, "ticket")
        assert len(run.coordinator.roster.standby) == 2

        pool.tick()
        run.epoch()
        assert len(run.coordinator.roster.standby) == 1 and len(run.coordinator.roster.nodes) == 4

    run.main(main)


def test_executors_are_released_before_their_number_is_requested(run: Run) -> None:
    def main() -> None:
        run.epoch()
        pool, spark = pool_of(run)
        pool.tick()
        run.coordinator.scaling.scale_to(2)
        while len(run.coordinator.roster.nodes) > 2:
            run.epoch()
        pool.tick()
        run.rest(10.0)
        pool.tick()

        [(first, names), (second, total)] = spark.calls
        assert (first, second, total) == ("release", "request", 2)
        assert "executors-released" in kinds(run) and len(names) == 1

    run.main(main)


def test_a_closed_pool_starts_nothing(run: Run) -> None:
    def main() -> None:
        pool, spark = pool_of(run, standby=1)
        pool.tick()
        pool.close()

        assert spark.calls == [("begin", 12), ("close", None)]
        assert claim(run, "executor-0") is None

    run.main(main)

"""The scenario of a seed whose run has a store."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from millstream.coordinator.interval_commits import Triggers
from millstream.node.durability.base_writer import BaseOptions
from millstream.node.durability.write_queue import WriteQueueOptions
from millstream.sim.cluster import Size
from millstream.sim.driver import DriverOptions
from millstream.sim.links import Faults
from millstream.sim.scratch_disk import ScratchDisk
from millstream.sim.slowness import Slowness
from millstream.sim.spark import Shape, SparkFaults
from millstream.sim.workloads import CONSISTENT, drawn


@dataclass(frozen=True, kw_only=True)
class DurableScenario:
    """A workflow on a checkpoint, and its faults."""

    seed: int
    size: Size
    options: DriverOptions
    faults: Faults
    records: int
    node_faults: int
    rate: float
    deaths: int
    death_rate: float
    lose: float
    mixed: bool
    may_lose_state: bool
    restores: int = 0
    fulls: int = 0
    full_rate: float = 0.01
    workload: str = "plain"
    slowness: Slowness = field(default_factory=Slowness)
    reads: float | None = None  # seconds between reads of state, about

    @classmethod
    def of(cls, seed: int) -> DurableScenario:
        """Draw a scenario."""
        rng = random.Random(f"durable scenario {seed}")
        later = random.Random(f"durable scenario {seed}, continued")
        flaky = later.random() < 0.1
        slots, nodes = rng.choice((4, 6, 8)), rng.choice((1, 2, 2, 3))
        size = Size(
            nodes=nodes,
            executors=rng.randint(1, nodes),
            slots=slots,
            replicas=rng.choice((0, 1, 1, 2)),
            durability=rng.choice(("epoch", "interval")),
            log_limit=rng.choice((500, 1_000_000)),
            disk=ScratchDisk.of(seed),
        )
        options = DriverOptions(
            shape=Shape(slots, rng.randint(1, 3), rng.randint(1, 2)),
            spark_faults=SparkFaults(
                kill=rng.choice((0.0, 0.1)),
                speculate=rng.choice((0.0, 0.1)),
                rerun=rng.choice((0.0, 0.1)),
                twice=rng.choice((0.0, 0.1)),
                partly=rng.choice((0.0, 0.1)),
                late=later.choice((0.0, 0.1, 0.3)),
                flaky=0.2 if flaky else 0.0,
            ),
            retain=rng.choice((1, 1, 3)),
            garbage_every=rng.choice((1, 1, 2)),
            recovery=rng.choice(("eager", "lazy")),
            triggers=Triggers(
                seconds=rng.choice((0.0, 0.5, 3.0)),
                changes=rng.choice((None, 5)),
                epochs=rng.choice((2, 50)),
                when_full=rng.choice(("block", "replace")),
            ),
            queue=WriteQueueOptions(
                entries=rng.choice((2, 256)), when_full=rng.choice(("block", "replace"))
            ),
            bases=BaseOptions(
                least=rng.choice((100, 2**20)),
                epochs=rng.choice((1, 2, 64)),
                record=rng.choice((100, 2**20)),
            ),
            changes=rng.choice((0.0, 0.4)),
            overlap=random.Random(f"durable scenario {seed}, overlap").random() < 0.7,
        )
        bad = rng.choice((0.0, 0.0, 0.0, 0.01))
        return cls(
            seed=seed,
            size=size,
            options=options,
            faults=Faults(
                lose_request=bad,
                lose_answer=bad,
                duplicate=bad,
                break_feed=bad * 2,
                slow=rng.choice((0.0, 0.0, 0.01)),
                stall=rng.choice((0.0, 0.0, 0.002)),
            ),
            records=rng.randint(15, 45),
            node_faults=rng.randint(0, 3),
            rate=rng.choice((0.002, 0.01)),
            deaths=rng.randint(0, 4),
            death_rate=rng.choice((0.01, 0.03, 0.1)),
            lose=rng.choice((0.0, 0.0, 0.002)),
            mixed=rng.random() < 0.2,
            may_lose_state=rng.random() < 0.3,
            restores=later.choice((0, 0, 1, 2)),
            fulls=later.choice((0, 0, 1, 3)),
            full_rate=later.choice((0.01, 0.05)),
            workload=later.choice(CONSISTENT) if flaky else drawn(seed),
            slowness=Slowness.of(seed),
            reads=later.choice((None, None, None, 0.3, 2.0)),
        )

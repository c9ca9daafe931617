"""A simulated cluster: executors with nodes, and the driver with its coordinator.

The coordinator, the nodes and their state machines are the classes that run in production.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.coordinator.record import JobTypes
from millstream.coordinator.service import Coordinator, Member
from millstream.node.machine import Durability, NodeMachine
from millstream.node.messages import Receipt
from millstream.node.server import digest_blocks
from millstream.node.service import NodeOptions, NodeService
from millstream.node.units import Work
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.sim.network import SimNet, World
from millstream.sim.workload import JOBS
from millstream.work.units import Reduced

DRIVER = "driver"


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a cluster is made of."""

    nodes: int
    executors: int
    slots: int
    replicas: int
    durability: Durability
    log_limit: int = 4_000


@dataclass
class Cluster:
    """Processes of one run: a driver, executors by name, and the machines of their nodes."""

    world: World
    size: Size
    coordinator: Coordinator = field(init=False)
    machines: dict[NodeId, NodeMachine] = field(default_factory=dict)
    executors: dict[str, list[NodeId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.driver = self.world.process(DRIVER)
        self.coordinator = Coordinator(self.driver)
        self.world.serve(DRIVER, DRIVER, self.coordinator.act)
        members = [self._start_node(number) for number in range(self.size.nodes)]
        self._members = members

    def _start_node(self, number: int) -> Member:
        executor = f"executor-{number % self.size.executors}"
        node = NodeId(f"node-{number}")
        net = self.world.process(node)
        machine = NodeMachine(
            node,
            JOBS,
            self.size.slots,
            digest=digest_blocks,
            clock=lambda: self.world.now,
            durability=self.size.durability,
        )
        service = NodeService(
            machine,
            net,
            DRIVER,
            NodeOptions(log_limit=self.size.log_limit),
            memory=lambda: 0,
            stop=lambda: self.world.at(0.05, lambda: self.world.crash(node)),
        )
        self._slow_down(machine, net)
        self.world.serve(node, node, service.act, service.exchange)
        service.start()
        self.machines[node] = machine
        self.executors.setdefault(executor, []).append(node)
        zone = f"zone-{number % 2}"
        return Member(node, node, Domain(zone, executor, executor))

    def _slow_down(self, machine: NodeMachine, net: SimNet) -> None:
        """Let a reduction take its time, so that other things happen meanwhile."""
        reduce = machine.reduce

        def slowly(work: Work) -> tuple[Reduced[Any], Receipt]:
            net.sleep(self.world.random.choice((0.0, 0.001, 0.05)))
            return reduce(work)

        machine.reduce = slowly  # type: ignore[method-assign]

    def begin(self) -> None:
        """Form the ring; to be called within the driver."""
        self.coordinator.begin(
            self._members,
            {at: job.name for at, job in JOBS.items()},
            {at: JobTypes() for at in JOBS},
            self.size.slots,
            self.size.replicas,
            logs=self.size.durability == "interval",
            on_lost=lambda: None,
        )

    def hosts(self) -> list[str]:
        """Where tasks run."""
        return list(self.executors)

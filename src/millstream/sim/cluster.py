"""A simulated cluster: executors with nodes, and the driver with its coordinator.

The coordinator, the nodes and their state machines are the classes that run in production.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from millstream.coordinator.interval_commits import Publish, Triggers
from millstream.coordinator.journal import Journal
from millstream.coordinator.service import Coordinator, Member
from millstream.node.driver_watch import await_driver_lost
from millstream.node.durability.base_writer import BaseOptions
from millstream.node.durability.write_queue import WriteQueue, WriteQueueOptions
from millstream.node.machine import Durability, NodeMachine
from millstream.node.server import digest_blocks
from millstream.node.service import NodeOptions, NodeService
from millstream.ring.ring import NodeId, RingError
from millstream.ring.zones import Domain
from millstream.sim.network import SimNet, World
from millstream.sim.promises import SimLock
from millstream.sim.scratch_disk import ScratchDisk
from millstream.sim.slowness import Slowness
from millstream.sim.store import SimStore
from millstream.sim.workload import PLAIN, Workload
from millstream.wire.epoch_record import JobTypes

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
    replicate_every: float = 2.0
    disk: ScratchDisk | None = None


@dataclass(frozen=True, kw_only=True)
class Durable:
    """What a cluster needs to write its state into a store."""

    store: SimStore
    journal: Journal
    ids: Mapping[int, str]
    triggers: Triggers
    queue: WriteQueueOptions
    bases: BaseOptions
    publish: Publish


@dataclass
class Cluster:
    """Processes of one start: a driver, executors by name, and the machines of their nodes."""

    world: World
    size: Size
    driver: SimNet
    prefix: str = "node"
    durable: Durable | None = None
    workload: Workload = PLAIN
    slowness: Slowness = field(default_factory=Slowness)
    coordinator: Coordinator = field(init=False)
    machines: dict[NodeId, NodeMachine] = field(default_factory=dict)
    services: dict[NodeId, NodeService] = field(default_factory=dict)
    executors: dict[str, list[NodeId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.driver.process.name
        self.coordinator = Coordinator(self.driver)
        self.world.serve(self.name, self.name, self.coordinator.answer)
        members = [self._start_node(number) for number in range(self.size.nodes)]
        self._members = members

    def _start_node(self, number: int) -> Member:
        executor = f"executor-{number % self.size.executors}"
        node = NodeId(f"{self.prefix}-{number}")
        net, durable, disk = self.world.process(node), self.durable, self.size.disk
        machine = NodeMachine(
            node,
            self.workload.jobs,
            self.size.slots,
            digest=digest_blocks,
            clock=lambda: self.world.now,
            durability=self.size.durability,
            ids=durable.ids if durable else None,
            spilling=disk.spilling(self.world) if disk else None,
        )
        service = NodeService(
            machine,
            net,
            self.name,
            NodeOptions(
                replicate_every=self.size.replicate_every,
                log_limit=self.size.log_limit,
                bases=durable.bases if durable else BaseOptions(),
            ),
            memory=lambda: 0,
            stop=lambda: self.world.at(0.05, lambda: self.world.crash(node)),
            queue=WriteQueue(net, durable.store.view(net), durable.queue) if durable else None,
            spool=disk.spool(self.world) if disk else None,
        )
        self.slowness.slow_down(machine, net, self.world)
        for operator in machine.store.operators.values():
            # One key: as many steps as there can be, with others in between.
            operator.state.step = 1  # type: ignore[misc]
        self.world.serve(node, node, service.answer, service.exchange)
        service.start()
        if durable:
            net.spawn(partial(self._watch_driver, net), "driver")
        self.machines[node] = machine
        self.services[node] = service
        self.executors.setdefault(executor, []).append(node)
        zone = f"zone-{number % 2}"
        return Member(node, node, Domain(zone, executor, executor))

    def _watch_driver(self, net: SimNet) -> None:
        """End a node that was fenced, or whose driver has ended."""
        node = NodeId(net.process.name)
        await_driver_lost(net, self.name, node)
        self.world.at(0.0, lambda: self.world.crash(node))

    def begin(self, partitions: int = 1) -> None:
        """Form the ring; call it within the driver. ``partitions`` is the least of a shuffle."""
        durable = self.durable
        self.coordinator.begin(
            self._members,
            {at: job.name for at, job in self.workload.jobs.items()},
            {at: JobTypes(job.key_type, job.output) for at, job in self.workload.jobs.items()},
            self.size.slots,
            self.size.replicas,
            logs=self.size.durability == "interval",
            on_lost=lambda: None,
            journal=durable.journal if durable else None,
            triggers=durable.triggers if durable else None,
            publish=durable.publish if durable else lambda _: None,
            timings=self.workload.timings,
            downstream=self.workload.plan.downstream,
            partitions=partitions,
        )

    def move(self) -> list[int]:
        """Move slots to one of their backups; return the slots."""
        roster, placement = self.coordinator.roster, self.coordinator.roster.placement
        slot = self.world.random.randrange(self.size.slots)
        copies = [node for node in placement.copies(slot) if node in roster.domains]
        if not copies:
            return []
        to = self.world.random.choice(copies)
        slots = [s for s in np.flatnonzero(placement.fed(to)).tolist() if self.world.maybe(0.7)]
        try:
            self.coordinator.move(slots, to)
        except RingError:  # it was declared dead meanwhile
            return []
        return slots

    def hosts(self) -> list[str]:
        """The executors, on which tasks run."""
        return list(self.executors)

    def is_at_work(self, node: NodeId) -> bool:
        """Whether a task of a node reduces over its state, or merges an epoch into it."""
        return self.locks(node)[0].is_held

    def locks(self, node: NodeId) -> tuple[SimLock, SimLock]:
        """The locks of a node: state and metadata."""
        locks = self.services[node]._locks
        assert isinstance(locks.state, SimLock) and isinstance(locks.metadata, SimLock)
        return locks.state, locks.metadata

    def living(self) -> list[NodeId]:
        """The nodes whose process has not ended."""
        return [node for node in self.machines if self.world.alive(node)]

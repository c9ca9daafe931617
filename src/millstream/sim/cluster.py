"""A simulated cluster: executors with nodes, and the driver with its coordinator.

The coordinator, the nodes and their state machines are the classes that run in production.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from millstream.coordinator.interval_commits import Publish, Triggers
from millstream.coordinator.journal import Journal
from millstream.coordinator.scaling import Member
from millstream.coordinator.service import Coordinator
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
_MOST_NODES = 6


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
    on_start: Callable[[NodeMachine], None] = lambda _: None
    """Called with the machine of every node that joins later."""

    def __post_init__(self) -> None:
        self.name = self.driver.process.name
        self.coordinator = Coordinator(self.driver)
        self.world.serve(self.name, self.name, self.coordinator.answer)
        self._members = [self._start_node() for _ in range(self.size.nodes)]

    def _start_node(self) -> Member:
        number = len(self.machines)
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
        node, coordinator = NodeId(net.process.name), self.coordinator
        # A node sends heartbeats when it has joined; before, it would be rejected.
        while (
            coordinator.has_begun
            and node not in (*coordinator.roster.nodes, *coordinator.roster.dead_nodes)
            and self.world.alive(self.name)
        ):
            net.sleep(0.1)
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

    def change(self) -> None:
        """Change the members, or the owners of slots; call it within the driver."""
        random, scaling, roster = (
            self.world.random,
            self.coordinator.scaling,
            self.coordinator.roster,
        )
        active = roster.active
        kind = random.choice(("move", "move", "rebalance", "scale", "scale", "drain", "join"))
        self.world.note(f"{kind} of {', '.join(active)}")
        if kind == "rebalance":
            scaling.weights = np.array([random.random() for _ in range(self.size.slots)])
            scaling.rebalance()
        elif kind == "scale":
            self._scale_to(random.randint(1, min(_MOST_NODES, self.size.slots)))
        elif kind == "join":
            self.join()
        elif kind == "drain" and len(active) > 1:
            scaling.drain([random.choice(active)])
        elif kind == "move" and active:
            slots = [slot for slot in range(self.size.slots) if self.world.maybe(0.4)]
            with contextlib.suppress(RingError):  # it was declared dead meanwhile
                scaling.move(slots, random.choice(active))

    def _scale_to(self, nodes: int) -> None:
        self.coordinator.scaling.scale_to(nodes)
        roster = self.coordinator.roster
        for _ in range(nodes - len(roster.active) - len(roster.standby)):
            self.join()

    def join(self) -> None:
        """Start a node that joins the run."""
        member = self._start_node()
        self.on_start(self.machines[member.node])
        self.coordinator.scaling.join(member)

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

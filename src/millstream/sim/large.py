"""A large run: the real coordinator, a simulated net, and stand-ins for nodes.

It is for the coordinator's own cost: epochs of a second, in which tasks ask for the epoch's record,
nodes send heartbeats, and the coordinator does all that it does in production. Nodes join and die
meanwhile.
"""

from __future__ import annotations

import cProfile
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.epochs import Attempt, run_epoch
from millstream.coordinator.scaling import Member
from millstream.coordinator.service import Coordinator
from millstream.node import driver_watch
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.sim.metering import Meter, MeteredNet
from millstream.sim.network import World
from millstream.sim.stand_ins import Fleet, StandIn
from millstream.wire.epoch_record import EpochRecord, FetchRecord, JobTypes, Routing
from millstream.wire.membership import Assign, FetchAssignment, Heartbeat, Join

DRIVER = "driver"
SECOND = 1_000_000
_PER_HOST = 8
_EPOCH_SECONDS = 1.0
_WORKERS_PER_NODE = 1  # Spark's Python workers, each of which fetches the record once
_HEARTBEATS = round(_EPOCH_SECONDS / driver_watch.EVERY)  # of a node, in an epoch
_STARTING = 2.0  # seconds, at most, that a node takes to start
_NAMES = "n{:031d}"  # as long as a real one


class LargeRun:
    """One run; all methods are called within the driver, by :meth:`World.run`.

    Garbage of all generations is collected after each epoch, and is not metered: it is that of a
    thousand stand-ins. What of it is the coordinator's own is metered in younger generations.
    """

    def __init__(
        self,
        world: World,
        nodes: int,
        slots: int,
        *,
        rack: int,
        replicas: int = 1,
        jobs: int = 1,
        profile: cProfile.Profile | None = None,
    ) -> None:
        """Nodes are in racks of ``rack``."""
        self.world = world
        self.meter = Meter(profile)
        self._net = MeteredNet(world, world.process(DRIVER), self.meter)
        self.coordinator = Coordinator(self._net)
        self.fleet = Fleet(slots, range(jobs), world.at, self._fetch)
        self._rack = rack
        self._replicas = replicas
        self._crashing: list[StandIn] = []
        self._routing: dict[NodeId, Routing] = {}  # of the newest record of a node's workers
        self._first = [self._start() for _ in range(nodes)]
        self.epoch = 0

    @property
    def calls(self) -> int:
        """How many calls the coordinator has made."""
        return self._net.calls

    @property
    def bytes_sent(self) -> int:
        """What the coordinator has sent with its calls."""
        return self._net.bytes_sent

    def _start(self) -> Member:
        number = len(self.fleet.nodes)
        node, rack = NodeId(_NAMES.format(number)), number // self._rack
        host = f"rack-{rack}-host-{number % self._rack // _PER_HOST}"
        started = self.fleet.start(node, Domain(f"rack-{rack}", host, host))
        self._net.peers[node] = started
        return Member(node, node, started.domain)

    def begin(self) -> None:
        """Form the ring."""
        jobs = {job: f"job {job}" for job in self.fleet.jobs}
        with self.meter.metered():
            self.coordinator.begin(
                self._first,
                jobs,
                {job: JobTypes() for job in jobs},
                self.fleet.slots,
                self._replicas,
                on_lost=lambda: None,
            )

    def run_epoch(self) -> None:
        """Run an epoch, from admission to seal."""
        with self.meter.metered():
            run_epoch(self.coordinator, self.epoch, self.epoch * SECOND, _Body(self))
        self.epoch += 1
        gc.collect()

    @property
    def is_whole(self) -> bool:
        """Whether every slot is where it shall be, and every copy in sync."""
        roster = self.coordinator.roster
        return not roster.pending and not roster.is_under_replicated

    @property
    def is_complete(self) -> bool:
        """Whether there are as many nodes as were asked for."""
        return len(self.coordinator.roster.active) >= self.coordinator.roster.target

    # -- changes -------------------------------------------------------------------------

    def grow(self, count: int) -> None:
        """Ask for so many nodes more, and start them."""
        target = self.coordinator.roster.target + count
        with self.meter.metered():
            self.coordinator.scaling.scale_to(target)
        self.start(count)

    def start(self, count: int) -> None:
        """Start nodes, as the pool does; each joins as soon as it can."""
        for _ in range(count):
            delay = self.world.random.random() * _STARTING
            self.world.at(delay, partial(self._join, self._start()))

    def _join(self, member: Member) -> None:
        where, ticket = member.domain, f"ticket of {member.node}"
        request = Join(member.node, member.address, member.pid, where, ticket)
        self.coordinator.launches.expect(ticket, where.executor, where.host)
        self._net.ask(self.coordinator.answer, request, self.fleet.nodes[member.node].assign)

    def lose_rack(self) -> int:
        """Let all nodes of the first rack end at once, in the middle of the next epoch."""
        self._crashing = list(self.fleet.nodes.values())[: self._rack]
        return len(self._crashing)

    # -- what tasks and nodes ask the coordinator ----------------------------------------

    def _fetch(self, node: NodeId, then: Callable[[Assign], None]) -> None:
        self._net.ask(self.coordinator.answer, FetchAssignment(node), then)

    def work(self, record: EpochRecord) -> None:
        """What happens while a try runs: tasks fetch its record and feed the owners of slots."""
        answer = self.coordinator.answer
        self.world.wait("for the tasks of the epoch", _EPOCH_SECONDS)
        for lost in self._crashing:
            lost.end()
        self._crashing = []
        while reports := list(self.fleet.unreachable(record.placement)):
            self._net.serve_all(answer, reports)
            self._net.serve(answer, FetchRecord(*record.at, record.routing))
            record = self.coordinator.ledger.record or record
        for node in self.coordinator.roster.nodes:
            for _ in range(_WORKERS_PER_NODE):
                self._net.serve(answer, FetchRecord(*record.at, self._routing.get(node)))
            for _ in range(_HEARTBEATS):
                self._net.serve(answer, Heartbeat(node))
            self._routing[node] = record.routing
        self.fleet.feed(record)


class _Body:
    """The body of an epoch."""

    def __init__(self, run: LargeRun) -> None:
        self._run = run

    @contextmanager
    def attempt(self, record: EpochRecord) -> Iterator[Attempt]:
        yield _Attempt(self._run, record)

    def discard(self, record: EpochRecord) -> None:
        return

    def is_retryable(self, problem: Exception) -> bool:
        return False

    def staged(self, record: EpochRecord) -> Staged:
        return Staged(record.epoch, record.attempt)

    def publish(self, staged: Staged) -> None:
        return


class _Attempt:
    """One try; what Spark's tasks do is not metered, what they ask for is."""

    def __init__(self, run: LargeRun, record: EpochRecord) -> None:
        self._run = run
        self._record = record

    def stage(self) -> None:
        with self._run.meter.suspended():
            self._run.work(self._record)

    def evaluate(self) -> None:
        self.stage()

    def call_back(self) -> None:
        return

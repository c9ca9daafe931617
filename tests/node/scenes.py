"""Nodes that call each other in a simulated world, with a stub of the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.node.durability.write_queue import WriteQueue
from millstream.node.machine import Durability, NodeMachine
from millstream.node.output_spool import OutputSpool
from millstream.node.server import digest_blocks
from millstream.node.service import NodeOptions, NodeService
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.sim import World
from millstream.state.blocks import slices, to_bytes
from millstream.state.records import decode_records
from millstream.stores.store import Store
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.commit import Commit, Seal
from millstream.wire.feed import Feed
from millstream.wire.membership import Assign, FetchAssignment, ReportSlow, ReportUnreachable
from millstream.wire.net import Delivery
from millstream.wire.persistence import FetchRestorePlan, RestorePlan
from millstream.wire.receipts import CollectReceipts, Receipts
from millstream.wire.request import Request
from millstream.work.feeder import end_of
from tests.node.machines import ALL, HISTORY, JOB, ME, OTHER, THIRD, commit_of, items_of, placed
from tests.work.running import SLOTS, blocks_of_pairs

A = TypeVar("A")
T = TypeVar("T")
BACKED_UP = placed([ME], other=ALL)
MEMORY = 12_345
ID = "history@1"


class Scene:
    """Three nodes, a driver, and a task that feeds; ``placement`` is what the driver assigns."""

    def __init__(
        self,
        world: World,
        placement: Placement = BACKED_UP,
        durability: Durability = "epoch",
        store: Store | None = None,
        spool: OutputSpool | None = None,
        **options: Any,
    ) -> None:
        self.world, self.placement, self.store = world, placement, store
        self.spool = spool
        self.incarnation = 1
        self.plan: RestorePlan | None = None
        self.durability, self.options = durability, NodeOptions(**options)
        self.committed = Commit(-1, 0)
        self.requests: list[Request[Any]] = []  # to the driver
        self.calls: list[tuple[NodeId, type[Request[Any]]]] = []
        self.stopped: list[NodeId] = []
        self.problem: MillstreamError | None = None
        self.driver, self.task = world.process("driver"), world.process("task")
        world.serve("driver", "driver", self.answer)
        self.machines: dict[NodeId, NodeMachine] = {}
        self.services = {node: self._start(node) for node in (ME, OTHER, THIRD)}
        for machine in self.machines.values():
            machine.assign(self.assignment())

    def _start(self, node: NodeId) -> NodeService:
        machine = NodeMachine(
            node,
            {JOB: HISTORY},
            SLOTS,
            digest_blocks,
            lambda: 0.0,
            self.durability,
            ids=None if self.store is None else {JOB: ID},
        )
        self.machines[node] = machine
        net = self.world.process(node)
        service = NodeService(
            machine,
            net,
            "driver",
            self.options,
            memory=lambda: MEMORY,
            stop=lambda: self.stopped.append(node),
            queue=None if self.store is None else WriteQueue(net, self.store),
            spool=self.spool,
        )

        def answer(request: Request[A]) -> A:
            self.calls.append((node, type(request)))
            return service.answer(request)

        self.world.serve(node, node, answer, service.exchange)
        return service

    def assignment(self) -> Assign:
        addresses = {node: str(node) for node in (ME, OTHER, THIRD)}
        return Assign(self.incarnation, self.placement, addresses, self.committed)

    def answer(self, request: Request[Any]) -> Any:
        self.requests.append(request)
        if self.problem is not None:
            raise self.problem
        if isinstance(request, FetchRestorePlan):
            return self.plan
        return self.assignment() if isinstance(request, FetchAssignment) else None

    def run(self, main: Callable[[], T], process: str = "task", seconds: float = 100.0) -> T:
        return self.world.run(main, process, self.world.now + seconds)

    def rest(self, seconds: float) -> None:
        self.run(lambda: self.task.sleep(seconds), seconds=seconds + 1)

    def call(self, node: NodeId, request: Request[A]) -> A:
        return self.run(lambda: self.task.call(node, request))

    def header(self, epoch: int, **options: Any) -> Feed:
        version, committed = self.placement.version, self.commit_of(epoch - 1)
        feed = Feed(self.incarnation, JOB, epoch, 0, 0, version, ALL, committed, epoch)
        return replace(feed, **options)

    def feed(self, epoch: int, pairs: list[Any], **options: Any) -> list[Any]:
        """Feed the owner of the first slot, and with logs the backups as well."""
        header = self.header(epoch, **options)
        rows = rows_of(pairs, header.slots)
        owner = self.placement.owner(header.slots.start)
        peers = self.placement.copies(header.slots.start) if self.durability == "interval" else ()
        copies = [Delivery(peer, replace(header, copy=True)) for peer in peers]
        outputs = self.run(
            lambda: self.task.feed(
                Delivery(owner, header), copies, rows, end_of(rows), lambda: False
            )
        )
        return [record for batch in outputs for record in decode_records(batch)]

    def commit_of(self, epoch: int) -> Commit:
        """The commit of all units of an epoch under way."""
        return commit_of(self.machines.values(), epoch)

    def commit(self, epoch: int, pairs: list[Any]) -> None:
        """Run an epoch and seal it on all nodes."""
        self.feed(epoch, pairs)
        self.rest(0.2)  # for the copies of logs
        self.committed = self.commit_of(epoch)
        for node in self.machines:
            if self.world.alive(node):
                self.call(node, Seal(self.committed))

    def receipts(self, node: NodeId, epoch: int) -> Receipts:
        return self.call(node, CollectReceipts(epoch, 0, -1))

    def held(self, node: NodeId) -> dict[Any, Any]:
        [snapshot] = self.machines[node].snapshots(ALL)
        scratch = NodeMachine(ME, {JOB: HISTORY}, SLOTS, digest_blocks, lambda: 0.0)
        scratch.assign(Assign(1, placed([OTHER], me=ALL), {}))
        scratch.install(replace(snapshot, through=0))
        scratch.assign(Assign(1, placed([ME], 1), {}))
        return {key: state["seen"] for key, state in items_of(scratch.store)}

    def unreachable(self) -> list[ReportUnreachable]:
        return [r for r in self.requests if isinstance(r, ReportUnreachable)]

    def slow(self) -> list[ReportSlow]:
        return [r for r in self.requests if isinstance(r, ReportSlow)]


def rows_of(pairs: list[Any], slots: range = ALL) -> pa.Table:
    rows = [
        (0, JOB, 0, 0, 0, sequence, len(pairs), to_bytes(part))
        for sequence, block in enumerate(blocks_of_pairs(HISTORY, pairs))
        for _, part in slices(block, [slots.start, slots.stop])
    ]
    columns = zip(*rows, strict=True) if rows else [[] for _ in BLOCK_SCHEMA]
    return pa.table([list(column) for column in columns], schema=BLOCK_SCHEMA)

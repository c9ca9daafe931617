"""A run without Spark: the coordinator in this process, real node processes, and units fed by hand.

For what concerns the nodes alone, and wants more epochs than Spark would give in the time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.epochs import Attempt, EpochResult, run_epoch
from millstream.coordinator.scaling import Member
from millstream.coordinator.server import CoordinatorServer
from millstream.coordinator.service import Coordinator
from millstream.flow.function_shipping import ship
from millstream.flow.vertices import JobVertex
from millstream.node.process import Launch, Started, launch
from millstream.node.service import NodeOptions
from millstream.ring.partitioning import partition_starts
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.state.blocks import to_bytes
from millstream.wire.auth import new_secret
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.epoch_record import EpochRecord, JobTypes
from millstream.wire.flight_net import FlightNet
from millstream.work.chunk import Chunk
from millstream.work.feeder import Feeder
from millstream.work.keyed_values import keyed
from millstream.work.packers.packer import cut, packer_for

JOB = 0
SLOTS = 4096


@dataclass
class NodeRun(AbstractContextManager["NodeRun"]):
    """One job on some nodes, each with a copy on the next."""

    job: JobVertex
    nodes: int = 2
    epoch: int = 0

    def __enter__(self) -> NodeRun:
        self._stack = ExitStack()
        folder = tempfile.mkdtemp(prefix="millstream-", dir="/tmp")
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self.secret = new_secret()
        self._net = FlightNet(self.secret)
        self.coordinator = Coordinator(self._net)
        server = CoordinatorServer(
            f"grpc+unix://{folder}/coordinator.sock", self.secret, self.coordinator
        )
        self._stack.callback(server.shutdown)
        self._stack.callback(self.coordinator.close)
        self._endpoint = server.endpoint
        self.started = [self._start(folder, number) for number in range(self.nodes)]
        self.coordinator.begin(
            [Member(node.node, node.address, node.domain) for node in self.started],
            {JOB: self.job.name},
            {JOB: JobTypes()},
            SLOTS,
            1,
            on_lost=lambda: None,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, folder: str, number: int) -> Started:
        config = Launch(
            NodeId(uuid.uuid4().hex),
            self._endpoint,
            ship({JOB: self.job}),
            SLOTS,
            folder,
            None,
            "epoch",
            NodeOptions(),
        )
        return launch(config, Domain(f"zone {number}", "here", str(number)), os.getpid())

    def blocks(self, pairs: Sequence[tuple[Any, Any]]) -> dict[int, pa.Table]:
        """Keyed values as one map task packs them, by partition."""
        packer = packer_for(self.job, SLOTS)
        for values in keyed(self.job, Chunk(records=list(pairs))):
            packer.add(values)
        packed = packer.flush()
        starts = partition_starts(self.coordinator.roster.placement, self.nodes, self.nodes)
        parts = {} if packed is None else dict(cut(packed, SLOTS, starts))
        tables = {}
        for part in range(self.nodes):
            row = (
                []
                if part not in parts
                else [
                    {
                        "route": 0,
                        "target": JOB,
                        "part": part,
                        "stage": 0,
                        "task": 0,
                        "sequence": 0,
                        "rows": len(pairs) // self.nodes,
                        "block": to_bytes(parts[part]),
                    }
                ]
            )
            tables[part] = pa.Table.from_pylist(row, schema=BLOCK_SCHEMA)
        return tables

    def run(self, blocks: Mapping[int, pa.Table], time: int) -> EpochResult:
        """Run an epoch, from admission to seal."""
        result = run_epoch(self.coordinator, self.epoch, time, _Body(self, blocks))
        self.epoch += 1
        return result

    def feed(self, record: EpochRecord, blocks: Mapping[int, pa.Table]) -> None:
        """Feed all units side by side."""

        def one(part: int) -> None:
            feeder = Feeder(self._net, self._endpoint.address, record, part)
            list(feeder.feed(JOB, record.slots_of(part), blocks[part], False))

        with ThreadPoolExecutor(self.nodes) as pool:
            list(pool.map(one, range(self.nodes)))


@dataclass
class _Body:
    run: NodeRun
    blocks: Mapping[int, pa.Table]

    @contextmanager
    def attempt(self, record: EpochRecord) -> Iterator[Attempt]:
        yield _Attempt(self.run, record, self.blocks)

    def discard(self, record: EpochRecord) -> None:
        return

    def is_retryable(self, problem: Exception) -> bool:
        return False

    def staged(self, record: EpochRecord) -> Staged:
        return Staged(record.epoch, record.attempt)

    def publish(self, staged: Staged) -> None:
        return


@dataclass
class _Attempt:
    run: NodeRun
    record: EpochRecord
    blocks: Mapping[int, pa.Table]

    def stage(self) -> None:
        self.run.feed(self.record, self.blocks)

    def evaluate(self) -> None:
        self.run.feed(self.record, self.blocks)

    def call_back(self) -> None:
        return

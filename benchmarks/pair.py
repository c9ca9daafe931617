"""A node and its backup without Spark: real services with one word count, fed by hand."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.cli.zipf import ZipfText, words_of
from millstream.errors import Place
from millstream.flow.reducers import reducer_of
from millstream.flow.vertices import JobVertex
from millstream.node.held_units import unit_digest
from millstream.node.machine import NodeMachine
from millstream.node.server import NodeServer, digest_blocks, memory
from millstream.node.service import NodeOptions, NodeService
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.state.blocks import to_bytes
from millstream.state.collector import tune_node_process
from millstream.wire.auth import new_secret
from millstream.wire.blocks import BLOCK_SCHEMA
from millstream.wire.commit import NOTHING_COMMITTED, Commit, CommittedUnit, Seal, fingerprint
from millstream.wire.feed import End, Feed
from millstream.wire.flight_net import FlightNet
from millstream.wire.membership import Assign
from millstream.wire.net import Delivery, Net
from millstream.wire.receipts import CollectReceipts
from millstream.wire.replication import CopySlots, ReplicateNow
from millstream.wire.request import Request
from millstream.work.chunk import Chunk
from millstream.work.feeder import end_of
from millstream.work.keyed_values import keyed
from millstream.work.packers.packer import packer_for

SLOTS = 4096
EXPONENT = ZipfText(words=1).exponent
_JOB = 0
_INCARNATION = 1
_PRIMARY, _BACKUP = NodeId("primary"), NodeId("backup")
_NOBODY = "nobody"  # the coordinator: nothing happens that it would be asked about
_AT_ONCE = 100_000

A = TypeVar("A")
T = TypeVar("T")
Fed = tuple[pa.RecordBatch, End]


def count(word: str, ones: list[int], state: Any) -> Iterator[tuple[str, int]]:
    """The reduce function."""
    state["n"] = state.get("n", 0) + sum(ones)
    yield word, state["n"]


class Words:
    """Words by rank, and draws of them by Zipf's law, as in the texts of the benchmarks."""

    def __init__(self, distinct: int, seed: int = 1) -> None:
        self.all = words_of(distinct)
        self._sums = np.cumsum(np.arange(1, distinct + 1, dtype=float) ** -EXPONENT)
        self._random = np.random.default_rng(seed)

    def draw(self, number: int) -> list[str]:
        """So many words of a text."""
        draws = self._random.random(number) * self._sums[-1]
        ranks: npt.NDArray[np.int64] = np.searchsorted(self._sums, draws, side="right")
        return [self.all[rank] for rank in np.minimum(ranks, len(self.all) - 1).tolist()]


class LocalNet:
    """A net of one process: calls go to one peer through bytes, which are counted by request."""

    def __init__(self) -> None:
        self.peer: NodeService | None = None
        self.sent: Counter[type[Request[Any]]] = Counter()

    def call(self, address: str, request: Request[A], timeout: float = 30.0) -> A:
        assert self.peer is not None
        data = pickle.dumps(request, 5)
        self.sent[type(request)] += len(data)
        received: Request[A] = pickle.loads(data)
        return self.peer.answer(received)

    def feed(
        self,
        primary: Delivery,
        copies: Sequence[Delivery],
        rows: pa.Table,
        end: End,
        abandoned: Callable[[], bool],
    ) -> list[pa.RecordBatch]:
        raise NotImplementedError("nodes are fed by hand here")

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        return [each() for each in calls]

    def spawn(self, function: Callable[[], None], name: str) -> None:
        function()

    def lock(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()


class Primary:
    """The node that owns all slots, with another one that backs all of them up."""

    def __init__(self, net: Net, backup: str, *, replicate_every: float = 2.0) -> None:
        self._job = _job()
        self._machine = _machine(_PRIMARY)
        self.service = _service(self._machine, net, replicate_every)
        self.service.answer(_assignment(backup))
        self._epoch = 0
        self._newest = NOTHING_COMMITTED

    @property
    def keys(self) -> int:
        """How many keys the state has."""
        receipts = self.service.answer(CollectReceipts(self._epoch, 0, -1))
        return receipts.report.state_keys[_JOB]

    def packed(self, words: Sequence[str]) -> Fed:
        """What a map task sends for these words, each of them once."""
        packer = packer_for(self._job, SLOTS)
        for values in keyed(self._job, Chunk(records=[(word, 1) for word in words])):
            packer.add(values)
        block = packer.flush()
        assert block is not None and packer.rows == 0
        row = {**dict.fromkeys(BLOCK_SCHEMA.names, 0), "rows": len(words), "block": to_bytes(block)}
        table = pa.Table.from_pylist([row], schema=BLOCK_SCHEMA)
        return table.to_batches()[0], end_of(table)

    def epoch(self, fed: Fed) -> None:
        """Run an epoch of one feed; it is committed by the next."""
        feed = Feed(
            incarnation=_INCARNATION,
            job=_JOB,
            epoch=self._epoch,
            try_=0,
            attempt=0,
            ring=0,
            slots=range(SLOTS),
            committed=self._newest,
            time=self._epoch,
        )
        self.service.exchange(feed, iter(fed))
        digest = unit_digest(range(SLOTS), fed[1].digest)
        unit = CommittedUnit(_JOB, 0, SLOTS, fingerprint(digest))
        self._newest = Commit.of(self._epoch, 0, [unit])
        self._epoch += 1

    def seal(self) -> None:
        """Commit the newest epoch now."""
        self.service.answer(Seal(self._newest))

    def load(self, words: Sequence[str]) -> None:
        """Give every word a count, and the backup a copy of it all."""
        for start in range(0, len(words), _AT_ONCE):
            self.epoch(self.packed(words[start : start + _AT_ONCE]))
        self.copy_all()

    def copy_all(self) -> None:
        """Give the backup a copy of the whole state; there is nothing to checkpoint after it."""
        self.seal()
        request = CopySlots(_INCARNATION, _BACKUP, (range(SLOTS),), self._newest, seconds=math.inf)
        self.service.answer(request)
        every = range(SLOTS)
        self._machine.store.replication.acknowledge(_BACKUP, every, self._newest.epoch)
        self._machine.deltas.evict()

    def checkpoint(self) -> None:
        """Bring the backup up to date, as the clock does in production."""
        self.seal()
        self.service.answer(ReplicateNow())

    def state_bytes(self) -> int:
        """The size of the whole state in the form in which it is copied."""
        return sum(len(pickle.dumps(view, 5)) for view in self._machine.snapshots(range(SLOTS)))


def local_pair() -> tuple[Primary, LocalNet]:
    """A primary whose backup is in the same process, and the net that counts between them."""
    net = LocalNet()
    machine = _machine(_BACKUP)
    net.peer = _service(machine, LocalNet(), 2.0)
    net.peer.answer(_assignment("backup"))
    return Primary(net, "backup"), net


@contextmanager
def distant_pair(folder: Path, *, replicate_every: float = 2.0) -> Iterator[Primary]:
    """A primary whose backup is another process, as in production: Flight, Unix sockets."""
    secret, address = new_secret(), f"grpc+unix://{folder}/backup.sock"
    ready, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_serve_backup, args=(address, secret, theirs), daemon=True
    )
    process.start()
    try:
        if not ready.poll(60.0):
            raise RuntimeError("the backup did not start")
        yield Primary(FlightNet(secret), address, replicate_every=replicate_every)
    finally:
        process.kill()
        process.join()


def _serve_backup(address: str, secret: bytes, ready: Connection) -> None:
    service = _service(_machine(_BACKUP), FlightNet(secret), 2.0)
    service.answer(_assignment(address))
    server = NodeServer(address, secret, service)
    ready.send(True)
    server.serve()


def _job() -> JobVertex:
    return JobVertex(Place(__file__, 1), name="count", reducer=reducer_of(count, "count"))


def _machine(node: NodeId) -> NodeMachine:
    return NodeMachine(
        node, {_JOB: _job()}, SLOTS, digest_blocks, time.perf_counter, durability="interval"
    )


def _service(machine: NodeMachine, net: Net, replicate_every: float) -> NodeService:
    options = NodeOptions(replicate_every=replicate_every)
    # As in a node's own process.
    after_merge = tune_node_process()
    return NodeService(
        machine, net, _NOBODY, options, memory, stop=lambda: None, after_merge=after_merge
    )


def _assignment(backup: str) -> Assign:
    copies = {_BACKUP: np.ones(SLOTS, dtype=bool)}
    placement = Placement.of(Ring.even([_PRIMARY], SLOTS), copies)
    return Assign(_INCARNATION, placement, {_BACKUP: backup})

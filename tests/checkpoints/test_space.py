"""The space of a checkpoint in a log: bounded by what is alive, however many epochs there were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import pytest

from millstream.checkpoints.evolution import begin
from millstream.checkpoints.manifest import JobMetadata, WorkflowMetadata
from millstream.coordinator.journal import Journal
from millstream.node.durability.base_writer import BaseOptions, BaseWriter
from millstream.node.durability.unit_writer import UnitWriter
from millstream.node.durability.write_queue import WriteQueue
from millstream.node.locks import Locks
from millstream.stores.log.store import LogStore
from millstream.wire.epoch_record import JobTypes
from millstream.wire.net import Net
from tests.coordinator.journals import claimed, record
from tests.node.machines import JOB, Node
from tests.stores.log.disks import MemoryDisk, open_log
from tests.work.running import SLOTS, job_of

KEYS = [f"key {number}" for number in range(200)]
SEGMENT = 1 << 18


class Inline:
    """A process in which whatever is spawned is done at once."""

    def spawn(self, function: Callable[[], None], name: str) -> None:
        function()

    def lock(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def sleep(self, seconds: float) -> None:
        raise AssertionError("there is nothing to wait for")

    def now(self) -> float:
        return 0.0


def newest(key: str, values: list[Any], state: Any) -> Iterator[Any]:
    state["newest"] = values[-1]
    yield key, values[-1]


class Checkpoint:
    """A node and a coordinator, each with a writer of its own in one log."""

    def __init__(self, disk: MemoryDisk, retain: int) -> None:
        net = cast(Net, Inline())
        self.logs = [open_log(disk, name, segment=SEGMENT) for name in ("node", "driver")]
        self.node = Node(job_of(newest))
        self.id = "newest@1"
        self.node.machine.id_of = lambda job: self.id  # type: ignore[method-assign]
        workflow = begin(
            WorkflowMetadata("flow", SLOTS, (JobMetadata("newest", "stateful", "newest"),)), 1
        )
        assert workflow.jobs[0].id == self.id
        locks = Locks(net.lock(), net.lock())
        queue = WriteQueue(net, self.logs[0])
        self.bases = BaseWriter(self.node.machine, queue, locks, BaseOptions())
        self.units = UnitWriter(self.node.machine, queue, self.bases, locks, net)
        store = self.logs[1]
        self.journal = Journal(store, claimed(store), workflow, {"newest": JOB}, retain)

    def epoch(self, epoch: int, pairs: list[Any]) -> None:
        """Run an epoch, and do all that follows from its commit."""
        machine = self.node.machine
        self.node.run(epoch, pairs)
        self.units.enqueue(self.node.units)
        receipts = self.node.receipts(epoch).receipts
        assert all(receipt.stored is not None and receipt.stored.key for receipt in receipts)
        deltas = self.journal.deltas_of(receipts)
        self.journal.commit(record(epoch), deltas, machine.bases, {JOB: JobTypes()}, [])
        self.journal.published = epoch
        self.node.seal(epoch)
        if self.bases.is_due:
            self.bases.write_all()
        if self.journal.is_garbage_due:
            self.journal.collect_garbage()

    @property
    def alive(self) -> int:
        """The bytes of all records that a reader finds."""
        store = self.logs[1]
        return sum(len(key) + len(value) for key, value in store.get(store.scan()).items())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs look after themselves where they are written, instead of in a thread."""
    monkeypatch.setattr(LogStore, "_schedule_maintenance", LogStore._maintain)
    monkeypatch.setattr("millstream.stores.log.store._REST", 0)
    monkeypatch.setattr("millstream.stores.log.store._STRIDE", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_the_space_of_steady_keys_does_not_grow_with_epochs() -> None:
    disk = MemoryDisk()
    checkpoint = Checkpoint(disk, retain=10)
    peak = 0
    for epoch in range(3000):
        checkpoint.epoch(epoch, [(key, epoch) for key in KEYS[epoch % 10 :: 10]])
        if epoch % 50 == 0:
            used = disk.used
            assert used <= 2 * checkpoint.alive + SEGMENT, f"epoch {epoch}"
            peak = max(peak, used)
    written = sum(log._writer.appended for log in checkpoint.logs)
    assert written > 5 * peak  # else the bound would say nothing
    needed = checkpoint.journal.restore_plan()
    keys = {base.key for base in needed.bases} | {delta.key for delta in needed.deltas}
    assert open_log(disk, "reader").get(keys).keys() == keys


@pytest.mark.usefixtures("at_once")
def test_many_writers_together_hold_no_more_than_one_would() -> None:
    disk = MemoryDisk()
    logs = [open_log(disk, f"w{number}", segment=SEGMENT) for number in range(8)]
    for turn in range(1600):
        logs[turn % 8].put({f"k{turn % 20}": bytes(1000)})
    for log in logs:
        log.put({"last": b""})

    assert disk.used <= 2 * 20 * 1100 + SEGMENT


@pytest.mark.usefixtures("at_once")
def test_space_that_others_deleted_from_an_idle_writers_segment_is_reclaimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    idle, busy = open_log(disk, "idle", segment=SEGMENT), open_log(disk, "busy", segment=SEGMENT)
    keys = [f"k{number}" for number in range(100)]
    idle.put(dict.fromkeys(keys, bytes(2000)))
    busy.delete(keys)
    busy.put({"k": b""})
    assert disk.used > 100 * 2000
    monkeypatch.setattr("millstream.stores.log.store._PAUSE", 0)
    idle._maintain()

    assert disk.used < 100 * 200

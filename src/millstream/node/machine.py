"""The node's state machine: fences, fragments, copies, receipts, seals. No I/O, no clock.

Each attempt of a unit writes a private fragment over the committed state. The first attempt to
finish is frozen, and its outputs are retained until the epoch is sealed; every later attempt gets
the same outputs. A node holds the slots that it backs up in the same way and in the same state
as those it owns, so that a takeover is a change of role and nothing else.

Parts of it are in modules of their own: the slots and their state (``slot_store``), the epoch under
way (``current_epoch``), replays (``tuple_replay``), deltas for backups (``delta_replication``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from millstream.checkpoints.manifest import BaseRecord
from millstream.flow.vertices import JobVertex
from millstream.node.current_epoch import CurrentEpoch
from millstream.node.delta_replication import DeltaReplication
from millstream.node.feed_blocks import key_in, key_type_in, opened, shown_part
from millstream.node.held_units import Block, Unit, Work, receipts_of, unit_digest
from millstream.node.load_meter import LoadMeter
from millstream.node.slot_store import SlotStore, UnknownJobError
from millstream.node.tuple_replay import TupleReplay
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.state.collector import without_collector
from millstream.state.spill import Spilling
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.feed import BrokenFeedError, End, Feed, FeedRefusedError
from millstream.wire.membership import Assign
from millstream.wire.receipts import NodeReport, Receipt, Receipts, StoredRecord
from millstream.wire.replication import (
    ReplicateDelta,
    ReplicateUnit,
    SlotsNotHeldError,
    Snapshot,
)
from millstream.work.job_clock import summed
from millstream.work.late_outputs import results_in
from millstream.work.reducer_lifecycle import OpenReducers
from millstream.work.unit import Reduced, UnitContext

Durability = Literal["epoch", "interval"]


class NodeMachine:
    """The state and the promises of one node."""

    def __init__(
        self,
        node: NodeId,
        jobs: Mapping[int, JobVertex],
        slots: int,
        digest: Callable[[Sequence[Block]], str],
        clock: Callable[[], float],
        durability: Durability = "epoch",
        ids: Mapping[int, str] | None = None,
        spilling: Spilling | None = None,
        meter: LoadMeter | None = None,
    ) -> None:
        self.node = node
        self.durability = durability
        self._ids = ids or {}
        self.bases: list[BaseRecord] = []
        self._jobs = jobs
        self._digest = digest
        self._clock = clock
        self.store = SlotStore(
            node, jobs, slots, retain=durability == "interval", spilling=spilling
        )
        self.reducers = OpenReducers(node, jobs, slots)
        self.current = CurrentEpoch(jobs)
        self.replays = TupleReplay(self.store, self.current)
        self.meter = meter or LoadMeter(jobs, slots, clock)
        self.deltas = DeltaReplication(node, self.store, self.current, self.meter)
        self._addresses: Mapping[NodeId, str] = {}
        if ids:
            self.store.replication.stored = -1

    @property
    def committed(self) -> Commit:
        """The newest commit this node knows."""
        return self.current.committed

    @property
    def newest_epoch(self) -> int:
        """The epoch under way, or else the newest committed one."""
        return max(self.current.epoch, self.committed.epoch)

    def job_name(self, job: int) -> str:
        """The name of a job; empty if this node does not run it."""
        return self._jobs[job].name if job in self._jobs else ""

    @property
    def incarnation(self) -> int:
        return self.current.incarnation

    @property
    def placement(self) -> Placement | None:
        return self.store.holdings.placement

    @property
    def version(self) -> int:
        """The version of the placement that this node knows; −1 before the first."""
        return self.store.holdings.version

    def address(self, node: NodeId) -> str | None:
        """Where a peer listens."""
        return self._addresses.get(node)

    # -- the ring ------------------------------------------------------------------------

    def assign(self, message: Assign) -> None:
        """Apply the placement in force, unless it is older than the one known."""
        if message.incarnation < self.incarnation:
            raise FeedRefusedError(f"incarnation {message.incarnation} is over", stale=True)
        if message.incarnation > self.incarnation:
            self.store.clear()
            self.bases = []
            self.current.reset(message.incarnation)
        elif message.placement.version <= self.version:
            return
        self.seal(message.committed)
        self._addresses = message.addresses
        empty = self.committed == NOTHING_COMMITTED
        self.store.place(message.placement, empty=empty, owners_since=message.owners_since)

    # -- feeds ---------------------------------------------------------------------------

    def admit(self, feed: Feed) -> None:
        """Accept a feed or reject it; a newer epoch or try voids what came before."""
        if feed.job not in self._jobs:
            raise UnknownJobError(f"this node runs no job {feed.job}")
        self._enter(feed.incarnation, feed.epoch, feed.try_, feed.committed)
        if feed.copy:
            self.store.holdings.fence_copy(feed.slots, feed.ring)
        else:
            self.store.holdings.fence(feed)

    def _enter(self, incarnation: int, epoch: int, try_: int, committed: Commit) -> None:
        self.current.fence(incarnation, epoch, try_)
        self.seal(committed)
        self.current.enter(epoch, try_)

    def begin(self, feed: Feed, blocks: Sequence[Block], end: End) -> Work | list[pa.RecordBatch]:
        """Check a complete feed: return the work to reduce, or the outputs of its first attempt."""
        self.admit(feed)
        work = self._work(feed, blocks, end)
        unit = self.current.matching(work)
        # Outputs are not replicated: after a takeover the same input gives them again.
        return work if unit is None or unit.outputs is None else unit.outputs

    def _work(self, feed: Feed, blocks: Sequence[Block], end: End) -> Work:
        ordered = sorted(blocks, key=lambda block: block.origin)
        digest = self._digest(ordered)
        if end.blocks != len(blocks) or end.digest != digest:
            raise BrokenFeedError(
                f"a feed of epoch {feed.epoch} announced {end.blocks} blocks with digest "
                f"{end.digest}, but {len(blocks)} with {digest} arrived; the task is retried"
            )
        return Work(feed, ordered, unit_digest(feed.slots, digest))

    def reduce(self, work: Work) -> tuple[Reduced[Any], Receipt]:
        """Reduce over the committed state into a private fragment; changes nothing."""
        feed, started = work.feed, self._clock()
        self.reducers.open(feed.job)
        batches, tallies = opened(work.blocks)
        unit = UnitContext(feed.slots, feed.time, feed.output, feed.read, feed.clock, feed.epoch)
        with without_collector():
            reduced = self.store.operators[feed.job].reduce(batches, unit)
        outputs = results_in(reduced.outputs)
        seconds = self._clock() - started
        self.meter.reduced(feed.at, feed.job, feed.slots, batches, seconds)
        return reduced, replace(
            work.receipt,
            keys=reduced.keys,
            outputs=sum(batch.num_rows for batch in outputs),
            seconds=seconds,
            key_type=key_type_in(batches),
            key=key_in(batches),
            output=shown_part(outputs[0].schema) if outputs else None,
            tallies=summed((*tallies, *reduced.tallies)),
        )

    def freeze(
        self, work: Work, reduced: Reduced[Any], receipt: Receipt
    ) -> tuple[list[pa.RecordBatch], list[Unit]]:
        """Freeze the first finished attempt; return its outputs and the units to replicate."""
        self.admit(work.feed)
        unit = self.current.matching(work)
        if unit is None:
            unit = Unit(receipt)
            self.current.add(unit)
        if unit.outputs is None:
            unit.outputs = reduced.outputs
        if unit.effective:
            return unit.outputs, []
        unit.receipt, unit.fragment = receipt, reduced.fragment
        return unit.outputs, [unit]

    # -- copies --------------------------------------------------------------------------

    def backups_of(self, unit: Unit) -> list[NodeId]:
        """The backups to which a unit is replicated."""
        assert self.placement is not None
        shares = self.placement.shares(unit.slots)
        peers = dict.fromkeys(peer for share in shares for peer in share.copies)
        return [peer for peer in peers if peer != self.node]

    def copy_of(self, unit: Unit) -> ReplicateUnit:
        """The request that replicates a unit."""
        return ReplicateUnit(
            self.incarnation,
            self.version,
            self.node,
            self.committed,
            unit.receipt,
            self.encoded(unit),
        )

    def encoded(self, unit: Unit) -> pa.Buffer:
        """A unit's delta; serialised once, for all backups and the store."""
        if unit.delta is None:
            unit.delta = pa.py_buffer(self.store.operators[unit.job].state.encode(unit.fragment))
            self.meter.encoded(unit.job, unit.receipt.keys, unit.delta.size)
        return unit.delta

    def units_for(self, peer: NodeId, epoch: int, try_: int) -> list[Unit]:
        """The frozen units of an epoch of which a peer should have a copy."""
        if self.placement is None or (epoch, try_) != self.current.at:
            return []
        due = self.placement.fed(peer) & self.store.holdings.owned
        return [
            unit
            for unit in self.current.units
            if unit.effective and due[unit.slots.start : unit.slots.stop].any()
        ]

    def take_copy(self, copy: ReplicateUnit) -> None:
        """Take a unit that a primary froze; it counts once the epoch is committed."""
        receipt = copy.receipt
        self._enter(copy.incarnation, receipt.epoch, receipt.try_, copy.committed)
        self.store.holdings.fence_copy(receipt.slots, copy.ring)
        self.current.add_copy(Unit(receipt, delta=copy.delta))

    def take_log(self, feed: Feed, blocks: Sequence[Block], end: End) -> None:
        """Take the input of a primary; it counts once the epoch is committed."""
        self.admit(feed)
        work = self._work(feed, blocks, end)
        self.current.add_copy(Unit(work.receipt, log=work))

    def take_delta(self, delta: ReplicateDelta) -> int:
        """Apply a delta where it leaves no gap; return up to which epoch all slots are complete."""
        self.current.require_incarnation(delta.incarnation)
        self.store.holdings.fence_copy(delta.slots, delta.ring)
        self.seal(delta.committed)
        self.store.learn_key_types(delta.key_types)
        return self.store.apply_delta(delta.parts, delta.slots, delta.since, delta.through)

    def install(self, snapshot: Snapshot) -> None:
        """Install a snapshot of slots that this node backs up."""
        self.current.require_incarnation(snapshot.incarnation)
        self.store.install(snapshot)

    def snapshots(self, slots: range) -> list[Snapshot]:
        """The state of some slots as of now; later changes do not show in it."""
        return self.store.snapshots(self.incarnation, slots)

    @property
    def log_bytes(self) -> int:
        """What tuple logs take in memory."""
        return self.store.pending_epochs.log_bytes + self.current.log_bytes

    # -- receipts ------------------------------------------------------------------------

    def receipts(self, epoch: int, try_: int, report: NodeReport) -> Receipts:
        """The receipts of an epoch and try; none once either was replaced."""
        reach = self.store.reach()
        pending = self.replays.next() is not None or bool(self.unstored())
        if (epoch, try_) != self.current.at:
            return Receipts((), (), reach, pending, report, tuple(self.bases))
        owned, fed = self.store.holdings.owned, self.store.holdings.fed
        self.current.require_agreement(owned)
        up_to_date = self.store.holdings.through == self.committed.epoch
        units = self.current.units
        return Receipts(
            tuple(receipts_of(filter(self._counts, units), owned & up_to_date)),
            tuple(receipt for unit in units for receipt in unit.copy_receipts(fed)),
            reach,
            pending,
            report,
            tuple(self.bases),
        )

    def _counts(self, unit: Unit) -> bool:
        """Whether a unit has a receipt: it is frozen, and durable if it has to be."""
        return unit.effective and not self._must_be_stored(unit)

    def _must_be_stored(self, unit: Unit) -> bool:
        if not self._ids or self.durability != "epoch" or not self._jobs[unit.job].durable:
            return False
        return unit.receipt.stored is None

    def unstored(self) -> list[Unit]:
        """The units of this node's slots that have to be in the store, and are not."""
        owned = self.store.holdings.owned
        return [
            unit
            for unit in self.current.units
            if unit.effective
            and self._must_be_stored(unit)
            and owned[unit.slots.start : unit.slots.stop].any()
        ]

    def mark_stored(self, unit: Unit, record: StoredRecord) -> None:
        """Note that a unit is durable."""
        unit.receipt = replace(unit.receipt, stored=record)

    def id_of(self, job: int) -> str:
        """The id of a job in the records of the store."""
        return self._ids[job]

    def is_durable(self, job: int) -> bool:
        return self._jobs[job].durable

    # -- commits -------------------------------------------------------------------------

    def seal(self, commit: Commit) -> None:
        """Merge the units that a commit names; idempotent."""
        if commit.epoch > self.committed.epoch:
            self.commit(commit)
            self.store.merge()

    def commit(self, commit: Commit) -> None:
        """Take the units that a commit names; ``store.merge_steps`` merges them step by step.

        A slot of which this node has another unit, or none, remains at its epoch, out of sync.
        """
        if commit.epoch <= self.committed.epoch:
            return
        units = self.current.commit(commit)
        if units is not None:
            self.store.add_committed(commit.epoch, units)

    @property
    def is_behind(self) -> bool:
        """Whether slots of this node are not at the newest commit."""
        return self.store.is_behind(range(self.store.slots), self.committed.epoch)

    def require_current(self, slots: range) -> None:
        """Raise ``SlotsNotHeldError`` while logs of some of these slots are not replayed yet."""
        epoch = self.committed.epoch
        if self.store.is_behind(slots, epoch):
            raise SlotsNotHeldError(f"slots of node {self.node} are not at epoch {epoch} yet")

    def unrestored(self) -> SlotMask:
        """The slots that this node owns, but whose state only the store has."""
        return self.store.unrestored(self.committed.epoch)

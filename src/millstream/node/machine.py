"""The node's state machine: fences, fragments, copies, receipts, seals. No I/O, no clock.

Each attempt of a unit writes a private fragment over the committed state. The first attempt to
finish is frozen, with its outputs kept until the epoch is sealed; every later attempt is given
the same outputs. A node holds the slots that it backs up in the same way and in the same state
as those it owns, so that taking over is a change of role and nothing else. The Flight server
drives this class in production, the simulator in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from millstream.checkpoints.manifest import BaseRecord
from millstream.flow.vertices import JobVertex
from millstream.node.feed_blocks import key_in, key_type_in, opened, shown_part
from millstream.node.held_units import Block, Unit, Work, committed_units, receipts_of, unit_digest
from millstream.node.replication import Due, Retained
from millstream.node.slot_store import SlotStore, UnknownJobError
from millstream.ring.masks import SlotMask, common, runs_of
from millstream.ring.placement import Placement, Share
from millstream.ring.ring import NodeId
from millstream.state.spill import Spilling
from millstream.wire.messages import (
    NOTHING_COMMITTED,
    Assign,
    BrokenFeedError,
    Commit,
    Delta,
    End,
    Feed,
    FeedRefusedError,
    Kept,
    NodeReport,
    NotDeterministicError,
    Receipt,
    Receipts,
    RecutError,
    SlotsNotHeldError,
    Snapshot,
    UnitCopy,
)
from millstream.work.collector import without_collector
from millstream.work.job_clock import summed
from millstream.work.parcels import results_in
from millstream.work.unit import Reduced, UnitContext

Durability = Literal["epoch", "interval"]


@dataclass(frozen=True)
class Replay:
    """A tuple log whose effect must be known for slots that this node owns now."""

    unit: Unit
    slots: range

    @property
    def work(self) -> Work:
        """What is to be reduced."""
        assert self.unit.log is not None
        return self.unit.log.part(self.slots)


class NodeMachine:
    """What one node holds and has promised."""

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
        self._incarnation = 0
        self._addresses: Mapping[NodeId, str] = {}
        self._committed = NOTHING_COMMITTED
        self._epoch = -1
        self._try = 0
        self._units: list[Unit] = []
        if ids:
            self.store.checkpoints.stored = -1

    @property
    def committed(self) -> Commit:
        """The newest commit this node knows."""
        return self._committed

    @property
    def incarnation(self) -> int:
        return self._incarnation

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
        """Take the placement in force; slots keep the version at which this node got them."""
        if message.incarnation < self._incarnation:
            raise FeedRefusedError(f"incarnation {message.incarnation} is over", stale=True)
        if message.incarnation > self._incarnation:
            self._begin_incarnation(message.incarnation)
        elif message.placement.version <= self.version:
            return
        self.seal(message.committed)
        self._addresses = message.addresses
        self.store.place(message.placement, empty=self._committed == NOTHING_COMMITTED)

    def _begin_incarnation(self, incarnation: int) -> None:
        """Let go of what an older incarnation had under way; its ring versions say nothing."""
        self.store.clear()
        self._units = []
        self.bases = []
        self._incarnation, self._committed = incarnation, NOTHING_COMMITTED
        self._epoch, self._try = -1, 0

    # -- feeds ---------------------------------------------------------------------------

    def admit(self, feed: Feed) -> None:
        """Let a feed in, or refuse it; a newer epoch or try ends what came before."""
        if feed.job not in self._jobs:
            raise UnknownJobError(f"this node runs no job {feed.job}")
        self._enter(feed.incarnation, feed.epoch, feed.try_, feed.committed)
        if feed.copy:
            self.store.holdings.fence_copy(feed.slots, feed.ring)
        else:
            self.store.holdings.fence(feed)

    def _enter(self, incarnation: int, epoch: int, try_: int, committed: Commit) -> None:
        self._check_incarnation(incarnation)
        if epoch <= self._committed.epoch:
            raise FeedRefusedError(f"epoch {epoch} is committed", stale=True)
        if (epoch, try_) < (self._epoch, self._try):
            raise FeedRefusedError(
                f"try {try_} of epoch {epoch} was replaced by try {self._try} of epoch "
                f"{self._epoch}",
                stale=True,
            )
        self.seal(committed)
        if (epoch, try_) > (self._epoch, self._try):
            # The older try is void; a sealed epoch left nothing behind here.
            self._units = []
            self._epoch, self._try = epoch, try_

    def begin(self, feed: Feed, blocks: Sequence[Block], end: End) -> Work | list[pa.RecordBatch]:
        """Check a complete feed: what is to be reduced, or what its first attempt gave."""
        self.admit(feed)
        work = self._work(feed, blocks, end)
        unit = self._agreed(work)
        # Outputs are not copied to backups: after a takeover the same input gives them again.
        return work if unit is None or unit.outputs is None else unit.outputs

    def _work(self, feed: Feed, blocks: Sequence[Block], end: End) -> Work:
        ordered = sorted(blocks, key=lambda block: block.origin)
        digest = self._digest(ordered)
        if end.blocks != len(blocks) or end.digest != digest:
            raise BrokenFeedError(
                f"a feed of epoch {feed.epoch} said {end.blocks} blocks with digest {end.digest}, "
                f"but {len(blocks)} with {digest} arrived; the task will run again"
            )
        return Work(feed, ordered, unit_digest(feed.slots, digest))

    def _agreed(self, work: Work) -> Unit | None:
        """The unit that an earlier attempt left for the same input; raises where they differ."""
        feed, found = work.feed, None
        for unit in self._units:
            if unit.job == feed.job and common(unit.slots, feed.slots):
                if unit.digest != work.digest:
                    raise self._disagreement(unit, feed.slots)
                found = unit
        return found

    def _disagreement(self, unit: Unit, slots: range) -> NotDeterministicError | RecutError:
        """Two units of this try share slots and are not the same."""
        told = RecutError if unit.slots != slots else NotDeterministicError
        both = common(unit.slots, slots)
        name = self._jobs[unit.job].name
        return told(name, unit.receipt.epoch, f"{both.start} to {both.stop - 1}")

    def reduce(self, work: Work) -> tuple[Reduced[Any], Receipt]:
        """Reduce over the committed state into a private fragment; changes nothing."""
        feed, started = work.feed, self._clock()
        batches, tallies = opened(work.blocks)
        unit = UnitContext(feed.slots, feed.time, feed.output, feed.read, feed.clock, feed.epoch)
        with without_collector():
            reduced = self.store.reducing[feed.job].reduce(batches, unit)
        outputs = results_in(reduced.outputs)
        return reduced, replace(
            work.receipt,
            keys=reduced.keys,
            outputs=sum(batch.num_rows for batch in outputs),
            seconds=self._clock() - started,
            key_type=key_type_in(batches),
            key=key_in(batches),
            output=shown_part(outputs[0].schema) if outputs else None,
            tallies=summed((*tallies, *reduced.tallies)),
        )

    def freeze(
        self, work: Work, reduced: Reduced[Any], receipt: Receipt
    ) -> tuple[list[pa.RecordBatch], list[Unit]]:
        """Keep the first finished attempt; gives its outputs, and the units to be copied."""
        self.admit(work.feed)
        unit = self._agreed(work)
        if unit is None:
            unit = Unit(receipt)
            self._units.append(unit)
        if unit.outputs is None:
            unit.outputs = reduced.outputs
        if unit.effective:
            return unit.outputs, []
        unit.receipt, unit.fragment = receipt, reduced.fragment
        return unit.outputs, [unit]

    # -- copies --------------------------------------------------------------------------

    def backups_of(self, unit: Unit) -> list[NodeId]:
        """The backups that a unit goes to."""
        placement = self.store.holdings.placement
        assert placement is not None
        peers = dict.fromkeys(p for share in placement.shares(unit.slots) for p in share.copies)
        return [peer for peer in peers if peer != self.node]

    def copy_of(self, unit: Unit) -> UnitCopy:
        """A unit in the form in which it travels; serialised once."""
        return UnitCopy(
            self._incarnation,
            self.version,
            self.node,
            self._committed,
            unit.receipt,
            self.encoded(unit),
        )

    def encoded(self, unit: Unit) -> pa.Buffer:
        """A unit's delta; serialised once, whoever it goes to."""
        if unit.delta is None:
            unit.delta = pa.py_buffer(self.store.reducing[unit.job].encode(unit.fragment))
        return unit.delta

    def units_for(self, peer: NodeId, epoch: int, try_: int) -> list[Unit]:
        """The frozen units of an epoch of which a peer should have a copy."""
        placement = self.store.holdings.placement
        if placement is None or (epoch, try_) != (self._epoch, self._try):
            return []
        due = placement.fed(peer) & self.store.holdings.owned
        return [
            unit
            for unit in self._units
            if unit.effective and due[unit.slots.start : unit.slots.stop].any()
        ]

    def take_copy(self, copy: UnitCopy) -> None:
        """Keep what a primary froze; it counts once the epoch is committed."""
        receipt = copy.receipt
        self._enter(copy.incarnation, receipt.epoch, receipt.try_, copy.committed)
        self.store.holdings.fence_copy(receipt.slots, copy.ring)
        self._keep(Unit(receipt, delta=copy.delta))

    def take_log(self, feed: Feed, blocks: Sequence[Block], end: End) -> None:
        """Keep what a primary was fed; it counts once the epoch is committed."""
        self.admit(feed)
        work = self._work(feed, blocks, end)
        self._keep(Unit(work.receipt, log=work))

    def _keep(self, unit: Unit) -> None:
        """Keep a copy, also beside others of the same slots: the commit names the one that counts.

        An owner may be lost after it has copied a unit, and the next one freeze another.
        """
        if all((u.job, u.digest) != (unit.job, unit.digest) for u in self._units):
            self._units.append(unit)

    @property
    def log_bytes(self) -> int:
        """What tuple logs take in memory."""
        return self.store.pending_epochs.log_bytes + sum(
            u.log.bytes for u in self._units if u.log is not None
        )

    # -- commit --------------------------------------------------------------------------

    def receipts(self, epoch: int, try_: int, report: NodeReport) -> Receipts:
        """What this node has of an epoch and try; nothing once either was replaced."""
        reach = self.store.reach()
        pending = self.next_replay() is not None or bool(self.unstored())
        if (epoch, try_) != (self._epoch, self._try):
            return Receipts((), (), reach, pending, report, tuple(self.bases))
        owned, fed = self.store.holdings.owned, self.store.holdings.fed
        self._require_agreement(owned)
        current = self.store.holdings.through == self._committed.epoch
        return Receipts(
            tuple(receipts_of(filter(self._counts, self._units), owned & current)),
            tuple(r for u in self._units for r in u.copy_receipts(fed)),
            reach,
            pending,
            report,
            tuple(self.bases),
        )

    def _require_agreement(self, owned: SlotMask) -> None:
        """Raise if former owners left units of this node's slots that are not the same."""
        ordered = sorted(self._units, key=lambda unit: (unit.job, unit.slots.start))
        for at, unit in enumerate(ordered):
            for other in ordered[at + 1 :]:
                both = common(unit.slots, other.slots)
                if other.job != unit.job or not both:
                    break
                if other.digest != unit.digest and owned[both.start : both.stop].any():
                    raise self._disagreement(unit, other.slots)

    def _counts(self, unit: Unit) -> bool:
        """Whether a unit is what a receipt says: frozen, and durable where that is promised."""
        return unit.effective and (not self._keeps(unit) or unit.receipt.kept is not None)

    def _keeps(self, unit: Unit) -> bool:
        return bool(self._ids) and self.durability == "epoch" and self._jobs[unit.job].durable

    def unstored(self) -> list[Unit]:
        """The units of this node's slots that should be in the store, and are not."""
        owned = self.store.holdings.owned
        return [
            unit
            for unit in self._units
            if unit.effective
            and self._keeps(unit)
            and unit.receipt.kept is None
            and owned[unit.slots.start : unit.slots.stop].any()
        ]

    def kept(self, unit: Unit, kept: Kept) -> None:
        """A unit is durable."""
        unit.receipt = replace(unit.receipt, kept=kept)

    def id_of(self, job: int) -> str:
        """How records in the store call a job."""
        return self._ids[job]

    def is_durable(self, job: int) -> bool:
        return self._jobs[job].durable

    def seal(self, commit: Commit) -> None:
        """Merge the units that a commit names; sealing again changes nothing."""
        if commit.epoch > self._committed.epoch:
            self.commit(commit)
            self.store.settle()

    def commit(self, commit: Commit) -> None:
        """Take the units that a commit names; ``store.settling`` merges them step by step.

        A slot of which another unit is here, or none, stays where it is, and is out of sync.
        """
        if commit.epoch <= self._committed.epoch:
            return
        units, self._units, self._committed = self._units, [], commit
        if commit.at == (self._epoch, self._try):
            self.store.put(commit.epoch, list(committed_units(units, commit)))

    # -- replays, after a takeover -------------------------------------------------------

    def next_replay(self) -> Replay | None:
        """The oldest tuple log of slots that this node owns now, if there is one.

        Of other slots its state may be older or newer, and to reduce over that gives nonsense. A
        committed unit is replayed in parts therefore; one under way as a whole or not at all.
        """
        for epoch, unit in self._logs():
            runs = list(runs_of(self._due(epoch), unit.slots))
            if runs and (epoch <= self._committed.epoch or runs == [unit.slots]):
                return Replay(unit, runs[0])
        return None

    def _logs(self) -> Iterator[tuple[int, Unit]]:
        """The tuple logs without a known effect, in the order of epochs."""
        for pending_epoch in self.store.pending_epochs.oldest_first():
            yield from (
                (pending_epoch.epoch, unit) for unit in pending_epoch.units if not unit.effective
            )
        yield from ((self._epoch, unit) for unit in self._units if not unit.effective)

    def _due(self, epoch: int) -> SlotMask:
        """The slots of this node for which an epoch is next."""
        return self.store.holdings.owned & self.store.follows(epoch)

    def replayed(self, replay: Replay, reduced: Reduced[Any], receipt: Receipt) -> None:
        """Take the effect of a log; outputs are of use only while the epoch is under way."""
        unit = replay.unit
        if unit.effective:
            return
        if replay.slots == unit.slots:
            unit.receipt, unit.fragment, unit.outputs = receipt, reduced.fragment, reduced.outputs
        else:
            self.store.pending_epochs.divide(unit, Unit(receipt, fragment=reduced.fragment))
        self.store.settle()

    @property
    def is_behind(self) -> bool:
        """Whether slots of this node are not at the newest commit."""
        return self.store.is_behind(range(self.store.slots), self._committed.epoch)

    def require_current(self, slots: range) -> None:
        """Raise ``SlotsNotHeldError`` while logs of some of these slots are not replayed yet."""
        epoch = self._committed.epoch
        if self.store.is_behind(slots, epoch):
            raise SlotsNotHeldError(
                f"node {self.node} has not brought all of its slots to epoch {epoch} yet"
            )

    def lacking(self) -> SlotMask:
        """The slots that this node owns, but whose state only the store can give."""
        return self.store.lacking(self._committed.epoch)

    # -- snapshots -----------------------------------------------------------------------

    def view(self, slots: range) -> list[Snapshot]:
        """The state of some slots, as it is now; no later change shows in it."""
        return self.store.view(self._incarnation, slots)

    def install(self, snapshot: Snapshot) -> None:
        """Take a snapshot of slots of which this node is a backup."""
        self._check_incarnation(snapshot.incarnation)
        self.store.install(snapshot)

    def _check_incarnation(self, incarnation: int) -> None:
        if incarnation != self._incarnation:
            raise FeedRefusedError(
                f"incarnation {incarnation} is not {self._incarnation}",
                stale=incarnation < self._incarnation,
            )

    # -- background checkpoints ----------------------------------------------------------

    def due(self) -> list[Due]:
        """The deltas that would bring the backups of this node's slots up to date."""
        shares, through = self._own_shares(), self.store.holdings.through
        return list(self.store.checkpoints.due(shares, through))

    def evict(self) -> list[Retained]:
        """Give up what every backup has; to be let go of one by one."""
        return self.store.checkpoints.evict(self._own_shares(), self.store.holdings.through)

    def _own_shares(self) -> list[Share]:
        placement = self.store.holdings.placement
        if placement is None:
            return []
        shares = placement.shares(range(self.store.slots))
        return [share for share in shares if share.owner == self.node]

    def delta(self, due: Due, slots: range) -> Delta:
        """Make the delta of some of the slots that are due; reads only what never changes."""
        parts = []
        for job in self.store.reducing:
            mine = [kept for kept in due.retained if kept.job == job]
            if mine:
                parts.append((job, self.merged(job, slots, mine)))
        return Delta(
            self._incarnation,
            self.version,
            self.node,
            self._committed,
            slots,
            due.since,
            due.through,
            tuple(parts),
            self.store.key_types,
        )

    def merged(self, job: int, slots: range, retained: Sequence[Retained]) -> bytes:
        """What retained fragments say of some slots, as one delta."""
        reducing = self.store.reducing[job]
        parts = [reducing.part(kept.fragment, common(kept.slots, slots)) for kept in retained]
        return reducing.encode(reducing.merge(parts))

    def take_delta(self, delta: Delta) -> int:
        """Apply a delta where it leaves no gap; how far the slots are complete, at least."""
        self._check_incarnation(delta.incarnation)
        self.store.holdings.fence_copy(delta.slots, delta.ring)
        self.seal(delta.committed)
        self.store.learn(delta.key_types)
        return self.store.take(delta.parts, delta.slots, delta.since, delta.through)

    def delivered(self, peer: NodeId, slots: range, through: int) -> None:
        """A backup has said how far it is."""
        self.store.checkpoints.acknowledge(peer, slots, through)

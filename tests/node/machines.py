"""Machines of nodes without a network, and the feeds and placements that tests give them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.node.held_units import Block, Unit, Work
from millstream.node.machine import Durability, NodeMachine
from millstream.node.slot_store import SlotStore
from millstream.ring.hashing import slot_of_key
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.state.blocks import Origin, slices, to_bytes
from millstream.state.records import decode_records
from millstream.state.spill import Spilling
from millstream.wire.commit import Commit, CommittedUnit, fingerprint
from millstream.wire.feed import End, Feed
from millstream.wire.membership import Assign
from millstream.wire.receipts import NodeReport, Receipts
from tests.work.running import SLOTS, blocks_of_pairs, job_of

ME, OTHER, THIRD = NodeId("me"), NodeId("other"), NodeId("third")
ALL = range(SLOTS)
LOW, HIGH = range(0, SLOTS // 2), range(SLOTS // 2, SLOTS)
JOB = 3
MANY = [(str(number), number) for number in range(40)]
"""Keys in every slot."""


def history(key: str, values: list[Any], state: Any) -> Iterator[Any]:
    """Keeps all values in their order, so that order and double effects show."""
    if "bad" in values:
        raise ValueError("no good")
    state.setdefault("seen", []).extend(values)
    yield key, list(state["seen"])


HISTORY = job_of(history)


def digest(blocks: Sequence[Block]) -> str:
    found = hashlib.sha256()
    for block in blocks:
        found.update(repr(block.origin).encode() + block.data.to_pybytes())
    return found.hexdigest()


def end_of(blocks: Sequence[Block]) -> End:
    return End(len(blocks), digest(sorted(blocks, key=lambda block: block.origin)))


def mask_of(slots: range, of: int = SLOTS) -> SlotMask:
    mask = np.zeros(of, dtype=bool)
    mask[slots.start : slots.stop] = True
    return mask


def placed(owners: Ring | Sequence[NodeId], version: int = 0, **copies: range) -> Placement:
    """A placement of these owners, or of one owner after the other; copies by node."""
    ring = owners if isinstance(owners, Ring) else Ring.even(owners, SLOTS)
    masks = {NodeId(node): mask_of(slots) for node, slots in copies.items()}
    return Placement.of(ring, masks).at(version)


def commit_of(machines: Iterable[NodeMachine], epoch: int, try_: int = 0) -> Commit:
    """The commit of all that machines have of an epoch under way."""
    units = {
        CommittedUnit(unit.job, unit.slots.start, unit.slots.stop, fingerprint(unit.digest))
        for machine in machines
        for unit in machine.current.units
        if unit.receipt.epoch == epoch
    }
    return Commit.of(epoch, try_, units)


def items_of(store: SlotStore, slots: range = ALL, job: int = JOB) -> list[tuple[Any, Any]]:
    """The keys of some slots with their state, copies included."""
    return list(store.operators[job].state.items(mask_of(slots)))


class Node:
    """A machine with its placement, and the feeds of one job."""

    def __init__(
        self,
        job: JobVertex = HISTORY,
        placement: Placement | None = None,
        node: NodeId = ME,
        durability: Durability = "epoch",
        jobs: Sequence[int] = (JOB,),
        spilling: Spilling | None = None,
    ) -> None:
        self.job = job
        ticks = itertools.count()
        self.machine = NodeMachine(
            node,
            dict.fromkeys(jobs, job),
            SLOTS,
            digest,
            lambda: float(next(ticks)),
            durability,
            spilling=spilling,
        )
        self.store = self.machine.store
        self.units: list[Unit] = []
        self.assign(placement or placed([node]))

    def assign(self, placement: Placement, incarnation: int = 1, **options: Any) -> None:
        addresses = {node: f"address of {node}" for node in placement.nodes}
        self.machine.assign(Assign(incarnation, placement, addresses, **options))

    def feed(self, epoch: int, **options: Any) -> Feed:
        header = Feed(
            incarnation=1,
            job=JOB,
            epoch=epoch,
            try_=0,
            attempt=0,
            ring=self.machine.version,
            slots=ALL,
            committed=commit_of([self.machine], epoch - 1),
            time=epoch,
            rows=7,
        )
        return replace(header, **options)

    def blocks(self, *tasks: Sequence[Any], slots: range = ALL) -> list[Block]:
        """One block for each map task that has rows in these slots."""
        return [
            Block(Origin(0, task, sequence), pa.py_buffer(to_bytes(rows)))
            for task, pairs in enumerate(tasks)
            for sequence, block in enumerate(blocks_of_pairs(self.job, pairs))
            for _, rows in slices(block, [slots.start, slots.stop])
        ]

    def finish(self, feed: Feed, blocks: Sequence[Block], end: End | None = None) -> list[Any]:
        """Take a feed as the service does, in one go; ``units`` is what was frozen by it."""
        self.units = []
        found = self.machine.begin(feed, blocks, end or end_of(blocks))
        if isinstance(found, Work):
            reduced, receipt = self.machine.reduce(found)
            found, self.units = self.machine.freeze(found, reduced, receipt)
        return [record for batch in found for record in decode_records(batch)]

    def run(self, epoch: int, *tasks: Sequence[Any], **options: Any) -> list[Any]:
        feed = self.feed(epoch, **options)
        return self.finish(feed, self.blocks(*tasks, slots=feed.slots))

    def log(self, epoch: int, *tasks: Sequence[Any], **options: Any) -> None:
        """Take the same feed as a backup that keeps tuple logs."""
        feed = self.feed(epoch, copy=True, **options)
        blocks = self.blocks(*tasks, slots=feed.slots)
        self.machine.take_log(feed, blocks, end_of(blocks))

    def commit(self, epoch: int, *tasks: Sequence[Any], **options: Any) -> None:
        """Run an epoch and seal it."""
        self.run(epoch, *tasks, **options)
        self.seal(epoch)

    def seal(self, epoch: int, try_: int = 0) -> None:
        self.machine.seal(commit_of([self.machine], epoch, try_))

    def copy_to(self, other: Node) -> None:
        """Copy what the last feed froze."""
        for unit in self.units:
            other.machine.take_copy(self.machine.copy_of(unit))

    def replay(self) -> int:
        """Replay the logs of slots that were taken over; says how many there were."""
        count = 0
        while (replay := self.machine.replays.next()) is not None:
            self.machine.replays.finish(replay, *self.machine.reduce(replay.work))
            count += 1
        return count

    def receipts(self, epoch: int, try_: int = 0) -> Receipts:
        return self.machine.receipts(epoch, try_, NodeReport())

    def state(self) -> dict[Any, Any]:
        """What users can read here."""
        owned = self.store.holdings.owned
        return {key: found["seen"] for key, found in self.store.operators[JOB].state.items(owned)}

    def held(self) -> dict[Any, Any]:
        """What this node holds, copies included."""
        everything = np.ones(SLOTS, dtype=bool)
        return {
            key: found["seen"] for key, found in self.store.operators[JOB].state.items(everything)
        }


def looked_up(store: SlotStore, key: Any) -> Any:
    """The state of a key, if this node owns its slot and has seen a key of its type."""
    kind = store.key_types.get(JOB)
    slot = slot_of_key(key, kind, store.slots)
    if kind is None or slot is None or not store.holdings.owned[slot]:
        return None
    return store.get_many(JOB, [key], [slot])[0]

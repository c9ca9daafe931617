"""Units as a node holds them: reduced here, a primary's delta, or a tuple log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ring.masks import SlotMask, common, runs_of
from millstream.state.blocks import Origin, from_bytes, slices, to_bytes
from millstream.wire.commit import Commit, fingerprint
from millstream.wire.feed import Feed
from millstream.wire.receipts import CopyReceipt, Receipt


@dataclass(frozen=True)
class Block:
    """One block as it arrived."""

    origin: Origin
    data: pa.Buffer


def unit_digest(slots: range, blocks: str) -> str:
    """The identity of a unit within its job and try: its slots, and the digest of its input.

    The input of a part of the slots is another unit, even if the blocks are the same.
    """
    return f"{slots.start}-{slots.stop}:{blocks}"


@dataclass(frozen=True)
class Work:
    """A complete feed, checked and sorted: the input of a reduction."""

    feed: Feed
    blocks: Sequence[Block]
    digest: str

    @property
    def bytes(self) -> int:
        return sum(block.data.size for block in self.blocks)

    @property
    def receipt(self) -> Receipt:
        """The receipt of a feed that was not reduced yet."""
        feed = self.feed
        return Receipt(feed.job, feed.epoch, feed.try_, feed.slots, self.digest, feed.rows)

    def part(self, slots: range) -> Work:
        """The input of some of its slots; the digest remains that of the unit."""
        if slots == self.feed.slots:
            return self
        blocks = [
            Block(block.origin, pa.py_buffer(to_bytes(rows)))
            for block in self.blocks
            if (batch := from_bytes(block.data)).num_rows
            for _, rows in slices(batch, [slots.start, slots.stop])
        ]
        return Work(replace(self.feed, slots=slots, rows=0), blocks, self.digest)


@dataclass
class Unit:
    """The effect of one epoch on a range of slots of one job, in the forms this node has.

    ``fragment`` was reduced here, ``delta`` is its serialised form, made here or received; a
    ``log`` holds the input alone, and has an effect only after its replay. ``queued`` units are on
    their way into the store.
    """

    receipt: Receipt
    fragment: Any = None
    delta: pa.Buffer | None = None
    log: Work | None = None
    outputs: list[pa.RecordBatch] | None = None
    queued: bool = False

    @property
    def job(self) -> int:
        return self.receipt.job

    @property
    def slots(self) -> range:
        return self.receipt.slots

    @property
    def digest(self) -> str:
        return self.receipt.digest

    @property
    def effective(self) -> bool:
        """Whether its effect is known, and not only its input."""
        return self.fragment is not None or self.delta is not None

    def copy_receipts(self, fed: SlotMask) -> Iterator[CopyReceipt]:
        """The receipts for the slots of which this node is a backup."""
        for run in runs_of(fed, self.slots):
            yield CopyReceipt(self.job, run, self.digest)


def receipts_of(units: Iterable[Unit], owned: SlotMask) -> Iterator[Receipt]:
    """The receipts for the slots that a node owns, one for each slot of a job."""
    for unit in units:
        for run in runs_of(owned, unit.slots):
            yield unit.receipt.part(run)


def committed_units(units: Iterable[Unit], commit: Commit) -> Iterator[Unit]:
    """The units that a commit names, each with the slots for which it is named."""
    held = list(units)
    named: dict[tuple[int, int], list[range]] = {}
    for job, start, stop, number in commit.naming(unit.digest for unit in held):
        named.setdefault((job, number), []).append(range(start, stop))
    for unit in held:
        for run in named.get((unit.job, fingerprint(unit.digest)), ()):
            slots = common(run, unit.slots)
            if slots == unit.slots:
                yield unit
            elif slots:
                yield replace(unit, receipt=unit.receipt.part(slots))


def covered(units: Sequence[Unit], jobs: Sequence[int], slots: int, *, effective: bool) -> SlotMask:
    """The slots for which every job has a unit; only units whose effect is known, if asked."""
    found = np.ones(slots, dtype=bool)
    for job in jobs:
        mine = np.zeros(slots, dtype=bool)
        for unit in units:
            if unit.job == job and (unit.effective or not effective):
                mine[unit.slots.start : unit.slots.stop] = True
        found &= mine
    return found

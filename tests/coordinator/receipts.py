"""Ledgers over two owners, and what nodes say to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from millstream.coordinator.ledger import Ledger
from millstream.coordinator.roster import Cells, Roster
from millstream.ring.masks import SlotMask
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.wire.epoch_record import JobTypes
from millstream.wire.receipts import CopyReceipt, NodeReport, Receipt, Receipts

A, B, UNKNOWN = NodeId("a"), NodeId("b"), NodeId("unknown")
SLOTS = 8
LOW, HIGH = range(0, 4), range(4, 8)
WORDS, PAIRS = 1, 2
JOBS = {WORDS: "words", PAIRS: "pairs"}
OWNED = {A: LOW, B: HIGH}


def roster_of(*nodes: NodeId, replicas: int = 0) -> Roster:
    domains = {node: Domain("zone", f"host of {node}", "executor") for node in nodes}
    return Roster(domains, SLOTS, replicas)


def cells(roster: Roster, complete: Mapping[NodeId, SlotMask]) -> Cells:
    """The cells of a roster's holders whose copies are complete, from the slots of each node."""
    found = np.zeros(roster.holders.table.shape, dtype=bool)
    for node, mask in complete.items():
        slots, columns = roster.holders.of(roster.number_of(node))
        found[slots, columns] = mask[slots]
    return found


def ledger_of(
    jobs: dict[int, str] | None = None,
    roster: Roster | None = None,
    *,
    partitions: int = 1,
    **types: JobTypes,
) -> Ledger:
    known = {WORDS: types["words"]} if types else {}
    addresses = {A: "address a", B: "address b"}
    jobs = jobs or {WORDS: "words"}
    return Ledger(
        5, jobs, roster or roster_of(A, B), lambda: addresses, known, partitions=partitions
    )


def receipt(
    slots: range, job: int = WORDS, epoch: int = 0, try_: int = 0, **options: Any
) -> Receipt:
    return Receipt(
        job=job,
        epoch=epoch,
        try_=try_,
        slots=slots,
        digest=options.get("digest", "digest"),
        rows=options.get("rows", 0),
        keys=options.get("keys", 0),
        outputs=0,
        seconds=0.0,
        key_type=options.get("key_type"),
        output=options.get("output"),
        tallies=options.get("tallies", ()),
        key=options.get("key", ""),
    )


def copy(slots: range, job: int = WORDS, digest: str = "digest") -> CopyReceipt:
    return CopyReceipt(job, slots, digest)


def receipts_of(
    *receipts: Receipt, copies: tuple[CopyReceipt, ...] = (), reach: int = -1
) -> Receipts:
    return Receipts(receipts, copies, ((0, reach),), False, NodeReport())


def give(ledger: Ledger, **options: Any) -> None:
    """Receipts of both owners for the epoch under way."""
    record = ledger.record
    assert record is not None
    for node, slots in OWNED.items():
        kept = {name: value[node] for name, value in options.items()}
        found = receipt(slots, epoch=record.epoch, try_=record.try_, **kept)
        ledger.receive(node, receipts_of(found))


def learnt(ledger: Ledger, epoch: int) -> JobTypes:
    return ledger.admit(epoch, 0).types[WORDS]

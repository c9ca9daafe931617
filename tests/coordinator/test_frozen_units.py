"""What receipts come to, compared with the same computed slot by slot."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.frozen_units import Frozen, UnitCounts
from millstream.coordinator.holders import Holders
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.wire.receipts import CopyReceipt, NodeReport, Receipt, Receipts

SLOTS = 8
JOBS = (3, 5)
NODES = [NodeId(name) for name in "abcd"]
COMMITTED = 6
AT = (7, 0)

bounds = st.tuples(st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1))
runs = st.one_of(st.just(range(SLOTS)), bounds.map(lambda b: range(min(b), max(b) + 1)))
digests = st.sampled_from(["x", "x", "x", "y"])


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    owners = draw(st.lists(st.sampled_from(NODES), min_size=SLOTS, max_size=SLOTS))
    copies = [draw(st.sets(st.sampled_from(NODES), max_size=2)) - {owner} for owner in owners]
    tokens = [(s, n) for s, n in enumerate(owners) if s == 0 or owners[s - 1] != n]
    arcs = [
        (slot, tuple(sorted(nodes)))
        for slot, nodes in enumerate(copies)
        if slot == 0 or copies[slot - 1] != nodes
    ]
    return Placement(Ring(0, SLOTS, tuple(tokens)), tuple(arcs))


@st.composite
def receipts(draw: st.DrawFn, job: int) -> Receipt:
    return Receipt(
        job,
        *draw(st.sampled_from([AT, AT, AT, (AT[0], 1), (AT[0] - 1, 0)])),
        draw(runs),
        draw(digests),
        rows=draw(st.integers(0, 2**40)),
        keys=draw(st.integers(0, 9)),
        outputs=draw(st.integers(0, 9)),
        seconds=float(draw(st.integers(0, 9))),
        key_type=draw(st.sampled_from([None, pa.int64(), pa.string()])),
        output=draw(st.sampled_from([None, pa.schema([("key", pa.int64())])])),
    )


def is_current(receipt: Receipt) -> bool:
    return (receipt.epoch, receipt.try_) == AT


some_jobs = st.one_of(st.just(list(JOBS)), st.lists(st.sampled_from(JOBS), max_size=4))


@st.composite
def answers(draw: st.DrawFn) -> Receipts:
    starts = sorted({0, *draw(st.sets(st.integers(1, SLOTS - 1), max_size=3))})
    return Receipts(
        tuple(draw(receipts(job)) for job in draw(some_jobs)),
        tuple(CopyReceipt(job, draw(runs), draw(digests)) for job in draw(some_jobs)),
        tuple((start, draw(st.integers(COMMITTED - 1, COMMITTED + 1))) for start in starts),
        False,
        NodeReport(),
    )


@given(placements(), st.dictionaries(st.sampled_from(NODES), answers()))
def test_receipts_are_compared_slot_by_slot(
    placement: Placement, received: dict[NodeId, Receipts]
) -> None:
    numbers = {node: 10 + number for number, node in enumerate(NODES)}
    holders = Holders(placement, numbers)
    numbered = [(numbers[node], each) for node, each in received.items()]

    frozen = Frozen(JOBS, holders, numbered, AT)
    in_sync = frozen.in_sync(COMMITTED)

    expected: dict[tuple[int, int], str] = {}
    for number, each in numbered:
        for receipt in each.receipts:
            for slot in receipt.slots:
                if numbers[placement.owner(slot)] == number and is_current(receipt):
                    expected[receipt.job, slot] = receipt.digest
    for job in JOBS:
        has = frozen.by_job[job]
        found = np.flatnonzero(has != Frozen.NONE)
        digests = [receipt.digest for receipt in frozen.receipts_at(has[found])]
        assert dict(zip(found.tolist(), digests, strict=True)) == {
            slot: expected[job, slot] for slot in range(SLOTS) if (job, slot) in expected
        }
    for slot in range(SLOTS):
        for column, number in enumerate(holders.table[slot].tolist()):
            node = next((n for n, at in numbers.items() if at == number), None)
            synced = node in received and (
                column == 0 or _is_complete(received[node], slot, expected)
            )
            assert bool(in_sync[slot, column]) == synced


def _is_complete(answer: Receipts, slot: int, expected: dict[tuple[int, int], str]) -> bool:
    reach = [value for start, value in answer.reach if start <= slot][-1]
    return reach >= COMMITTED and all(
        any(
            copy.job == job and slot in copy.slots and copy.digest == expected.get((job, slot))
            for copy in answer.copies
        )
        for job in JOBS
    )


@given(placements(), answers())
def test_receipts_count_from_owners_and_units_once_from_those_of_their_first_slots(
    placement: Placement, answer: Receipts
) -> None:
    holders = Holders(placement, {node: number for number, node in enumerate(NODES)})

    frozen = Frozen(JOBS, holders, [(0, pickle.loads(pickle.dumps(answer)))], AT)

    owner = placement.owner
    mine = [receipt for receipt in answer.receipts if is_current(receipt)]
    counted = [r for r in mine if any(owner(s) == "a" for s in r.slots)]
    assert list(frozen.receipts) == counted
    assert list(frozen.of_first_slots) == [r for r in mine if owner(r.slots.start) == "a"]
    for job in JOBS:
        of_job = [r for r in counted if r.job == job]
        rows, keys = sum(r.rows for r in of_job), sum(r.keys for r in of_job)
        outputs, seconds = sum(r.outputs for r in of_job), sum(r.seconds for r in of_job)
        assert frozen.counts()[job] == UnitCounts(rows, keys, outputs, seconds)
        types = {(r.key_type, r.output) for r in of_job}
        assert sorted((str(t.key_type), str(t.output)) for t in frozen.types[job]) == sorted(
            (str(key), str(output)) for key, output in types
        )

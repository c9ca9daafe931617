"""What receipts come to, compared with the same computed slot by slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.frozen_units import Frozen
from millstream.coordinator.holders import Holders
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.wire.receipts import CopyReceipt, NodeReport, Receipt, Receipts

SLOTS = 8
JOBS = (3, 5)
NODES = [NodeId(name) for name in "abcd"]
COMMITTED = 6

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


some_jobs = st.one_of(st.just(list(JOBS)), st.lists(st.sampled_from(JOBS), max_size=4))


@st.composite
def answers(draw: st.DrawFn) -> Receipts:
    starts = sorted({0, *draw(st.sets(st.integers(1, SLOTS - 1), max_size=3))})
    return Receipts(
        tuple(Receipt(job, 7, 0, draw(runs), draw(digests), 1) for job in draw(some_jobs)),
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
    receipts = [(number, receipt) for number, each in numbered for receipt in each.receipts]

    frozen = Frozen(JOBS, holders, receipts)
    in_sync = frozen.in_sync(numbered, COMMITTED)

    expected: dict[tuple[int, int], str] = {}
    for number, receipt in receipts:
        for slot in receipt.slots:
            if numbers[placement.owner(slot)] == number:
                expected[receipt.job, slot] = receipt.digest
    names = [None, *sorted(set(expected.values()))]
    for job in JOBS:
        has = frozen.by_job[job].tolist()
        assert [number == Frozen.NONE for number in has] == [
            (job, slot) not in expected for slot in range(SLOTS)
        ]
        same = [[a == b for b in has] for a in has]
        wanted = [names.index(expected.get((job, slot))) for slot in range(SLOTS)]
        assert same == [[a == b for b in wanted] for a in wanted]
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
    receipts = [(0, receipt) for receipt in answer.receipts if receipt.slots]

    frozen = Frozen(JOBS, holders, receipts)

    owner = placement.owner
    mine = [receipt for _, receipt in receipts]
    assert frozen.receipts == [r for r in mine if any(owner(s) == "a" for s in r.slots)]
    assert frozen.of_first_slots == [r for r in mine if owner(r.slots.start) == "a"]

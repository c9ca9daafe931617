"""What map tasks counted, and the clock, on their way through a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from millstream.node.held_units import Block, Work
from millstream.state.blocks import KEY, TIME, WINDOW, Origin, to_bytes
from millstream.work.job_clock import JobClock, Tally, tally_block
from millstream.work.late_outputs import unpacked, with_late
from millstream.work.unit import Reduced, UnitContext
from tests.node.machines import ALL, HIGH, JOB, LOW, MANY, ME, OTHER, Node, end_of, placed

COUNTED = Tally(4, rows=40, latest=9, late=2)
OTHERS = Tally(4, rows=2, latest=11)
CLOCK = JobClock(5, 7, {4: 99}, folding=False)


def counted(*tallies: Tally, task: int = 50) -> Block:
    return Block(Origin(0, task, 0), pa.py_buffer(to_bytes(tally_block(tallies))))


def run(node: Node, epoch: int, blocks: Sequence[Block], **options: Any) -> list[Any]:
    return node.finish(node.feed(epoch, **options), blocks)


def tallied(node: Node, epoch: int = 0) -> list[tuple[range, int, tuple[Tally, ...]]]:
    """The slots, the rows and the tallies of receipts."""
    return [(r.slots, r.rows, r.tallies) for r in node.receipts(epoch).receipts]


def test_tallies_go_into_the_receipt_and_not_into_the_reduction() -> None:
    plain, node = Node(), Node()
    expected = plain.run(0, MANY)

    assert (
        run(node, 0, [counted(COUNTED), *node.blocks(MANY), counted(OTHERS, task=51)]) == expected
    )
    assert tallied(node) == [(ALL, 7, (COUNTED + OTHERS,))]
    [receipt] = node.receipts(0).receipts
    assert receipt.key_type == pa.string()


def test_a_feed_of_tallies_alone_has_a_receipt() -> None:
    node = Node()

    assert run(node, 0, [counted(COUNTED)]) == []
    assert tallied(node) == [(ALL, 7, (COUNTED,))]


def test_the_owner_of_the_first_slot_reports_the_tallies() -> None:
    node = Node()
    run(node, 0, [counted(COUNTED), *node.blocks(MANY)])
    node.assign(placed([ME, OTHER], 1))
    assert tallied(node) == [(LOW, 7, (COUNTED,))]

    node.assign(placed([OTHER, ME], 2))
    assert tallied(node) == [(HIGH, 0, ())]


def test_a_backup_has_the_tallies_of_its_primary() -> None:
    primary, backup = Node(placement=placed([ME], 0, other=ALL)), backup_of()
    run(primary, 0, [counted(COUNTED), *primary.blocks(MANY)])
    primary.copy_to(backup)
    backup.assign(placed([OTHER], 1))

    assert tallied(backup) == tallied(primary) == [(ALL, 7, (COUNTED,))]


def backup_of(**options: Any) -> Node:
    return Node(placement=placed([ME], 0, other=ALL), node=OTHER, **options)


def test_a_replayed_log_has_its_tallies() -> None:
    backup = backup_of(durability="interval")
    blocks = [counted(COUNTED), *backup.blocks(MANY)]
    backup.machine.take_log(backup.feed(0, copy=True), blocks, end_of(blocks))
    backup.assign(placed([OTHER], 1))
    assert backup.replay() == 1

    assert tallied(backup) == [(ALL, 7, (COUNTED,))]


def test_a_reduction_gets_the_clock_and_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.commit(0, MANY)
    units: list[UnitContext] = []

    def reduce(blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[Any]:
        units.append(unit)
        row = {KEY: ["a"], WINDOW: pa.array([0], pa.int32()), "n": [1], TIME: [5]}
        return Reduced({}, [pa.record_batch(row)], 1)

    monkeypatch.setattr(node.store.operators[JOB], "reduce", reduce)
    work = node.machine.begin(node.feed(1, clock=CLOCK), [], end_of([]))
    assert not isinstance(work, list)
    _, receipt = node.machine.reduce(work)

    assert [(unit.clock, unit.epoch) for unit in units] == [(CLOCK, 1)]
    assert receipt.output == pa.schema([(KEY, pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize("replayed", [False, True])
def test_late_records_of_a_reduction_are_returned_and_counted(
    monkeypatch: pytest.MonkeyPatch, replayed: bool
) -> None:
    node = backup_of(durability="interval")
    operator = node.store.operators[JOB]
    plain = operator.reduce
    late = pa.record_batch({KEY: ["a"], "note": ["x"]})

    def reduce(blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[Any]:
        reduced = plain(blocks, unit)
        outputs = with_late(reduced.outputs, [late])
        return replace(reduced, outputs=outputs, tallies=(Tally(4, late=1),))

    monkeypatch.setattr(operator, "reduce", reduce)
    blocks = [counted(COUNTED), *node.blocks(MANY)]
    if replayed:
        node.machine.take_log(node.feed(0, copy=True), blocks, end_of(blocks))
    node.assign(placed([OTHER], 1))
    node.replay()
    feed = node.feed(0, attempt=7)
    work = node.machine.begin(feed, blocks, end_of(blocks))
    if isinstance(work, Work):
        assert not replayed
        work, _ = node.machine.freeze(work, *node.machine.reduce(work))

    [output] = work
    results, found = unpacked(output)
    assert found == [late] and sum(batch.num_rows for batch in results) == len(MANY)
    assert tallied(node) == [(ALL, 7, (COUNTED + Tally(4, late=1),))]
    [receipt] = node.receipts(0).receipts
    assert receipt.outputs == len(MANY)

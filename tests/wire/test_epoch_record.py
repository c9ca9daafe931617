from __future__ import annotations

import pickle
from dataclasses import replace

from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.wire.commit import NOTHING_COMMITTED, Commit
from millstream.wire.epoch_record import EpochRecord


def record_of(*partitions: int) -> EpochRecord:
    placement = Placement.alone(Ring.even([NodeId("a")], 16))
    record = EpochRecord(1, 0, 0, NOTHING_COMMITTED, 0, placement, {}, partitions=partitions)
    return record


def test_a_partition_reaches_up_to_the_next_and_the_last_up_to_the_last_slot() -> None:
    record = record_of(0, 3, 4)

    assert [record.slots_of(at) for at in range(3)] == [range(3), range(3, 4), range(4, 16)]


def test_a_single_partition_has_all_slots() -> None:
    assert record_of(0).slots_of(0) == range(16)


def test_a_task_with_the_same_routing_completes_a_record_from_its_update() -> None:
    known = record_of(0, 3, 4)
    record = replace(known, epoch=7, try_=2, time=70, committed=Commit(6, 1), logs=True)

    update = pickle.loads(pickle.dumps(record.update))

    assert record.routing == known.routing
    assert update.of(known) == record


def test_another_placement_or_another_cut_is_another_routing() -> None:
    record = record_of(0, 3, 4)
    moved = replace(record, placement=record.placement.at(5))

    assert record.routing != moved.routing
    assert moved.routing != replace(moved, cut_from=5).routing

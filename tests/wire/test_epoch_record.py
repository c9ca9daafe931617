from __future__ import annotations

from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring
from millstream.wire.commit import NOTHING_COMMITTED
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

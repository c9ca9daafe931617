from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millstream.node.held_units import Block, Unit, Work, covered
from millstream.node.pending_epochs import PendingEpochs
from millstream.ring.masks import runs_of
from millstream.state.blocks import Origin
from millstream.wire.commit import Commit
from millstream.wire.feed import Feed
from millstream.wire.receipts import Receipt
from tests.node.machines import HIGH, LOW, mask_of

JOBS = (1, 2)
SLOTS = 16
EVERY = range(SLOTS)


def unit(job: int, slots: range, data: bytes | None = None) -> Unit:
    """A unit whose effect is known, or with data the log of one."""
    receipt = Receipt(job, 0, 0, slots, "digest", 0, 0, 0, 0.0, None, None)
    if data is None:
        return Unit(receipt, delta=b"")
    feed = Feed(1, job, 0, 0, 0, 0, slots, Commit(-1, 0), 0, copy=True)
    return Unit(receipt, log=Work(feed, [Block(Origin(0, 0, 0), pa.py_buffer(data))], "digest"))


def both(slots: range) -> list[Unit]:
    return [unit(job, slots) for job in JOBS]


def pending_with(**oldest_first: list[Unit]) -> PendingEpochs:
    """Pending epochs with the units of epochs ``e0``, ``e1`` …"""
    pending_epochs = PendingEpochs(JOBS, SLOTS)
    for name, units in oldest_first.items():
        pending_epochs.put(int(name[1:]), units)
    return pending_epochs


def reach(pending_epochs: PendingEpochs, *through: int) -> list[int]:
    """The reach of slots at these epochs; the last one counts for all others."""
    values = np.full(SLOTS, through[-1], dtype=np.int64)
    values[: len(through)] = through
    return [int(value) for value in pending_epochs.reach(values)[: len(through)]]


def test_pending_epochs_are_ordered() -> None:
    pending_epochs = pending_with(e3=[], e1=[], e2=[])

    assert [pending_epoch.epoch for pending_epoch in pending_epochs.oldest_first()] == [1, 2, 3]


def test_reach_ends_at_the_first_gap() -> None:
    pending_epochs = pending_with(e1=both(EVERY), e2=both(EVERY), e4=both(EVERY))

    assert reach(pending_epochs, -2, -1, 0, 1, 2, 3, 4) == [-2, -1, 2, 2, 2, 4, 4]


def test_an_epoch_reaches_only_slots_of_which_every_job_has_a_unit() -> None:
    pending_epochs = pending_with(e0=[unit(1, EVERY), unit(2, LOW)])

    assert pending_epochs.reach(np.full(SLOTS, -1, dtype=np.int64)).tolist() == [0] * 8 + [-1] * 8


def test_reach_includes_logs() -> None:
    assert reach(pending_with(e0=[unit(1, EVERY, b"rows"), unit(2, EVERY)]), -1) == [0]


def test_reach_does_not_change_its_argument() -> None:
    through = np.full(SLOTS, -1, dtype=np.int64)

    pending_with(e0=both(EVERY)).reach(through)

    assert (through == -1).all()


def test_an_epoch_is_evicted_when_every_held_slot_has_passed_it() -> None:
    pending_epochs = pending_with(e0=both(EVERY), e1=both(EVERY), e2=both(EVERY))
    through = np.full(SLOTS, 1, dtype=np.int64)
    through[3] = 0

    pending_epochs.evict(mask_of(HIGH), through)
    assert [pending_epoch.epoch for pending_epoch in pending_epochs.oldest_first()] == [2]

    pending_epochs = pending_with(e0=both(EVERY), e1=both(EVERY), e2=both(EVERY))
    pending_epochs.evict(mask_of(LOW), through)
    assert [pending_epoch.epoch for pending_epoch in pending_epochs.oldest_first()] == [1, 2]


def test_a_held_slot_without_a_copy_retains_every_epoch() -> None:
    pending_epochs = pending_with(e0=both(EVERY))

    pending_epochs.evict(mask_of(range(0, 1)), np.full(SLOTS, -2, dtype=np.int64))
    assert len(list(pending_epochs.oldest_first())) == 1
    pending_epochs.clear()
    assert list(pending_epochs.oldest_first()) == []


def test_only_logs_take_log_bytes() -> None:
    pending_epochs = pending_with(
        e0=[unit(1, LOW, b"four"), unit(2, LOW)], e1=[unit(1, HIGH, b"six by"), unit(2, HIGH)]
    )

    assert pending_epochs.log_bytes == 10


# -- units -----------------------------------------------------------------------------------


def test_slots_are_covered_when_every_job_has_a_unit_there() -> None:
    units = [unit(1, LOW), unit(1, HIGH, b"x"), unit(2, range(4, 16))]

    assert (covered(units, JOBS, SLOTS, effective=False) == mask_of(range(4, 16))).all()
    assert (covered(units, JOBS, SLOTS, effective=True) == mask_of(range(4, 8))).all()
    assert not covered([], JOBS, SLOTS, effective=False).any()


def test_runs_are_the_stretches_of_set_flags_within_a_range() -> None:
    flags = mask_of(range(2, 4)) | mask_of(range(6, 9))

    assert list(runs_of(flags, EVERY)) == [range(2, 4), range(6, 9)]
    assert list(runs_of(flags, range(3, 7))) == [range(3, 4), range(6, 7)]
    assert list(runs_of(flags, range(2, 4))) == [range(2, 4)]
    assert list(runs_of(flags, range(4, 6))) == list(runs_of(flags, range(4, 4))) == []


def test_pending_epochs_can_be_read_during_changes() -> None:
    pending_epochs = pending_with(e0=both(EVERY), e1=both(EVERY))

    class Interrupted(list[Unit]):
        """Units during whose reading another thread evicts an epoch, and puts one."""

        def __iter__(self) -> Iterator[Unit]:
            pending_epochs.evict(mask_of(EVERY), np.zeros(SLOTS, dtype=np.int64))
            pending_epochs.put(2, [])
            pending_epochs.put(3, [])
            return super().__iter__()

    for pending_epoch in pending_epochs.oldest_first():
        pending_epoch.units = Interrupted([unit(1, EVERY, b"four")])

    assert pending_epochs.log_bytes == 8

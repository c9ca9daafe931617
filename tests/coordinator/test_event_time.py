"""Event time in the coordinator: fixed in records, counted from receipts, stored in manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from millstream.coordinator.commit_modes import CommitMode, EpochCommits
from millstream.coordinator.interval_commits import IntervalCommits, Triggers
from millstream.coordinator.journal import Journal
from millstream.coordinator.ledger import Ledger, PreparedEpoch
from millstream.coordinator.roster import Roster
from millstream.coordinator.run_context import RunContext
from millstream.coordinator.wait_log import WaitLog
from millstream.coordinator.watermarks import Counted, Watermarks
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.sim import World
from millstream.times import BEGINNING, END
from millstream.wire.persistence import Persist, Persisted
from millstream.wire.receipts import Receipt
from millstream.work.job_clock import JobClock, Tally
from tests.checkpoints.memory_store import MemoryStore
from tests.coordinator import journals
from tests.coordinator.receipts import HIGH, JOBS, LOW, WORDS, A, B, receipt, receipts_of, roster_of
from tests.coordinator.timings import FIRST, LATENESS, LEFT, SECOND, seen, timing, tracked

TIMINGS = (timing(tracked(LEFT), job=WORDS),)


def ledger_of(roster: Roster | None = None, **options: Any) -> Ledger:
    return Ledger(
        5,
        {WORDS: JOBS[WORDS]},
        roster or roster_of(A, B),
        dict,
        {},
        clocks=Watermarks(TIMINGS),
        **options,
    )


def commit(ledger: Ledger, *low: Tally, high: tuple[Tally, ...] = ()) -> PreparedEpoch:
    record = ledger.record
    assert record is not None
    at = {"epoch": record.epoch, "try_": record.try_}
    ledger.receive(A, receipts_of(receipt(LOW, tallies=low, keys=3, **at)))
    ledger.receive(B, receipts_of(receipt(HIGH, tallies=high, keys=4, **at)))
    prepared = ledger.prepare()
    ledger.commit(prepared)
    return prepared


# -- records -----------------------------------------------------------------------------------


def test_the_clocks_of_an_epoch_are_fixed_at_its_admission() -> None:
    ledger = ledger_of()
    assert ledger.admit(0, 0).clocks[WORDS].watermark == BEGINNING
    commit(ledger, seen(LEFT, 100), high=(seen(LEFT, 70),))

    record = ledger.admit(1, SECOND)
    assert record.clocks[WORDS].watermark == 100 * SECOND - LATENESS
    ledger.advance(500 * SECOND)
    assert ledger.retry().clocks == record.clocks
    ledger.replace_placement()
    assert ledger.record is not None and ledger.record.clocks == record.clocks


def test_an_advance_is_for_the_next_epoch_to_be_admitted() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    ledger.advance(500 * SECOND)
    ledger.advance(400 * SECOND)
    commit(ledger, seen(LEFT, 100))

    assert ledger.admit(1, SECOND).clocks[WORDS].watermark == 500 * SECOND
    commit(ledger, seen(LEFT, 600))
    assert ledger.admit(2, SECOND).clocks[WORDS].watermark == 600 * SECOND - LATENESS


def test_the_time_of_epochs_is_monotonic() -> None:
    ledger = ledger_of()
    ledger.admit(0, 50)
    commit(ledger)

    assert ledger.admit(1, 20).time == 50
    commit(ledger)
    assert ledger.admit(2, 60).time == 60


def test_an_epoch_that_does_not_commit_counts_for_nothing() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    at = {"epoch": 0, "try_": 0}
    ledger.receive(A, receipts_of(receipt(LOW, tallies=(seen(LEFT, 900),), **at)))
    ledger.receive(B, receipts_of(receipt(HIGH, **at)))
    ledger.prepare()
    ledger.retry()
    commit(ledger, seen(LEFT, 100))

    assert ledger.admit(1, SECOND).clocks[WORDS].watermark == 100 * SECOND - LATENESS


# -- receipts ----------------------------------------------------------------------------------


def test_counts_of_owners_are_summed() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)

    prepared = commit(ledger, seen(LEFT, 100, late=2), high=(seen(LEFT, 70, ahead=1, rows=4),))

    assert prepared.counted == {WORDS: Counted((Tally(LEFT, 5, 100 * SECOND, 2, 1),), 7)}
    assert prepared.counted[WORDS].total == Tally(-1, 5, 100 * SECOND, 2, 1)


def test_only_the_owner_of_the_first_slot_counts_a_unit() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    at = {"epoch": 0, "try_": 0}
    everything = receipt(range(0, 8), tallies=(seen(LEFT, 100),), **at)
    ledger.receive(A, receipts_of(everything))
    ledger.receive(B, receipts_of(everything))  # owns only the upper half

    assert ledger.prepare().counted[WORDS].total.rows == 1


# -- the store ---------------------------------------------------------------------------------

DURABLE = (timing(tracked(LEFT), job=FIRST),)


class Driver:
    """The ledger and the commits of one incarnation."""

    def __init__(self, world: World, journal: Journal, *, intervals: bool) -> None:
        self.world = world
        self.net = world.process(f"driver {journal.incarnation}")
        nodes = {n: Domain("zone", str(n), "executor") for n in (journals.A, journals.B)}
        self.roster, self.waits = Roster(nodes, journals.SLOTS, 0), WaitLog(self.net)
        self.is_over = False
        self.commits: CommitMode = (
            IntervalCommits(cast(RunContext, self), journal, Triggers(seconds=1e9), lambda _: None)
            if intervals
            else EpochCommits(self.net, journal)
        )
        self.ledger = Ledger(
            self.commits.incarnation,
            {FIRST: "count"},
            self.roster,
            lambda: {n: str(n) for n in nodes},
            {},
            committed=self.commits.committed,
            clocks=self.commits.clocks(DURABLE),
        )

    @property
    def rpc(self) -> Driver:
        return self

    def call_living(
        self, nodes: Iterable[NodeId], living: object, request: Persist, timeout: float
    ) -> dict[NodeId, Any]:
        return {journals.A: Persisted((), (), (journals.ALL,))}

    def epoch(self, at: float, event: float) -> JobClock:
        ledger = self.ledger
        record = ledger.admit(ledger.committed.epoch + 1, round(at * SECOND))
        for node in (journals.A, journals.B):
            owned = ledger._roster.placement.owned(node).nonzero()[0]
            slots = range(int(owned[0]), int(owned[-1]) + 1)
            counted = (seen(LEFT, event),) if slots.start == 0 else ()
            mine = Receipt(FIRST, record.epoch, 0, slots, "digest", 1, tallies=counted)
            ledger.receive(node, receipts_of(mine, reach=record.epoch - 1))
        prepared = ledger.prepare()
        self.commits.commit(prepared, journals.staged(record.epoch, ledger.incarnation))
        ledger.commit(prepared)
        return record.clocks[FIRST]

    def finish(self) -> None:
        self.world.run(self.commits.finish, f"driver {self.commits.incarnation}", 1e6)


@pytest.fixture
def world() -> Iterator[World]:
    with World(3) as running:
        yield running


@pytest.mark.parametrize("intervals", [False, True])
def test_a_restart_resumes_with_the_clocks_of_the_newest_manifest(
    world: World, intervals: bool
) -> None:
    store = MemoryStore()
    first = Driver(world, journals.journal_of(store), intervals=intervals)
    for at in range(3):
        first.epoch(at, 100 + at)
    first.finish()

    second = Driver(world, journals.journal_of(store), intervals=intervals)

    assert second.ledger.clocks == first.ledger.clocks
    assert second.epoch(3, 200) == JobClock(
        101 * SECOND - LATENESS,
        102 * SECOND - LATENESS,
        {LEFT: 3 * SECOND + DURABLE[0].tracked[0].max_ahead},
    )


def test_epochs_that_were_committed_in_memory_alone_run_again_with_the_same_clocks(
    world: World,
) -> None:
    store = MemoryStore()
    first = Driver(world, journals.journal_of(store), intervals=True)
    for at in range(3):
        first.epoch(at, 100 + at)
    first.finish()
    lost = [first.epoch(at, 100 + at) for at in range(3, 6)]

    second = Driver(world, journals.journal_of(store), intervals=True)

    assert second.ledger.committed.epoch == 2
    assert [second.epoch(at, 100 + at) for at in range(3, 6)] == lost


def test_a_rewind_restores_the_clocks(world: World) -> None:
    store = MemoryStore()
    first = Driver(world, journals.journal_of(store), intervals=False)
    clocks = [first.epoch(at, 100 + at) for at in range(4)]

    second = Driver(world, journals.journal_of(store, after=1), intervals=False)

    assert second.epoch(2, 102) == clocks[2]


def test_after_the_end_time_continues_after_the_closed_windows(world: World) -> None:
    store = MemoryStore()
    first = Driver(world, journals.journal_of(store), intervals=False)
    first.ledger.advance(END)
    assert first.epoch(0, 100).watermark == END

    second = Driver(world, journals.journal_of(store), intervals=False)

    clock = second.epoch(1, 101)
    # The newest value was of 100 s, and windows are of 10 s.
    assert replace(clock, limits={}) == JobClock(110 * 10**6, 110 * 10**6)

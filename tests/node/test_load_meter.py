"""The load meter of a node, with clocks that tests move and blocks as map tasks pack them."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.load_monitor import LoadMonitor
from millstream.elastic.load import Load
from millstream.errors import ConfigError
from millstream.node.load_meter import At, LoadMeter, MeterOptions
from millstream.ring.hashing import slot_of_key
from millstream.ring.key_types import STRING
from millstream.ring.masks import runs_of
from millstream.ring.ring import NodeId
from millstream.state.blocks import slices
from millstream.wire.load_report import (
    FIGURE,
    MOST_KEYS,
    ReportedJob,
    ReportedKey,
    ReportedLoad,
    packed_runs,
)
from millstream.wire.receipts import NodeReport
from tests.node.machines import HIGH, HISTORY, JOB, LOW, mask_of
from tests.work.running import SLOTS, blocks_of_pairs

OTHER_JOB = 4
JOBS = {JOB: HISTORY, OTHER_JOB: HISTORY}
ALL = range(SLOTS)
EVERY = mask_of(ALL)
KEYS = st.text("abcdef", min_size=1, max_size=2)
PAIRS = st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=40)
# No more keys than a node reports.
REPORTED_KEYS = st.text("abc", min_size=1, max_size=2)
REPORTED_PAIRS = st.lists(st.tuples(REPORTED_KEYS, st.integers(0, 3)), max_size=40)


def at(epoch: int, try_: int = 0, incarnation: int = 1) -> At:
    return incarnation, epoch, try_


class Metered:
    """A meter, and the clocks that it reads."""

    def __init__(self, **options: Any) -> None:
        self.now = self.cpu = 0.0
        self.meter = LoadMeter(
            JOBS, SLOTS, lambda: self.now, lambda: self.cpu, MeterOptions(**options)
        )

    def reduce(
        self, when: At, pairs: list[Any], seconds: float = 1.0, slots: range = ALL, job: int = JOB
    ) -> None:
        blocks = [
            rows
            for block in blocks_of_pairs(HISTORY, pairs)
            for _, rows in slices(block, [slots.start, slots.stop])
        ]
        self.meter.reduced(when, job, slots, blocks, seconds)

    def report(
        self, when: At, owned: Any = EVERY, keys: Any = None, stored: float = 0.0
    ) -> ReportedLoad:
        none = np.zeros(int(owned.sum()), np.int64)
        return self.meter.report(when, owned, dict.fromkeys(JOBS, none) | (keys or {}), stored)


def job_in(report: ReportedLoad, job: int = JOB) -> ReportedJob:
    return next(of_job for of_job in report.jobs if of_job.job == job)


def figures(data: bytes) -> Any:
    return np.frombuffer(data, FIGURE)


def slot_of(key: str) -> int:
    slot = slot_of_key(key, STRING, SLOTS)
    assert slot is not None
    return slot


# -- units -----------------------------------------------------------------------------------


@given(units=st.lists(st.tuples(PAIRS, st.floats(0.001, 10.0)), min_size=1, max_size=4))
def test_tuples_and_seconds_of_the_slots_add_up_to_those_of_the_units(units: list[Any]) -> None:
    metered = Metered()
    for pairs, seconds in units:
        metered.reduce(at(0), pairs, seconds)

    found = job_in(metered.report(at(0)))

    truth = Counter(slot_of(key) for pairs, _ in units for key, _ in pairs)
    tuples = figures(found.tuples) if truth else np.zeros(SLOTS)
    assert {slot: count for slot, count in enumerate(tuples.tolist()) if count} == truth
    assert figures(found.seconds).sum() == pytest.approx(sum(seconds for _, seconds in units))


def test_a_slot_costs_by_its_tuples_and_by_its_keys() -> None:
    few, many = "a", next(key for key in "bcdefgh" if slot_of(key) != slot_of("a"))
    metered = Metered()

    metered.reduce(at(0), [(few, 1)] + [(many, 1)] * 5, seconds=8.0)

    seconds = figures(job_in(metered.report(at(0))).seconds)
    assert seconds[slot_of(few)] == pytest.approx(2.0)  # one tuple, one key
    assert seconds[slot_of(many)] == pytest.approx(6.0)  # five tuples, one key


def test_the_cost_of_a_unit_without_rows_is_divided_equally() -> None:
    metered = Metered()

    metered.reduce(at(0), [], seconds=1.0, slots=LOW)

    expected = [1 / len(LOW) if slot in LOW else 0.0 for slot in ALL]
    assert figures(job_in(metered.report(at(0))).seconds).tolist() == expected


def test_only_owned_slots_are_reported() -> None:
    metered = Metered()
    metered.reduce(at(0), [(key, 1) for key in "abcdefghijkl"], slots=ALL)

    whole = metered.report(at(0))
    part = metered.report(at(0), mask_of(HIGH))

    assert (whole.slots, part.slots) == (packed_runs([ALL]), packed_runs([HIGH]))
    cut = slice(HIGH.start, HIGH.stop)
    assert figures(job_in(part).tuples).tolist() == figures(job_in(whole).tuples)[cut].tolist()
    assert figures(job_in(part).seconds).tolist() == figures(job_in(whole).seconds)[cut].tolist()


def test_jobs_are_counted_apart() -> None:
    metered = Metered()
    metered.reduce(at(0), [("a", 1)] * 3)
    metered.reduce(at(0), [("a", 1)] * 5, job=OTHER_JOB)

    report = metered.report(at(0))

    assert figures(job_in(report).tuples).sum() == 3
    assert figures(job_in(report, OTHER_JOB).tuples).sum() == 5


def test_a_report_is_the_same_whenever_it_is_asked_for() -> None:
    metered = Metered()
    metered.reduce(at(0), [("a", 1)])
    metered.now, metered.cpu = 4.0, 1.0
    first = metered.report(at(0))
    metered.now, metered.cpu = 9.0, 3.0

    assert metered.report(at(0)) == first


def test_units_that_come_after_a_report_are_in_the_next_one() -> None:
    metered = Metered()
    metered.reduce(at(0), [("a", 1)], slots=LOW)
    metered.report(at(0))
    metered.reduce(at(0), [(key, 1) for key in "abcdefghijkl"], slots=HIGH)

    assert figures(job_in(metered.report(at(0))).tuples).sum() > 1


@pytest.mark.parametrize("newer", [at(1), at(0, try_=1), at(0, incarnation=2)])
def test_a_newer_epoch_or_try_voids_what_was_counted(newer: At) -> None:
    metered = Metered()
    metered.reduce(at(0), [("a", 1)] * 7)
    metered.reduce(newer, [("a", 1)] * 2)

    assert figures(job_in(metered.report(newer)).tuples).sum() == 2


def test_the_replay_of_an_earlier_epoch_is_not_load() -> None:
    metered = Metered()
    metered.reduce(at(5), [("a", 1)] * 2)
    metered.reduce(at(4), [("a", 1)] * 7)

    assert figures(job_in(metered.report(at(5))).tuples).sum() == 2


def test_a_node_that_was_not_fed_reports_no_tuples() -> None:
    metered = Metered()
    metered.reduce(at(0), [("a", 1)])

    found = job_in(metered.report(at(1)))

    assert (found.tuples, found.seconds, found.hot_keys) == (b"", b"", ())


@given(slots=st.sets(st.integers(0, SLOTS - 1)), keys=st.integers(1, 50))
def test_the_size_of_a_report_is_bounded_by_the_owned_slots(slots: set[int], keys: int) -> None:
    owned = np.isin(np.arange(SLOTS), list(slots))
    metered = Metered()
    for job in JOBS:
        metered.reduce(at(0), [("x" * 500 + str(key), 1) for key in range(keys)], job=job)

    counts = np.ones(len(slots), np.int64)
    report = metered.report(at(0), owned, dict.fromkeys(JOBS, counts))

    per_slot = 3 * FIGURE.itemsize * len(JOBS) + 20  # and its run, if it is alone
    hot = len(JOBS) * MOST_KEYS * 150
    assert len(pickle.dumps(report, 5)) < 1_000 + per_slot * len(slots) + hot


# -- bytes of state --------------------------------------------------------------------------


def test_state_is_estimated_from_its_keys_and_the_bytes_of_encoded_ones() -> None:
    metered = Metered()
    keys = np.arange(SLOTS)
    metered.meter.encoded(JOB, keys=10, size=2_000)

    report = metered.report(at(0), keys={JOB: keys, OTHER_JOB: keys})

    assert figures(job_in(report).state_bytes).tolist() == (200 * keys).tolist()
    assert figures(job_in(report, OTHER_JOB).state_bytes).tolist() == (64 * keys).tolist()


def test_newer_deltas_count_more_for_the_bytes_of_a_key() -> None:
    metered = Metered()
    metered.meter.encoded(JOB, keys=0, size=100)
    metered.meter.encoded(JOB, keys=10, size=1_000)
    for _ in range(50):
        metered.meter.encoded(JOB, keys=10, size=5_000)

    report = metered.report(at(0), keys={JOB: np.ones(SLOTS, np.int64)})

    assert figures(job_in(report).state_bytes)[0] == pytest.approx(500, rel=0.01)


# -- feeds that wait -------------------------------------------------------------------------


class Lock:
    """A lock that is free after some seconds, in which others had their turn."""

    def __init__(self, metered: Metered, *others: tuple[int, float]) -> None:
        self._metered, self._others = metered, others

    def __enter__(self) -> None:
        for job, seconds in self._others:
            with self._metered.meter.turn(at(0), job, nullcontext()):
                self._metered.now += seconds

    def __exit__(self, *exc: object) -> None:
        """Nobody else waits."""


def test_a_feed_that_waits_counts_as_queue_and_by_job() -> None:
    metered = Metered()

    with metered.meter.turn(at(0), JOB, Lock(metered, (JOB, 2.0), (OTHER_JOB, 3.0))):
        metered.now += 10.0

    report = metered.report(at(0))
    assert report.queue_seconds == 5.0
    assert report.waits == {(JOB, JOB): 2.0, (JOB, OTHER_JOB): 3.0}
    assert report.most_waiting == 1


def test_of_a_turn_under_way_only_the_rest_is_waited_for() -> None:
    metered = Metered()
    running = metered.meter.turn(at(0), OTHER_JOB, nullcontext())
    running.__enter__()
    metered.now += 3.0

    class Rest:
        def __enter__(self) -> None:
            metered.now += 1.0
            running.__exit__(None, None, None)

        def __exit__(self, *exc: object) -> None:
            """Nobody else waits."""

    with metered.meter.turn(at(0), JOB, Rest()):
        pass

    assert metered.report(at(0)).waits == {(JOB, OTHER_JOB): 1.0}


def test_a_wait_for_other_work_is_no_wait_for_a_job() -> None:
    metered = Metered()

    class Merge:
        def __enter__(self) -> None:
            metered.now += 4.0

        def __exit__(self, *exc: object) -> None:
            """Nobody else waits."""

    with metered.meter.turn(at(0), JOB, Merge()):
        pass
    with metered.meter.waiting(at(0)):
        metered.now += 2.0

    report = metered.report(at(0))
    assert (report.queue_seconds, report.waits) == (6.0, {})


def test_a_free_node_has_no_queue() -> None:
    metered = Metered()
    for _ in range(3):
        with metered.meter.turn(at(0), JOB, nullcontext()):
            metered.now += 1.0

    report = metered.report(at(0))
    assert (report.queue_seconds, report.waits, report.most_waiting) == (0.0, {}, 0)


def test_a_turn_ends_with_an_error() -> None:
    metered = Metered()
    with pytest.raises(ValueError), metered.meter.turn(at(0), JOB, nullcontext()):
        metered.now += 1.0
        raise ValueError
    metered.now += 5.0

    with metered.meter.turn(at(0), JOB, nullcontext()):
        pass

    assert metered.report(at(0)).waits == {}


def test_the_seconds_of_feeds_are_added_up_but_for_those_that_fail() -> None:
    metered = Metered()
    for seconds in (1.0, 2.5):
        with metered.meter.feed(at(0)):
            metered.now += seconds
    with pytest.raises(ValueError), metered.meter.feed(at(0)):
        metered.now += 9.0
        raise ValueError

    assert metered.report(at(0)).feed_seconds == 3.5


# -- in the background -----------------------------------------------------------------------


def test_cpu_copies_and_store_are_measured_from_one_epoch_to_the_next() -> None:
    metered = Metered()
    metered.now, metered.cpu = 50.0, 20.0  # the start of the process
    metered.reduce(at(0), [("a", 1)])
    metered.now, metered.cpu = 51.0, 20.5
    metered.meter.copied(0.25)
    first = metered.report(at(0), stored=0.125)
    metered.now, metered.cpu = 53.0, 22.0
    second = metered.report(at(1), stored=1.125)

    assert (first.seconds, first.cpu_seconds) == (1.0, 0.5)
    assert (first.copy_seconds, first.store_seconds) == (0.25, 0.125)
    assert (second.seconds, second.cpu_seconds) == (2.0, 1.5)
    assert (second.copy_seconds, second.store_seconds) == (0.0, 1.0)


# -- hot keys --------------------------------------------------------------------------------


def test_the_largest_keys_are_reported_with_their_tuples() -> None:
    metered = Metered(hot_share=0.2)
    pairs = [("hot", 1)] * 60 + [(str(number), 1) for number in range(60)]
    metered.reduce(at(0), pairs)
    metered.reduce(at(0), [("hot", 1)] * 30)

    [hot] = job_in(metered.report(at(0))).hot_keys

    assert hot == ReportedKey("'hot'", slot_of("hot"), 90)


def test_no_more_than_so_many_keys_are_reported() -> None:
    metered = Metered()
    for task in range(2):
        metered.reduce(at(0), [(f"{task} {key}", 1) for key in range(MOST_KEYS)])

    assert len(job_in(metered.report(at(0))).hot_keys) == MOST_KEYS


def test_keys_of_slots_that_moved_away_are_not_reported() -> None:
    metered = Metered()
    metered.reduce(at(0), [("hot", 1)] * 60)
    owned = EVERY.copy()
    owned[slot_of("hot")] = False

    assert job_in(metered.report(at(0), owned)).hot_keys == ()


@given(st.dictionaries(KEYS, st.integers(1, 60), min_size=1, max_size=12))
def test_every_key_with_the_share_is_reported(counts: dict[str, int]) -> None:
    metered = Metered(hot_share=0.1)
    metered.reduce(at(0), [(key, 1) for key, count in counts.items() for _ in range(count)])

    found = job_in(metered.report(at(0))).hot_keys

    least = 0.1 * sum(counts.values())
    expected = {(repr(key), count) for key, count in counts.items() if count >= least}
    assert {(key, tuples) for key, _, tuples in found} == expected


def test_a_share_that_no_key_can_have_is_rejected() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="hot_share"):
            MeterOptions(hot_share=share)


# -- with the coordinator --------------------------------------------------------------------


@given(
    epochs=st.lists(
        st.tuples(REPORTED_PAIRS, st.lists(st.booleans(), min_size=SLOTS, max_size=SLOTS)),
        min_size=1,
        max_size=5,
    )
)
def test_the_load_of_slots_is_the_same_whoever_owns_them(epochs: list[Any]) -> None:
    """Two nodes that pass slots to each other are seen as one that owns all of them."""
    alone, nodes = Metered(), {NodeId("one"): Metered(), NodeId("two"): Metered()}
    monitors = [LoadMonitor(lambda: 0.0) for _ in range(2)]
    for monitor in monitors:
        monitor.begin({JOB: "job", OTHER_JOB: "other"}, SLOTS)
    seen: list[Load] = []
    for epoch, (pairs, chosen) in enumerate(epochs):
        first = np.array(chosen)
        shares = dict(zip(nodes, (first, ~first), strict=True))
        for node, owned in shares.items():
            for run in runs_of(owned):
                nodes[node].reduce(at(epoch), pairs, len(run), run)
        for run in sorted((run for owned in shares.values() for run in runs_of(owned)), key=min):
            alone.reduce(at(epoch), pairs, len(run), run)
        reports = {
            node: NodeReport(load=nodes[node].report(at(epoch), owned))
            for node, owned in shares.items()
        }
        whole = {NodeId("alone"): NodeReport(load=alone.report(at(epoch)))}
        seen = [
            monitor.add(epoch, given)
            for monitor, given in zip(monitors, (reports, whole), strict=True)
        ]

    divided, single = seen
    assert divided.tuples.tolist() == single.tuples.tolist()
    assert divided.seconds.tolist() == single.seconds.tolist()
    assert divided.hot_keys == single.hot_keys

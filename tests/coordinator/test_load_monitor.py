from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.load_monitor import LoadMonitor, LoadOptions
from millstream.elastic.load import Load
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId
from millstream.wire.load_report import ReportedJob, ReportedKey, ReportedLoad, packed_runs
from millstream.wire.receipts import NodeReport
from tests.coordinator.receipts import HIGH, JOBS, LOW, PAIRS, SLOTS, WORDS, A, B

C = NodeId("c")
DECAY = 0.5
FIGURES = st.lists(st.integers(0, 1000).map(float), min_size=SLOTS, max_size=SLOTS)


class Monitored:
    """A monitor with a clock that tests move."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.monitor = LoadMonitor(lambda: self.now, LoadOptions(**{"half_life": 1.0, **options}))
        self.monitor.begin(JOBS, SLOTS)
        self.epoch = 0

    def add(self, reports: Mapping[NodeId, NodeReport], seconds: float = 1.0) -> Load:
        self.monitor.admit()
        self.now += seconds
        self.epoch += 1
        return self.monitor.add(self.epoch, reports)


def report(
    slots: range | tuple[range, ...] = (),
    tuples: Any = None,
    *,
    job: int = WORDS,
    seconds: Any = None,
    state_bytes: Any = None,
    hot: tuple[ReportedKey, ...] = (),
    memory: int = 0,
    **options: Any,
) -> NodeReport:
    """The report of a node; figures are for all slots, or one for each that it owns."""
    runs = (slots,) if isinstance(slots, range) else slots
    owned = [slot for run in runs for slot in run]

    def part(values: Any) -> Any:
        if values is None:
            return None
        found = np.broadcast_to(np.asarray(values, float), (SLOTS,))
        return found[owned]

    of_job = ReportedJob.of(
        job,
        tuples=part(tuples),
        seconds=part(seconds),
        state_bytes=part(state_bytes),
        hot_keys=hot,
    )
    return NodeReport(
        memory=memory, load=ReportedLoad(slots=packed_runs(runs), jobs=(of_job,), **options)
    )


# -- slots -----------------------------------------------------------------------------------


def test_slots_have_the_figures_of_their_owners() -> None:
    load = Monitored().add(
        {
            A: report(LOW, tuples=range(SLOTS), seconds=2.0, state_bytes=100.0),
            B: report(HIGH, tuples=range(SLOTS), seconds=3.0, state_bytes=200.0),
        }
    )

    assert load.tuples.tolist() == list(range(SLOTS))
    assert load.seconds.tolist() == [2.0] * len(LOW) + [3.0] * len(HIGH)
    assert load.state_bytes.tolist() == [100.0] * len(LOW) + [200.0] * len(HIGH)


def test_a_node_may_own_several_runs_of_slots() -> None:
    load = Monitored().add(
        {
            A: report((range(0, 1), range(3, 5)), tuples=range(SLOTS)),
            B: report((range(1, 3), range(5, SLOTS)), tuples=range(SLOTS)),
        }
    )

    assert load.tuples.tolist() == list(range(SLOTS))
    assert (load.nodes[A].tuples, load.nodes[B].tuples) == (0 + 3 + 4, 1 + 2 + 5 + 6 + 7)


def test_the_load_of_jobs_is_added_up_and_shown_by_name() -> None:
    words = report(range(SLOTS), tuples=1.0, seconds=0.5)
    pairs = report(range(SLOTS), tuples=2.0, seconds=0.25, job=PAIRS)
    assert words.load is not None and pairs.load is not None
    both = ReportedLoad(slots=packed_runs([range(SLOTS)]), jobs=words.load.jobs + pairs.load.jobs)

    load = Monitored().add({A: NodeReport(load=both)})

    assert load.tuples.tolist() == [3.0] * SLOTS
    assert load.seconds.tolist() == [0.75] * SLOTS
    assert load.jobs["words"].tuples.tolist() == [1.0] * SLOTS
    assert load.jobs["pairs"].seconds.tolist() == [0.25] * SLOTS


@given(owners=st.lists(st.sampled_from([A, B, C]), min_size=SLOTS, max_size=SLOTS), figures=FIGURES)
def test_what_nodes_have_adds_up_to_what_slots_have(
    owners: list[NodeId], figures: list[float]
) -> None:
    runs = {
        node: tuple(range(slot, slot + 1) for slot in range(SLOTS) if owners[slot] == node)
        for node in (A, B, C)
    }

    load = Monitored().add(
        {
            node: report(slots, figures, seconds=figures, state_bytes=figures)
            for node, slots in runs.items()
        }
    )

    nodes = load.nodes.values()
    assert load.tuples.tolist() == load.seconds.tolist() == figures
    assert sum(node.tuples for node in nodes) == sum(figures)
    assert sum(node.reduce_seconds for node in nodes) == sum(figures)
    assert sum(node.state_bytes for node in nodes) == sum(figures)


@given(
    owners=st.lists(st.lists(st.sampled_from([A, B, C]), min_size=SLOTS, max_size=SLOTS)),
    figures=st.lists(FIGURES, min_size=20, max_size=20),
)
def test_moved_slots_keep_their_load(owners: list[list[NodeId]], figures: list[Any]) -> None:
    moving, still = Monitored(), Monitored()
    for of_slots, values in zip(owners, figures, strict=False):
        runs = {
            node: tuple(range(slot, slot + 1) for slot in range(SLOTS) if of_slots[slot] == node)
            for node in (A, B, C)
        }
        moved = moving.add({node: report(slots, values) for node, slots in runs.items()})
        fixed = still.add({A: report(range(SLOTS), values)})

        assert moved.tuples.tolist() == fixed.tuples.tolist()


def test_slots_without_a_report_keep_their_load() -> None:
    monitored = Monitored()
    monitored.add({A: report(LOW, 5.0), B: report(HIGH, 7.0)})

    load = monitored.add({A: report(LOW, 5.0), B: NodeReport()})

    assert load.tuples.tolist() == [5.0] * len(LOW) + [7.0] * len(HIGH)
    assert list(load.nodes) == [A]


def test_the_size_of_state_is_the_newest_and_no_average() -> None:
    monitored = Monitored()
    monitored.add({A: report(range(SLOTS), state_bytes=8.0)})

    load = monitored.add({A: report(range(SLOTS), state_bytes=1_000.0)})

    assert load.state_bytes.tolist() == [1_000.0] * SLOTS
    assert load.nodes[A].state_bytes == SLOTS * 1_000


def test_the_speed_of_a_node_is_its_own_also_with_slots_of_another() -> None:
    monitored = Monitored()
    for _ in range(5):
        monitored.add({A: report(LOW, 10.0, seconds=1.0), B: report(HIGH, 10.0, seconds=4.0)})

    load = monitored.add({A: report(range(SLOTS), 10.0, seconds=1.0), B: report((), 0.0)})

    fast = load.nodes[A]
    assert fast.reduce_seconds / fast.tuples == pytest.approx(0.1)
    assert len(LOW) < fast.reduce_seconds < SLOTS  # half of the slots since one epoch only
    assert load.seconds[HIGH.start] > 1.0


# -- nodes -----------------------------------------------------------------------------------


def test_a_node_has_its_own_figures() -> None:
    load = Monitored().add(
        {
            A: NodeReport(
                memory=99,
                load=ReportedLoad(
                    seconds=2.0,
                    cpu_seconds=1.5,
                    queue_seconds=0.25,
                    most_waiting=3,
                    feed_seconds=0.5,
                    copy_seconds=0.125,
                    store_seconds=0.0625,
                    kind="8 x cpu",
                ),
            )
        }
    )

    node = load.nodes[A]
    assert (node.cpu, node.queue, node.waiting) == (0.75, 0.25, 3.0)
    assert (node.feed_seconds, node.copy_seconds, node.store_seconds) == (0.5, 0.125, 0.0625)
    assert (node.memory, node.kind, node.tuples) == (99, "8 x cpu", 0.0)


def test_a_node_that_joins_has_no_history_and_one_that_left_is_gone() -> None:
    monitored = Monitored()
    busy = NodeReport(load=ReportedLoad(seconds=1.0, cpu_seconds=1.0))
    idle = NodeReport(load=ReportedLoad(seconds=1.0, cpu_seconds=0.0))
    monitored.add({A: busy, B: busy})

    load = monitored.add({A: idle, C: idle})

    assert {node: found.cpu for node, found in load.nodes.items()} == {
        A: pytest.approx(DECAY / (1 + DECAY)),
        C: 0.0,
    }


def test_a_run_without_nodes_or_jobs_has_an_empty_load() -> None:
    monitor = LoadMonitor(lambda: 0.0)

    load = monitor.add(0, {A: NodeReport()})

    assert (dict(load.nodes), len(load.seconds), load.jobs) == ({}, 0, {})


# -- the run ---------------------------------------------------------------------------------


def test_an_epoch_takes_from_its_admission_to_its_commit() -> None:
    monitored = Monitored()
    monitored.add({}, seconds=3.0)
    monitored.now += 100.0

    load = monitored.add({}, seconds=6.0)

    assert load.epoch_seconds == pytest.approx((6.0 + DECAY * 3.0) / (1 + DECAY))
    assert (load.epoch, load.time) == (2, 109.0)


def test_pressure_is_the_time_of_an_epoch_over_that_in_which_its_input_arrived() -> None:
    monitored = Monitored()
    first = monitored.add({}, seconds=1.0)
    second = monitored.add({}, seconds=2.0)  # twice the input, which arrived during the first
    monitored.now += 1000.0
    idle = monitored.add({}, seconds=1.0)

    assert first.pressure == 1.0
    assert second.pressure == pytest.approx((2.0 + DECAY * 1.0) / (1.0 + DECAY * 1.0))
    assert idle.pressure < 0.1


def test_loads_have_the_backlog_that_was_reported_last() -> None:
    monitored = Monitored()
    before = monitored.add({}, seconds=1.0)
    monitored.monitor.report_backlog(2.5)
    after = monitored.add({}, seconds=1.0)

    assert (before.backlog, after.backlog) == (0.0, 2.5)


def test_waits_are_added_up_over_nodes_by_the_names_of_jobs() -> None:
    waits = [{(WORDS, PAIRS): 1.0}, {(WORDS, PAIRS): 2.0, (WORDS, WORDS): 4.0}]
    loads = [NodeReport(load=ReportedLoad(waits=found)) for found in waits]

    load = Monitored().add(dict(zip((A, B), loads, strict=True)))

    assert load.waits == {("words", "pairs"): 3.0, ("words", "words"): 4.0}


def test_hot_keys_have_their_share_of_the_tuples_on_all_nodes() -> None:
    load = Monitored(hot_share=0.1).add(
        {
            A: report(LOW, tuples=10.0, hot=(ReportedKey("'a'", 1, 20), ReportedKey("'b'", 2, 4))),
            B: report(HIGH, tuples=10.0, hot=(ReportedKey("'c'", 5, 8),)),
        }
    )

    found = [(hot.job, hot.key, hot.slot) for hot in load.hot_keys]
    assert found == [("words", "'a'", 1), ("words", "'c'", 5)]
    assert [hot.share for hot in load.hot_keys] == pytest.approx([0.25, 0.1])


def test_the_history_is_bounded_and_has_the_newest_last() -> None:
    monitored = Monitored(history=3, span=timedelta(seconds=1))
    for _ in range(5):
        monitored.add({A: report(range(SLOTS), 1.0)})

    assert [load.epoch for load in monitored.monitor.history] == [3, 4, 5]


def test_the_history_reaches_back_although_epochs_are_short() -> None:
    monitored = Monitored()
    for _ in range(2000):
        monitored.add({A: report(range(SLOTS), 1.0)}, seconds=0.1)

    history = monitored.monitor.history
    assert history[-1].epoch == 2000
    assert history[-1].time - history[0].time >= 120
    assert len(history) <= 120


def test_with_many_slots_the_history_is_shorter() -> None:
    monitor = LoadMonitor(lambda: 0.0, LoadOptions(span=timedelta(0)))
    monitor.begin(JOBS, 2**17)
    for epoch in range(20):
        monitor.add(epoch, {})

    assert 8 <= len(monitor.history) < 20


def test_a_load_never_changes() -> None:
    monitored = Monitored()
    first = monitored.add({A: report(range(SLOTS), 1.0, seconds=1.0, state_bytes=1.0)})
    monitored.add({A: report(range(SLOTS), 9.0, seconds=9.0, state_bytes=9.0)})

    figures = (first.tuples, first.seconds, first.state_bytes, first.jobs["words"].tuples)
    for found in figures:
        assert found.tolist() == [1.0] * SLOTS
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 5.0


@pytest.mark.parametrize(
    "option",
    [
        {"half_life": 0.0},
        {"history": 0},
        {"span": timedelta(-1)},
        {"hot_share": 0.0},
        {"hot_share": 1.1},
    ],
)
def test_options_out_of_range_are_rejected(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        LoadOptions(**option)

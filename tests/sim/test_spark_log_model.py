"""Spark's offset and commit logs in the simulator: which epochs run again with the same offsets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeVar

import pytest

from millstream.sim.network import World
from millstream.sim.spark_log_model import Cut, OffsetsMissingError, QueryLogsView, SimQueryLogs

T = TypeVar("T")
RECORDS = 60


def within(seed: int, work: Callable[[QueryLogsView], T]) -> T:
    with World(seed) as world:
        net = world.process("driver")
        logs = SimQueryLogs(world, RECORDS).view(net)
        return world.run(lambda: work(logs), "driver", 1e6)


def test_epochs_follow_each_other_to_the_end() -> None:
    def work(logs: QueryLogsView) -> list[Cut]:
        logs.derive(1, -1, None)
        return list(logs.query(1))

    cuts = within(1, work)

    assert [cut.epoch for cut in cuts] == list(range(len(cuts)))
    assert [cut.start for cut in cuts] == [0, *(cut.end for cut in cuts[:-1])]
    assert cuts[-1].end == RECORDS


def test_an_epoch_without_its_commit_runs_again_with_the_same_cut() -> None:
    def work(logs: QueryLogsView) -> None:
        logs.derive(1, -1, None)
        *_, last = islice(logs.query(1), 3)  # ended in the middle of epoch 2
        logs.derive(2, 1, 1)
        assert next(logs.query(2)) == last

    within(2, work)


def test_an_epoch_without_an_entry_in_the_commit_log_runs_again() -> None:
    def work(logs: QueryLogsView) -> None:
        logs.derive(1, -1, None)
        *_, last = islice(logs.query(1), 3)
        logs.derive(2, 2, 1)
        assert next(logs.query(2)) == last

    within(3, work)


def test_what_followed_is_cut_anew() -> None:
    def work(logs: QueryLogsView) -> bool:
        logs.derive(1, -1, None)
        before = list(islice(logs.query(1), 5))
        logs.derive(2, 1, 1)
        after = list(islice(logs.query(2), 3))
        assert after[0] == before[2] and after[1].start == before[3].start
        return after[1] == before[3]

    assert not all(within(seed, work) for seed in range(6))


def test_notes_that_were_pruned_are_missing() -> None:
    def work(logs: QueryLogsView) -> None:
        for incarnation in range(1, 6):
            logs.derive(incarnation, -1, None)
        logs.prune(3)
        with pytest.raises(OffsetsMissingError):
            next(logs.query(1))
        with pytest.raises(OffsetsMissingError):
            logs.derive(2, 0, None)

    within(4, work)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millstream.checkpoints.state_diff import Difference, compare
from millstream.checkpoints.stored_state import NotInCheckpointError
from tests.checkpoints.memory_store import MemoryStore
from tests.checkpoints.written import Job, Writer, count, counting
from tests.work.running import job_of


@pytest.fixture
def run() -> Writer:
    run = Writer(MemoryStore(), {**counting(), "other": Job(job_of(count))})
    run.commit({"count": [("a", 1), ("b", 1), ("c", 1), ("d", 1)]})
    run.commit({"count": [("a", None), ("b", 1), ("e", 7)], "other": [(1, 1)]})
    return run


def test_added_removed_and_changed_keys_are_counted(run: Writer) -> None:
    first, other = compare(run.store, run.lineage, 0, 1, None, limit=10)

    assert (first.job, first.added, first.removed, first.changed) == ("count", 1, 1, 1)
    assert first.unchanged == 2
    assert sorted(first.examples, key=lambda example: str(example.key)) == [
        Difference("removed", "a", {"n": 1}, None),
        Difference("changed", "b", {"n": 1}, {"n": 2}),
        Difference("added", "e", None, {"n": 7}),
    ]
    assert (other.job, other.added, other.removed) == ("other", 1, 0)


def test_in_reverse_order_added_keys_are_removed(run: Writer) -> None:
    (found,) = compare(run.store, run.lineage, 1, 0, "count", limit=0)

    assert (found.added, found.removed, found.changed) == (1, 1, 1)
    assert found.examples == []


def test_the_limit_holds_for_every_job(run: Writer) -> None:
    found = compare(run.store, run.lineage, 0, 1, None, limit=1)

    assert [len(job.examples) for job in found] == [1, 1]


def test_a_job_of_only_one_of_the_epochs_is_compared_with_nothing(run: Writer) -> None:
    run.jobs = {"other": run.jobs["other"], "fresh": Job(job_of(count))}
    run.commit({"fresh": [("x", 1)]})

    found = {job.job: job for job in compare(run.store, run.lineage, 1, 2, None, limit=0)}

    assert (found["count"].removed, found["fresh"].added) == (4, 1)
    assert found["other"].unchanged == 1


def test_unknown_jobs_and_epochs_are_errors(run: Writer) -> None:
    with pytest.raises(NotInCheckpointError, match="the jobs are count, other"):
        compare(run.store, run.lineage, 0, 1, "nobody", limit=0)
    with pytest.raises(NotInCheckpointError, match="no epoch 5"):
        compare(run.store, run.lineage, 0, 5, None, limit=0)


@pytest.mark.parametrize("value", [float("nan"), np.arange(3), {"deep": [np.arange(2)]}], ids=str)
def test_values_without_equality_are_compared_as_bytes(value: Any) -> None:
    def keep(key: str, values: list[int], state: Any) -> None:
        state["value"] = value if values == [1] else "other"

    run = Writer(MemoryStore(), {"job": Job(job_of(keep))})
    run.commit({"job": [("a", 1), ("b", 1)]})
    run.commit({"job": [("a", 1), ("b", 2)]})

    (found,) = compare(run.store, run.lineage, 0, 1, None, limit=9)

    assert (found.changed, found.unchanged) == (1, 1)

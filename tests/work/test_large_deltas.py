"""Deltas of many keys are written and read in pieces: one call would hold the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, TimeWindow
from millstream.ring.strides import AT_ONCE
from millstream.state.pickling import unpickled
from millstream.work.operators import operator_for
from millstream.work.unit import UnitContext
from tests.work import running
from tests.work.windows import rig

KEYS = 2 * AT_ONCE + 1


def remember(key: Any, values: list[int], state: Any) -> None:
    state["values"] = values


def first(key: Any, values: Any) -> Any:
    return key, next(iter(values))


JOBS = {
    "function": running.job_of(remember),
    "columns": running.job_of(ms.count()),
    "folded windows": rig.job_of(ms.count(), TimeWindow(10, 10)),
    "loose windows": rig.job_of(first, TimeWindow(10, 10)),
    "rows of windows": rig.job_of(ms.count(), CountWindow(5, 5)),
}


def blocks_of(job: JobVertex) -> tuple[list[Any], int]:
    keys = [f"key-{number}" for number in range(KEYS)]
    if job.windowing is None:
        return running.blocks_of_pairs(job, [(key, 1) for key in keys]), running.SLOTS
    return rig.block_of(job, [(key, 5, 1) for key in keys], folding=True), rig.SLOTS


@pytest.mark.parametrize("form", JOBS)
def test_a_delta_of_many_keys_is_a_row_of_small_pickles(form: str) -> None:
    job = JOBS[form]
    blocks, slots = blocks_of(job)
    owner, backup = (operator_for(job, slots) for _ in range(2))
    fragment = owner.reduce(blocks, UnitContext(range(slots), 0)).fragment

    delta = owner.state.encode(fragment)
    owner.state.apply(fragment)
    backup.state.apply(backup.state.decode(delta))

    everywhere, one = np.ones(slots, dtype=bool), np.arange(slots) == 0
    assert owner.state.count(everywhere) == backup.state.count(everywhere) == KEYS
    assert dict(backup.state.items(one)) == dict(owner.state.items(one))
    keys = [str(part).count("key-") for part in unpickled(delta)]
    assert sum(keys) == KEYS
    assert max(keys) <= AT_ONCE

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.flow.vertices import JobVertex
from millstream.node.unit_load import unit_load
from millstream.ring.hashing import slot_of_key
from millstream.ring.key_types import STRING
from millstream.state.blocks import slices
from tests.node.machines import HISTORY
from tests.work.running import SLOTS, blocks_of_pairs, job_of

ARROW = job_of(ms.arrow(lambda rows, state: (rows, None)))
TASKS = st.lists(
    st.lists(st.tuples(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 3)), max_size=40),
    max_size=4,
)


@pytest.mark.parametrize("job", [HISTORY, ARROW], ids=["lists", "rows"])
@given(tasks=TASKS, first=st.integers(0, SLOTS), size=st.integers(0, SLOTS))
def test_the_tuples_of_all_blocks_are_counted_by_slot(
    job: JobVertex, tasks: list[Any], first: int, size: int
) -> None:
    slots = range(first, min(first + size, SLOTS))
    blocks = [
        rows
        for pairs in tasks
        for block in blocks_of_pairs(job, pairs)
        for _, rows in slices(block, [slots.start, slots.stop])
    ]

    load = unit_load(job, slots, blocks, hot_share=1.0)

    truth = Counter(slot_of_key(key, STRING, SLOTS) for pairs in tasks for key, _ in pairs)
    assert load.tuples.tolist() == [truth[slot] for slot in slots]
    assert load.shares.sum() == pytest.approx(1.0 if len(slots) else 0.0)
    assert len(load.shares) == len(slots)


def test_keys_are_looked_for_in_slots_with_a_large_share_only() -> None:
    pairs = [("hot", 1)] * 50 + [(f"cold {number}", 1) for number in range(50)]

    hot = unit_load(HISTORY, range(SLOTS), blocks_of_pairs(HISTORY, pairs), hot_share=0.4)
    none = unit_load(HISTORY, range(SLOTS), blocks_of_pairs(HISTORY, pairs), hot_share=0.9)

    assert none.largest == []
    assert max(hot.largest, key=lambda found: found[2])[1:] == ("hot", 50)
    assert len({slot for slot, *_ in hot.largest}) == 1


def test_a_key_is_found_in_the_last_slots_of_a_unit() -> None:
    slot, key = max((slot_of_key(key, STRING, SLOTS) or 0, key) for key in "abcdefgh")

    load = unit_load(
        HISTORY, range(slot, SLOTS), blocks_of_pairs(HISTORY, [(key, 1)] * 5), hot_share=0.5
    )

    assert slot > 0 and load.largest == [(slot, key, 5)]
    assert load.tuples[0] == 5


def test_the_hottest_key_of_a_unit_is_found_in_each_of_its_blocks() -> None:
    blocks = [block for _ in range(3) for block in blocks_of_pairs(HISTORY, [("hot", 1)] * 5)]

    load = unit_load(HISTORY, range(SLOTS), blocks, hot_share=0.5)

    assert [(key, count) for _, key, count in load.largest] == [("hot", 5)] * 3
    assert np.count_nonzero(load.tuples) == 1

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.flow.vertices import JobVertex
from millstream.ring.hashing import slot_of_key
from millstream.state.blocks import KEY, SLOT
from millstream.work import block_tuples
from millstream.work.block_tuples import largest_keys, tuples_before
from tests.state.python_values import Basket
from tests.work.running import SLOTS, blocks_of_pairs, job_of

KEYS = st.text("abcdefghij", max_size=2)


def keep(key: Any, values: list[Any], state: Any) -> None:
    state["n"] = len(values)


FUNCTION = job_of(keep)
AGGREGATE = job_of(ms.count())
ARROW = job_of(ms.arrow(lambda rows, state: (rows, None)))


def counted(job: JobVertex, pairs: list[Any]) -> Counter[Any]:
    """The tuples of each key in the block of a map task."""
    found: Counter[Any] = Counter()
    for block in blocks_of_pairs(job, pairs):
        before = tuples_before(job, block)
        keys = block.column(KEY).to_pylist()
        counts = np.ones(len(keys)) if before is None else np.diff(before)
        for key, count in zip(keys, counts.tolist(), strict=True):
            found[key] += count
    return found


@given(st.lists(st.tuples(KEYS, st.sampled_from([1, 2])), max_size=30))
def test_values_of_a_reduce_function_count_each(pairs: list[Any]) -> None:
    assert counted(FUNCTION, pairs) == Counter(key for key, _ in pairs)


@given(st.lists(st.tuples(KEYS, st.just(1)), max_size=30))
def test_equal_values_that_travel_as_a_number_count_each(pairs: list[Any]) -> None:
    assert counted(FUNCTION, pairs) == Counter(key for key, _ in pairs)


@given(st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=30))
def test_rows_for_an_arrow_function_count_each(pairs: list[Any]) -> None:
    assert counted(ARROW, pairs) == Counter(key for key, _ in pairs)


@given(st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=30))
def test_an_accumulator_counts_once(pairs: list[Any]) -> None:
    assert counted(AGGREGATE, pairs) == Counter({key for key, _ in pairs})


def test_pickled_lists_are_divided_by_their_bytes() -> None:
    pairs = [("large", Basket([str(number)])) for number in range(50)] + [("small", Basket(["1"]))]

    found = counted(FUNCTION, pairs)

    assert sum(found.values()) == pytest.approx(2)
    assert found["large"] > 10 * found["small"] > 0


EVERY = np.arange(SLOTS)


@pytest.mark.parametrize("job", [FUNCTION, ARROW], ids=["lists", "rows"])
@given(
    pairs=st.lists(st.tuples(KEYS, st.integers(0, 9)), min_size=1, max_size=60),
    most=st.integers(1, 5),
)
def test_the_largest_keys_are_those_with_the_most_tuples(
    job: JobVertex, pairs: list[Any], most: int
) -> None:
    truth = Counter(key for key, _ in pairs)
    [block] = blocks_of_pairs(job, pairs)

    found = largest_keys(block, tuples_before(job, block), EVERY, most)

    assert sorted((count for *_, count in found), reverse=True) == [
        count for _, count in truth.most_common(most)
    ]
    for slot, key, count in found:
        assert truth[key] == count
        assert slot == slot_of_key(key, block.schema.field(KEY).type, SLOTS)


@pytest.mark.parametrize("job", [FUNCTION, ARROW], ids=["lists", "rows"])
@given(
    pairs=st.lists(st.tuples(KEYS, st.integers(0, 9)), min_size=1, max_size=60),
    chosen=st.sets(st.integers(0, SLOTS - 1)),
)
def test_only_the_keys_of_some_slots_are_looked_at(
    job: JobVertex, pairs: list[Any], chosen: set[int]
) -> None:
    [block] = blocks_of_pairs(job, pairs)
    slots = dict(zip(block.column(KEY).to_pylist(), block.column(SLOT).to_pylist(), strict=True))

    found = largest_keys(block, tuples_before(job, block), np.array(sorted(chosen)), 100)

    truth = Counter(key for key, _ in pairs if slots[key] in chosen)
    assert {key: count for _, key, count in found} == truth
    assert all(slots[key] == slot for slot, key, _ in found)


def test_of_many_rows_a_sample_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_tuples, "_SAMPLE", 500)
    pairs = [("hot", 0)] * 6_010 + [(f"cold {number}", 0) for number in range(3_990)]
    [block] = blocks_of_pairs(ARROW, pairs)

    [(slot, key, count)] = largest_keys(block, None, EVERY, 1)

    assert key == "hot" and abs(count - 6_010) <= 20 and count % 20 == 0
    assert slot == block.column(SLOT)[block.column(KEY).to_pylist().index("hot")].as_py()


@pytest.mark.parametrize("job", [FUNCTION, ARROW], ids=["lists", "rows"])
def test_keys_of_any_type_are_found(job: JobVertex) -> None:
    for hot, cold in [((1, "x"), (2, "y")), (None, "a"), (7, 8), (1.5, 2.5)]:
        [block] = blocks_of_pairs(job, [(hot, 1)] * 4 + [(cold, 1)])

        [(_, key, count)] = largest_keys(block, tuples_before(job, block), EVERY, 1)

        assert (key, count) == (hot, 4)

"""min, max and top_k: what is largest, and in which order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.state import aggregates as agg
from millstream.state.aggregates import Aggregate


def reduce_one_group(aggregate: Aggregate, values: pa.Array) -> Any:
    columns = aggregate.fold(values, None, np.zeros(len(values), np.int64), 1)
    return aggregate.result(columns)[0].as_py()


@pytest.mark.parametrize("type", [pa.float16(), pa.float32(), pa.float64()])
def test_nan_is_larger_than_any_number(type: pa.DataType) -> None:
    values = pa.array(np.array([math.nan, math.inf, -1.0, math.nan], type.to_pandas_dtype()))

    assert reduce_one_group(agg.min(), values) == -1.0
    assert math.isnan(reduce_one_group(agg.max(), values))


def test_a_negative_nan_is_still_the_largest() -> None:
    values = pa.array(np.array([math.copysign(math.nan, -1.0), 1.0]))

    assert reduce_one_group(agg.min(), values) == 1.0
    assert math.isnan(reduce_one_group(agg.max(), values))


def test_a_group_of_nan_alone_has_nan_at_both_ends() -> None:
    values = pa.array([math.nan, math.nan])

    assert math.isnan(reduce_one_group(agg.min(), values))
    assert math.isnan(reduce_one_group(agg.max(), values))


def test_the_ends_of_the_integer_range_are_ordinary_values() -> None:
    values = pa.array([2**63 - 1, -(2**63)])

    assert reduce_one_group(agg.min(), values) == -(2**63)
    assert reduce_one_group(agg.max(), values) == 2**63 - 1
    assert reduce_one_group(agg.max(), values[1:]) == -(2**63)
    assert reduce_one_group(agg.min(), values[:1]) == 2**63 - 1


def test_the_empty_string_is_the_smallest_value_and_not_null() -> None:
    values = pa.array([None, "b", "", "a"])

    assert reduce_one_group(agg.min(), values) == ""
    assert reduce_one_group(agg.max(), values) == "b"


def test_strings_are_ordered_by_their_bytes() -> None:
    # In UTF-16 order the emoji would come before the private-use letter.
    values = pa.array(["\U0001f600", "\ue000", "z"])

    assert reduce_one_group(agg.max(), values) == "\U0001f600"


def test_top_k_puts_nan_first_and_keeps_equal_values() -> None:
    values = pa.array([1.0, math.nan, 3.0, 3.0, None])

    top = reduce_one_group(agg.top_k(3), values)

    assert math.isnan(top[0])
    assert top[1:] == [3.0, 3.0]


@given(values=st.lists(st.none() | st.integers(-9, 9), min_size=1), k=st.integers(1, 5))
def test_top_k_can_keep_the_smallest(values: list[int | None], k: int) -> None:
    smallest = reduce_one_group(agg.top_k(k, largest=False), pa.array(values, pa.int64()))

    assert smallest == sorted(value for value in values if value is not None)[:k]


def test_top_k_of_nothing_is_an_empty_list() -> None:
    assert reduce_one_group(agg.top_k(3), pa.array([None], pa.string())) == []


def test_top_k_keeps_more_than_65536_groups_apart() -> None:
    n = 70_000
    groups = np.concatenate([np.arange(n), np.arange(n)[::-1]])
    values = pa.array(np.concatenate([np.arange(n), np.arange(n)[::-1] + n]))

    (top,) = agg.top_k(1).fold(values, None, groups, n)

    assert top.flatten().to_numpy().tolist() == list(range(n, 2 * n))

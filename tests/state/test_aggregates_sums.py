"""Sums are exact or refuse; they never wrap around."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.state import aggregates as agg
from millstream.state.aggregates import SumOverflowError

MAX, MIN = 2**63 - 1, -(2**63)
EXTREMES = st.sampled_from([MAX, MAX - 1, MIN, MIN + 1, -1, 0, 1, 2**32, -(2**32), 2**62])


def fold_one_group(values: list[Any], type: pa.DataType) -> Any:
    groups = np.zeros(len(values), np.int64)
    (sums,) = agg.sum().fold(pa.array(values, type), None, groups, 1)
    return sums[0].as_py()


@given(values=st.lists(EXTREMES | st.integers(MIN, MAX), min_size=1, max_size=12))
def test_an_integer_sum_is_exact_or_an_overflow(values: list[int]) -> None:
    if MIN <= sum(values) <= MAX:
        assert fold_one_group(values, pa.int64()) == sum(values)
    else:
        with pytest.raises(SumOverflowError):
            fold_one_group(values, pa.int64())


@given(values=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_an_unsigned_sum_is_an_int64_or_an_overflow(values: list[int]) -> None:
    if sum(values) <= MAX:
        assert fold_one_group(values, pa.uint64()) == sum(values)
    else:
        with pytest.raises(SumOverflowError):
            fold_one_group(values, pa.uint64())


@given(values=st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=4))
def test_a_decimal_sum_is_exact_or_an_overflow(values: list[int]) -> None:
    cents = [Decimal(value) for value in values]
    if abs(sum(values)) < 10**38:
        assert fold_one_group(cents, pa.decimal128(38, 0)) == Decimal(sum(values))
    else:
        with pytest.raises(SumOverflowError):
            fold_one_group(cents, pa.decimal128(38, 0))


@pytest.mark.parametrize("edge", [10**38 - 1, 1 - 10**38])
def test_the_largest_decimals_still_fit(edge: int) -> None:
    step = 1 if edge > 0 else -1

    assert fold_one_group([Decimal(edge - step), Decimal(step)], pa.decimal128(38, 0)) == edge
    with pytest.raises(SumOverflowError):
        fold_one_group([Decimal(edge), Decimal(step)], pa.decimal128(38, 0))


def test_merging_sums_that_do_not_fit_is_an_overflow() -> None:
    with pytest.raises(SumOverflowError):
        agg.sum().merge([pa.array([MAX, 1])], np.zeros(2, np.int64), 1)


def test_an_overflow_names_the_column_and_the_group_and_survives_pickling() -> None:
    with pytest.raises(SumOverflowError) as caught:
        agg.sum("bytes").fold(pa.array([5, MAX, 1]), None, np.array([0, 1, 1]), 2)

    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.column, error.type, error.group) == ("bytes", "int64", 1)
    assert "'bytes'" in str(error)
    assert "float64" in str(error)


def test_many_large_integers_keep_every_bit() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(-(2**60), 2**60, 100_000)
    groups = np.concatenate([np.arange(500), rng.integers(0, 500, 99_500)])
    reference = [0] * 500
    for group, value in zip(groups.tolist(), values.tolist(), strict=True):
        reference[group] += value

    # Spread over so many rows, some totals leave the range: keep those that stay inside.
    inside = np.array([MIN <= total <= MAX for total in reference])
    kept = inside[groups]
    names, dense = np.unique(groups[kept], return_inverse=True)
    (sums,) = agg.sum().fold(pa.array(values[kept]), None, dense, len(names))

    assert len(names) > 100
    assert sums.to_pylist() == [reference[name] for name in names]


def test_a_mean_of_nothing_is_null() -> None:
    columns = agg.mean().fold(pa.array([None, 3.0, None]), None, np.array([0, 1, 1]), 2)

    assert agg.mean().result(columns).to_pylist() == [None, 3.0]


def test_a_mean_of_decimals_is_a_float() -> None:
    values = pa.array([Decimal("1.50"), Decimal("2.50")], pa.decimal128(5, 2))

    columns = agg.mean().fold(values, None, np.zeros(2, np.int64), 1)

    assert agg.mean().result(columns).to_pylist() == [2.0]

"""The values of each key in a block, there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.state.values import is_pickled
from millstream.work.packers.value_lists import VALUES, decode_lists, encode_lists
from tests.state.python_values import nested, same, scalars
from tests.work.running import job_of

JOB = job_of(ms.count())
numbers = st.integers(-(2**65), 2**65)


def block(lists: list[list[Any]]) -> pa.RecordBatch:
    field, column = encode_lists(JOB, lists)
    return pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))


@given(st.lists(st.lists(nested | st.tuples(scalars, scalars), max_size=3), max_size=5))
def test_any_values_come_back_as_they_were(lists: list[list[Any]]) -> None:
    assert same(list(decode_lists(block(lists))), lists)


@given(
    st.lists(st.lists(st.tuples(st.text(max_size=2), st.floats(), numbers), max_size=3)),
    st.integers(0, 3),
)
def test_tuples_come_back_as_they_were_also_from_a_part_of_a_block(
    lists: list[list[Any]], cut: int
) -> None:
    assert same(list(decode_lists(block(lists).slice(cut))), lists[cut:])


@pytest.mark.parametrize(
    "values",
    [[(1, "a"), (2, "b")], [(1.5,)], [(True, b"x", 1.0)]],
)
def test_tuples_of_plain_values_are_not_pickled(values: list[Any]) -> None:
    found = block([values, [], values])

    assert not is_pickled(found.schema.field(VALUES))
    assert same(list(decode_lists(found)), [values, [], values])


@pytest.mark.parametrize(
    "values",
    [[(1,), (1, 2)], [()], [(1,), (1.0,)], [(1,), (None,)], [(2**63,)], [(1,), [1]], [((1,),)]],
)
def test_what_columns_cannot_hold_is_pickled(values: list[Any]) -> None:
    found = block([values])

    assert is_pickled(found.schema.field(VALUES))
    assert same(list(decode_lists(found)), [values])


def test_every_list_is_the_callers_own() -> None:
    first, second = decode_lists(block([[(1, 2)], [(1, 2)]]))
    first.append((3, 4))

    assert second == [(1, 2)]


def test_scalars_of_numpy_arrive_as_plain_values_and_are_not_pickled() -> None:
    found = block([[np.int64(1), 2], [], [np.int8(3)]])

    assert not is_pickled(found.schema.field(VALUES))
    assert list(decode_lists(found)) == [[1, 2], [], [3]]
    mixed = list(decode_lists(block([[np.int64(1), "a"], [np.float64(0.5)]])))
    assert same(mixed, [[1, "a"], [0.5]])
    assert list(decode_lists(block([[(np.int64(1), np.str_("a"))]]))) == [[(1, "a")]]

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.work.chunk import Chunk
from millstream.work.failures import RecordError
from millstream.work.packers import key_counts
from millstream.work.packers.key_counts import KeyCounts, count_keys, key_column
from millstream.work.unit_values import gather
from tests.state.python_values import untimed
from tests.work.running import blocks_of, job_of


def nothing(key: Any, values: list[Any], state: Any) -> None:
    """A reduce function."""


JOB = job_of(nothing)
TEXT = st.text("aß", max_size=2)
NUMBER = st.integers(-3, 3) | st.sampled_from([2**62, -(2**62)])
# To Python, some of these values are equal.
VALUE = st.sampled_from([1, 2, True, 1.0, 0.0, -0.0, "x", "y", "\ud800", 2**70, b"x", None, (1,)])


def chunks_of(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[Any, Any]]]]:
    equal = VALUE.flatmap(lambda value: st.lists(st.tuples(keys, st.just(value)), max_size=8))
    numbers = st.lists(st.tuples(keys, st.integers()), max_size=8)
    several = st.lists(st.tuples(keys, VALUE), max_size=8)
    return st.lists(equal | numbers | several, max_size=6) | st.lists(numbers, max_size=6)


CHUNKS = st.one_of(
    [chunks_of(keys) for keys in (TEXT, TEXT | st.none(), NUMBER, st.binary(max_size=1))]
)


@untimed
@given(st.lists(CHUNKS, max_size=3).filter(lambda tasks: len({*map(_kind, tasks)} - {None}) < 2))
def test_values_are_gathered_in_order_whatever_they_are(
    tasks: list[list[list[tuple[Any, Any]]]],
) -> None:
    blocks = [
        block
        for chunks in tasks
        for block in blocks_of(JOB, *(Chunk(records=chunk) for chunk in chunks if chunk))
    ]

    groups, slots = gather(blocks)

    expected: dict[Any, list[Any]] = {}
    for key, value in (pair for chunks in tasks for chunk in chunks for pair in chunk):
        expected.setdefault(key, []).append(value)
    assert {key: list(map(repr, values)) for key, values in groups.items()} == {
        key: list(map(repr, values)) for key, values in expected.items()
    }
    assert len(slots) == len(groups)


def _kind(chunks: list[list[tuple[Any, Any]]]) -> type | None:
    """The type of the keys of a task."""
    return next((type(k) for c in chunks for k, _ in c if k is not None), None)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("a", 1),
        ("a", b"b"),
        ("a", True),
        ("a", int),
        ("a", "\ud800"),
        (1, True),
        (1, 1.0),
        (b"a", "a"),
    ],
)
@pytest.mark.parametrize("values", [(1, 1), (1, 2)])
def test_a_key_of_another_type_is_refused_wherever_it_comes(
    first: Any, other: Any, values: tuple[int, int]
) -> None:
    pairs = [(first, value) for value in values]

    for chunks in ([[*pairs, (other, 1)]], [pairs, [(other, 1)]]):
        with pytest.raises(RecordError, match="map of job 'job'"):
            blocks_of(JOB, *(Chunk(records=chunk) for chunk in chunks))


def test_plain_values_of_one_type_travel_as_a_column_also_after_equal_ones() -> None:
    chunks = [[("b", 1), ("a", 1)], [("b", 3), ("a", 2), ("b", 1)]]

    (block,) = blocks_of(JOB, *(Chunk(records=chunk) for chunk in chunks))

    assert block.schema.field("values").type == pa.list_(pa.int64())
    assert gather([block])[0] == {"a": [1, 2], "b": [1, 3, 1]}


@pytest.mark.parametrize("few", [0, 100])
def test_keys_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(key_counts, "FOLD_ROWS", 3)
    monkeypatch.setattr(key_counts, "_FEW", few)
    counts = KeyCounts()
    for keys in (["b", "a"], ["b", "b"], ["c", "a"], ["a"]):
        column = key_column(keys)
        assert column is not None
        counts.add(column)

    keys, numbers = counts.take()

    found = dict(zip(keys.to_pylist(), numbers.tolist(), strict=True))
    assert found == {"b": 3, "a": 3, "c": 1}
    assert not counts


KEYS = [
    pa.array([f"{n % 977} ß" for n in range(20_000)]),
    pa.array([f"{n % 3_000}".encode() for n in range(20_000)]),
    pa.array([n * n % 7919 - 3000 for n in range(20_000)]),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: str(keys.type))
def test_many_keys_are_counted_like_few(keys: pa.Array) -> None:
    parts = [keys.slice(start, 3_000) for start in range(0, len(keys), 3_000)]

    distinct, numbers = count_keys(parts)

    found = dict(zip(distinct.to_pylist(), numbers.tolist(), strict=True))
    assert len(distinct) == len(found)
    assert found == Counter(keys.to_pylist())

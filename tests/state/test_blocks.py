from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.ring.hashing import hash_key
from millstream.state.blocks import KEY, SLOT, Origin, from_bytes, place_rows, slices, to_bytes
from tests.state.python_values import untimed

SLOTS = 16
KEYS = st.lists(st.none() | st.text(max_size=4), max_size=40)


def block_of(keys: list[str | None]) -> pa.RecordBatch:
    array = pa.array(keys, pa.string())
    slot, order = place_rows(array, SLOTS)
    rows = pa.RecordBatch.from_arrays([array, pa.array(slot, pa.int32())], names=[KEY, SLOT])
    return rows.take(pa.array(order))


@untimed
@given(KEYS)
def test_rows_are_ordered_by_slot_and_hash(keys: list[str | None]) -> None:
    block = block_of(keys)

    hashes = [hash_key(key, pa.string()) for key in block.column(KEY).to_pylist()]
    assert block.column(SLOT).to_pylist() == [found % SLOTS for found in hashes]
    places = [(found % SLOTS, found) for found in hashes]
    assert places == sorted(places)


@untimed
@given(KEYS, st.integers(0, SLOTS), st.integers(0, SLOTS))
def test_any_range_of_slots_is_one_slice(keys: list[str | None], one: int, other: int) -> None:
    block = block_of(keys)
    low, high = sorted((one, other))

    found = [rows.column(KEY).to_pylist() for _, rows in slices(block, [low, high])]

    rows = zip(block.column(KEY).to_pylist(), block.column(SLOT).to_pylist(), strict=True)
    expected = [key for key, slot in rows if low <= slot < high]
    assert found == ([expected] if expected else [])


@untimed
@given(KEYS, st.lists(st.integers(1, SLOTS - 1), max_size=5))
def test_slices_at_bounds_lose_and_double_nothing(
    keys: list[str | None], bounds: list[int]
) -> None:
    block = block_of(keys)
    cuts = [0, *sorted(set(bounds)), SLOTS]
    ranges = list(pairwise(cuts))

    parts = list(slices(block, np.array(cuts)))

    assert [key for _, rows in parts for key in rows.column(KEY).to_pylist()] == block.column(
        KEY
    ).to_pylist()
    for index, rows in parts:
        low, high = ranges[index]
        assert all(low <= slot < high for slot in rows.column(SLOT).to_pylist())


@untimed
@given(KEYS)
def test_a_block_comes_back_from_its_bytes_also_when_it_is_a_slice(keys: list[str | None]) -> None:
    for rows in (block_of(keys), block_of([*keys, "x", None]).slice(1)):
        assert from_bytes(to_bytes(rows)).equals(rows, check_metadata=True)


def test_the_bytes_of_a_slice_hold_only_its_rows() -> None:
    block = block_of([str(number) for number in range(10_000)])

    assert len(to_bytes(block.slice(0, 10))) < 2_000


def test_the_marks_of_pickled_columns_survive() -> None:
    field = pa.field("v", pa.binary(), metadata={b"millstream": b"pickled"})
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"])], schema=pa.schema([field]))

    assert from_bytes(to_bytes(batch)).schema.field(0).metadata == field.metadata


def test_blocks_are_ordered_by_stage_then_task_then_sequence() -> None:
    origins = [Origin(1, 0, 0), Origin(0, 10, 0), Origin(0, 2, 1), Origin(0, 2, 0)]

    assert sorted(origins) == [
        Origin(0, 2, 0),
        Origin(0, 2, 1),
        Origin(0, 10, 0),
        Origin(1, 0, 0),
    ]

"""approx_distinct: small sets exactly, large ones within the error of HyperLogLog."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.state import aggregates as agg
from millstream.state.aggregates.hashing import hash_values
from millstream.state.aggregates.sketch import from_hashes, pack

KEYS = 64
# Of 1 (the first output of splitmix64 seeded with 1), -1, 0.5, '', 'mill', b'stream' and True.
EXPECTED_HASHES = [
    "10451216379200822465",
    "16490336266968443936",
    "17606427253252083309",
    "17241709254077376921",
    "12778797740110734815",
    "2690785666651143663",
    "10451216379200822465",
]


def fold(values: Any, groups: Any, n: int, *, precision: int = 12) -> pa.Array:
    (sketches,) = agg.approx_distinct(precision=precision).fold(pa.array(values), None, groups, n)
    return sketches


def estimate(sketches: pa.Array, *, precision: int = 12) -> np.ndarray[Any, np.dtype[np.int64]]:
    numbers: np.ndarray[Any, np.dtype[np.int64]]
    numbers = agg.approx_distinct(precision=precision).result([sketches]).to_numpy()
    return numbers


@pytest.mark.parametrize("precision", [7, 8, 12, 14])
@pytest.mark.parametrize("size", [100, 3_000, 10_000, 20_000, 100_000])
def test_the_error_stays_within_what_the_precision_promises(precision: int, size: int) -> None:
    keys = KEYS if size < 50_000 else 16
    rng = np.random.default_rng(precision * size)
    values = rng.integers(0, 2**63, keys * size)
    groups = np.repeat(np.arange(keys), size)
    promised = 1.04 / math.sqrt(2**precision)

    numbers = estimate(fold(values, groups, keys, precision=precision), precision=precision)
    errors = numbers / size - 1.0

    assert np.sqrt(np.mean(errors**2)) < 1.35 * promised
    assert abs(np.mean(errors)) < 3.5 * promised / math.sqrt(keys)
    assert np.abs(errors).max() < 5 * promised


@pytest.mark.parametrize("make", [int, float, str], ids=["int", "float", "str"])
def test_consecutive_values_are_spread_as_well_as_random_ones(make: type) -> None:
    values = [make(i) for i in range(50_000)]

    (number,) = estimate(fold(values, np.zeros(50_000, np.int64), 1))

    assert abs(number / 50_000 - 1) < 4 * 1.04 / 64


def test_small_sets_are_counted_exactly() -> None:
    rng = np.random.default_rng(7)
    sizes = rng.integers(1, 300, KEYS)
    groups = np.repeat(np.arange(KEYS), sizes)

    assert estimate(fold(np.arange(sizes.sum()), groups, KEYS)).tolist() == sizes.tolist()


def test_a_key_with_few_values_costs_few_bytes_and_one_with_many_a_fixed_number() -> None:
    groups = np.array([0] * 3 + [1] * 5_000)

    sketches = fold(np.arange(5_003), groups, 2)

    assert [len(sketch) for sketch in sketches.to_pylist()] == [12, 4096]


@pytest.mark.parametrize("size", [1023, 1024, 1025])
def test_the_switch_from_sparse_to_dense_cannot_be_misread(size: int) -> None:
    # 1024 entries would take the 4096 bytes of a dense sketch.
    (number,) = estimate(fold(np.arange(size), np.zeros(size, np.int64), 1))

    assert abs(number / size - 1) < 4 * 1.04 / 64


def plain_registers(hashes: list[int], precision: int) -> bytes:
    """The registers of HyperLogLog as the textbook has them, one hash at a time."""
    registers = bytearray(2**precision)
    rest_bits = 64 - precision
    for number in hashes:
        rest = number & (2**rest_bits - 1)
        register = number >> rest_bits
        registers[register] = max(registers[register], rest_bits - rest.bit_length() + 1)
    return bytes(registers)


@pytest.mark.parametrize("precision", [7, 12, 18])
def test_dense_registers_are_those_of_the_textbook(precision: int) -> None:
    # Half of the hashes have a long run of zeros after the register number, some nothing else.
    rng = np.random.default_rng(precision)
    size = 2 ** (precision - 1)
    hashes = rng.integers(0, 2**64, size, dtype=np.uint64)
    tails = rng.integers(0, 2 ** rng.integers(0, 40, size), dtype=np.int64).astype(np.uint64)
    keep_register = np.uint64((2**64 - 1) << (64 - precision) & (2**64 - 1))
    hashes = np.concatenate([hashes, hashes[::-1] & keep_register | tails])

    parts = from_hashes(hashes, np.zeros(len(hashes), np.int64), precision)

    assert pack(parts, 1, precision)[0].as_py() == plain_registers(hashes.tolist(), precision)


def test_repeated_values_cost_nothing() -> None:
    assert len(fold(["x"] * 1000, np.zeros(1000, np.int64), 1)[0].as_py()) == 4


@pytest.mark.parametrize("precision", [7, 12, 18])
def test_any_mix_of_sparse_and_dense_sketches_merges_to_the_sketch_of_the_whole(
    precision: int,
) -> None:
    rng = np.random.default_rng(11)
    sizes = [0, 1, 500, 1023, 1024, 1500, 6000, 20_000]
    values = np.concatenate([rng.integers(0, 2**63, size) for size in sizes])
    groups = np.repeat(np.arange(len(sizes)), sizes)
    rows = rng.permutation(len(values))
    nulls = pa.nulls(len(sizes), pa.int64())
    aggregate = agg.approx_distinct(precision=precision)

    def sketches_of(some: Any) -> pa.Array:
        # A null for each group, so that every group is there.
        column = pa.concat_arrays([nulls, pa.array(values[some])])
        with_nulls = np.concatenate([np.arange(len(sizes)), groups[some]])
        return aggregate.fold(column, None, with_nulls, len(sizes))[0]

    parts = [sketches_of(some) for some in np.split(rows, [10, 12_000, 15_000, 29_000])]
    shuffled = rng.permutation(len(parts) * len(sizes))
    column = pa.concat_arrays(parts).take(pa.array(shuffled))
    (merged,) = aggregate.merge([column], shuffled % len(sizes), len(sizes))

    assert merged.equals(sketches_of(rows))


def test_equal_values_of_different_widths_hash_alike() -> None:
    assert hash_values(pa.array([5], pa.int8())) == hash_values(pa.array([5], pa.int64()))
    assert hash_values(pa.array(["é"])) == hash_values(pa.array(["é"], pa.large_string()))


def test_zeros_are_one_value_and_so_are_nans() -> None:
    values = np.array([0.0, -0.0, math.nan, math.copysign(math.nan, -1.0)])

    assert estimate(fold(values, np.zeros(4, np.int64), 1)).tolist() == [2]


def test_hashes_are_the_same_in_another_process() -> None:
    # Sketches are stored and moved between nodes, so these numbers may never change.
    program = (
        "import pyarrow as pa\n"
        "from millstream.state.aggregates.hashing import hash_values\n"
        "for column in ([1, -1], [0.5], ['', 'mill'], [b'stream'], [True]):\n"
        "    print(*hash_values(pa.array(column)))\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "17"}

    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )

    assert answer.stdout.split() == EXPECTED_HASHES

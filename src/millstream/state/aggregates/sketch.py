"""HyperLogLog sketches, many at a time, as a binary column.

A sketch is *dense*, 2**precision registers of one byte, or *sparse*, a sorted list of 32-bit
entries that takes fewer bytes than that; so its length tells which. An entry is a register
number among 2**26 with its rank in the low 6 bits: enough to compute the dense register of any
precision later, and so fine that small sets are counted almost exactly.

Merging in any order gives the same bytes. Estimates follow O. Ertl, "New cardinality estimation
algorithms for HyperLogLog sketches" (2017), which needs no tables of bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.state.aggregates.grouping import Bools, Groups, Ints, stable_order
from millstream.state.aggregates.hashing import Hashes

Entries = npt.NDArray[np.uint32]
Registers = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

_FINE = 26  # bits of a register number in an entry
_RANK = 6  # bits of a rank in an entry
_REST = 64 - _FINE  # bits of the hash that the rank summarises
_ENTRY_BYTES = 4
_BLOCK = 2**20  # registers looked at together when estimating


@dataclass(frozen=True)
class Parts:
    """The contents of sketches in long form: sparse entries and dense rows, each with its group."""

    entry_groups: Groups
    entries: Entries
    dense_groups: Groups
    registers: Registers


def from_hashes(hashes: Hashes, groups: Groups, precision: int) -> Parts:
    """One entry for each hash."""
    rest = hashes & np.uint64(2**_REST - 1)
    rank = (_REST + 1 - _bit_length(rest)).astype(np.uint32)
    fine = (hashes >> np.uint64(_REST)).astype(np.uint32)
    none = np.empty((0, 2**precision), np.uint8)
    return Parts(groups, fine << np.uint32(_RANK) | rank, np.empty(0, np.int64), none)


def unpack(sketches: pa.Array, groups: Groups, precision: int) -> Parts:
    """Take sketches apart."""
    words, lengths = _words(sketches)
    dense = lengths * _ENTRY_BYTES == 2**precision
    in_dense = np.repeat(dense, lengths)
    registers = words[in_dense].view(np.uint8).reshape(-1, 2**precision)
    entry_groups = np.repeat(groups[~dense], lengths[~dense])
    return Parts(entry_groups, words[~in_dense], groups[dense], registers)


def pack(parts: Parts, n: int, precision: int) -> pa.Array:
    """Unite the parts of each group into one sketch."""
    groups, entries = _unique_entries(parts.entry_groups, parts.entries)
    counts = np.bincount(groups, minlength=n)
    dense = counts * _ENTRY_BYTES >= 2**precision
    dense[parts.dense_groups] = True
    in_dense = dense[groups]
    registers = _unite_dense(parts, groups[in_dense], entries[in_dense], dense, precision)
    lengths = np.where(dense, 2**precision // _ENTRY_BYTES, counts)
    words = np.empty(int(lengths.sum()), np.uint32)
    to_dense = np.repeat(dense, lengths)
    words[to_dense] = registers.reshape(-1).view(np.uint32)
    words[~to_dense] = entries[~in_dense]
    offsets = np.concatenate(([0], np.cumsum(lengths * _ENTRY_BYTES))).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(words)], null_count=0
    )


def estimate(sketches: pa.Array, precision: int) -> Ints:
    """The number of distinct hashes in each sketch."""
    words, lengths = _words(sketches)
    dense = lengths * _ENTRY_BYTES == 2**precision
    registers = words[np.repeat(dense, lengths)].view(np.uint8).reshape(-1, 2**precision)
    numbers = np.empty(len(lengths), np.float64)
    # Entries that share a fine register were counted once: linear counting adds them back.
    numbers[~dense] = -(2.0**_FINE) * np.log1p(-lengths[~dense] / 2.0**_FINE)
    numbers[dense] = _estimate_dense(registers, precision)
    return np.rint(numbers).astype(np.int64)


def _words(sketches: pa.Array) -> tuple[Entries, Ints]:
    _, offsets_buffer, data = sketches.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[sketches.offset :][: len(sketches) + 1]
    ends = offsets.astype(np.int64)
    lengths = (ends[1:] - ends[:-1]) // _ENTRY_BYTES
    total = int(lengths.sum())
    if total == 0:
        return np.empty(0, np.uint32), lengths
    return np.frombuffer(data, np.uint32, total, int(offsets[0])), lengths


def _unique_entries(groups: Groups, entries: Entries) -> tuple[Groups, Entries]:
    # Sorted by group, fine register and rank: the last of each fine register has the top rank.
    # Sketches are sorted runs, which the stable sort (a timsort) merges fast.
    keys = np.sort(groups.astype(np.uint64) << np.uint64(32) | entries, kind="stable")
    register = keys >> np.uint64(_RANK)
    last = np.ones(len(keys), np.bool_)
    last[:-1] = register[1:] != register[:-1]
    keys = keys[last]
    return (keys >> np.uint64(32)).astype(np.int64), keys.astype(np.uint32)


def _unite_dense(
    parts: Parts, groups: Groups, entries: Entries, dense: Bools, precision: int
) -> Registers:
    row = np.cumsum(dense) - 1  # the row of a dense group among the dense ones
    registers = np.zeros((int(dense.sum()), 2**precision), np.uint8)
    if len(parts.dense_groups):
        order = stable_order(parts.dense_groups, len(dense))
        sorted_groups = parts.dense_groups[order]
        starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
        united = np.maximum.reduceat(parts.registers[order], starts, axis=0)
        registers[row[sorted_groups[starts]]] = united
    register, rank = _to_dense(entries, precision)
    np.maximum.at(registers.reshape(-1), (row[groups] << precision) + register, rank)
    return registers


def _to_dense(entries: Entries, precision: int) -> tuple[Ints, Registers]:
    """The dense register that an entry touches, and the rank it has there."""
    spare = _FINE - precision
    fine = (entries >> np.uint32(_RANK)).astype(np.int64)
    middle = fine & (2**spare - 1)
    rank = entries & np.uint32(2**_RANK - 1)
    dense_rank = np.where(middle == 0, spare + rank, spare + 1 - _bit_length(middle))
    return fine >> spare, dense_rank.astype(np.uint8)


def _bit_length(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    # Exact below 2**53, where a float64 holds every integer.
    return np.frexp(numbers.astype(np.float64))[1]


def _estimate_dense(registers: Registers, precision: int) -> Floats:
    step = max(1, _BLOCK >> precision)
    blocks = [registers[at : at + step] for at in range(0, len(registers), step)]
    return np.concatenate([np.empty(0), *(_ertl(block, precision) for block in blocks)])


def _ertl(registers: Registers, precision: int) -> Floats:
    size, top = 2.0**precision, 64 - precision + 1
    rows = np.arange(len(registers))[:, None] * 64
    cells = np.bincount((rows + registers).reshape(-1), minlength=64 * len(registers))
    shares = cells.reshape(-1, 64) / size
    total = _tau(1.0 - shares[:, top])
    for rank in range(top - 1, 0, -1):
        total = 0.5 * (total + shares[:, rank])
    total = total + _sigma(shares[:, 0])
    numbers: Floats = size / (2.0 * np.log(2.0) * total)
    return numbers


def _sigma(x: Floats) -> Floats:
    total, weight, power = x, 1.0, x
    while True:
        power = power * power
        grown = total + power * weight
        if np.array_equal(grown, total):
            return total
        total, weight = grown, weight * 2.0


def _tau(x: Floats) -> Floats:
    total, weight, root = 1.0 - x, 1.0, x
    while True:
        root, weight = np.sqrt(root), weight * 0.5
        shrunk = total - (1.0 - root) ** 2 * weight
        if np.array_equal(shrunk, total):
            return total / 3.0
        total = shrunk

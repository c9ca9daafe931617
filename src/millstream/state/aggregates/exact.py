"""Integer sums per group that are exact, and that refuse to wrap around.

A number is cut into 32-bit limbs, which are summed in 64 bits (safe for 2**31 rows), then
carried. The sum fits the type if and only if the last limb, with its carry, fits 32 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.state.aggregates.grouping import Bools, Groups, Ints

_LIMB = 32
_MASK = 0xFFFFFFFF


def sum_integers(numbers: npt.NDArray[np.integer], groups: Groups, n: int) -> tuple[Ints, Bools]:
    """Sum integers of any width into int64; the mask is true for groups that do not fit."""
    if _cannot_overflow(numbers, groups):
        return _add(numbers.astype(np.int64, copy=False), groups, n), np.zeros(n, np.bool_)
    low, high = (_add(limb, groups, n) for limb in _halves(numbers))
    (low,), high = _carry([low], high)
    return high << _LIMB | low, _overflows(high)


def sum_decimals(decimals: pa.Array, groups: Groups, n: int) -> tuple[pa.Array, Bools]:
    """Sum decimals into decimal128(38, scale); the mask is true for groups that do not fit."""
    words = decimal_words(decimals)
    halves = [half for word in (words[:, 0].view(np.uint64), words[:, 1]) for half in _halves(word)]
    *lows, high = (_add(half, groups, n) for half in halves)
    lows, high = _carry(lows, high)
    limbs = np.stack([*lows, high], axis=1).astype(np.uint32)
    type = pa.decimal128(38, decimals.type.scale)
    sums = pa.Array.from_buffers(type, n, [None, pa.py_buffer(limbs)])
    return sums, _overflows(high) | _too_many_digits(limbs)


def decimal_words(decimals: pa.Array) -> Ints:
    """The (low, high) 64-bit words of decimal128 values; no nulls."""
    if len(decimals) == 0:
        return np.empty((0, 2), np.int64)  # an empty array may have no buffer
    start = 16 * decimals.offset
    words = np.frombuffer(decimals.buffers()[1], np.int64, 2 * len(decimals), start)
    return words.reshape(-1, 2)


def _cannot_overflow(numbers: npt.NDArray[np.integer], groups: Groups) -> bool:
    # Two cheap bounds that nearly all data pass, so that the limbs are for the extremes.
    if len(numbers) == 0:
        return True
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    return largest * len(numbers) < 2**63 or largest * int(np.bincount(groups).max()) < 2**63


def _halves(numbers: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    wide = numbers if numbers.dtype == np.uint64 else numbers.astype(np.int64, copy=False)
    mask = wide.dtype.type(_MASK)
    shift = wide.dtype.type(_LIMB)
    return (wide & mask).astype(np.int64), (wide >> shift).astype(np.int64)


def _add(numbers: Ints, groups: Groups, n: int) -> Ints:
    sums = np.zeros(n, np.int64)
    np.add.at(sums, groups, numbers)
    return sums


def _carry(lows: list[Ints], high: Ints) -> tuple[list[Ints], Ints]:
    carried, carry = [], np.zeros_like(high)
    for limb in lows:
        limb = limb + carry
        carried.append(limb & _MASK)
        carry = limb >> _LIMB
    return carried, high + carry


def _overflows(high: Ints) -> Bools:
    return (high < -(2**31)) | (high >= 2**31)


def _too_many_digits(limbs: npt.NDArray[np.uint32]) -> Bools:
    # 128 bits reach past 38 digits. Compare the magnitude with 10**38, word by word.
    words = limbs.view(np.uint64)
    negative = words[:, 1] >> np.uint64(63) == 1
    low = np.where(negative, ~words[:, 0] + np.uint64(1), words[:, 0])
    high = np.where(negative, ~words[:, 1] + (low == 0), words[:, 1])
    most_high, most_low = divmod(10**38, 2**64)
    too_many: Bools = (high > most_high) | ((high == most_high) & (low >= most_low))
    return too_many

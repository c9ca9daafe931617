"""Values as integers in the same order, so that one code path orders every type.

Floats follow Spark: NaN equals itself and is larger than any number. Negative zero comes just
before zero, so the order is total and no result depends on how rows were split.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.state.aggregates.grouping import Bools, Ints
from millstream.state.aggregates.kinds import FIXED_WIDTH, Kind, kind_of

_ALL_BUT_SIGN = np.int64(2**63 - 1)
_SIGN = np.uint64(1 << 63)


def integers(values: pa.Array) -> npt.NDArray[np.integer]:
    """The integers that back integers, booleans, dates, times and durations; no nulls."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    elif not pa.types.is_integer(values.type):
        values = values.view(_backing(values.type))
    backing: npt.NDArray[np.integer] = values.to_numpy()
    return backing


def floats(values: pa.Array) -> npt.NDArray[np.float64]:
    """Floats as float64 with a single NaN; no nulls."""
    numbers: npt.NDArray[np.float64] = values.to_numpy().astype(np.float64)
    numbers[np.isnan(numbers)] = np.nan
    return numbers


def encode(values: pa.Array) -> Ints:
    """Code fixed-width values as int64 in the same order; no nulls."""
    if kind_of(values.type) is Kind.FLOAT:
        return _flip(floats(values).view(np.int64))
    backing = integers(values)
    if backing.dtype == np.uint64:
        return (backing.astype(np.uint64) ^ _SIGN).view(np.int64)
    return backing.astype(np.int64)


def decode(keys: Ints, type: pa.DataType, nulls: Bools | None) -> pa.Array:
    """Undo encode, with nulls where the mask is true."""
    if kind_of(type) is Kind.FLOAT:
        return pa.array(_flip(keys).view(np.float64).astype(type.to_pandas_dtype()), mask=nulls)
    if pa.types.is_boolean(type):
        return pa.array(keys.astype(np.bool_), mask=nulls)
    if pa.types.is_uint64(type):
        return pa.array(keys.view(np.uint64) ^ _SIGN, mask=nulls)
    if pa.types.is_integer(type):
        return pa.array(keys.astype(type.to_pandas_dtype()), mask=nulls)
    backing = _backing(type)
    return pa.array(keys.astype(backing.to_pandas_dtype()), mask=nulls).view(type)


def ascending(values: pa.Array) -> Ints:
    """The rows ordered by value; equal values in no particular order; no nulls."""
    if kind_of(values.type) in FIXED_WIDTH:
        return np.argsort(encode(values))
    order: Ints = pc.sort_indices(values).to_numpy().astype(np.int64)
    return order


def _flip(bits: Ints) -> Ints:
    # The bits of negative floats grow as the float shrinks: turn them round. Its own inverse.
    return np.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits)


def _backing(type: pa.DataType) -> pa.DataType:
    return pa.int32() if type.bit_width == 32 else pa.int64()

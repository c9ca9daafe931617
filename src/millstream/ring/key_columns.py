"""Key columns that arrive as Arrow, from Spark or from the user, made canonical.

The casts are vectorised; no Python object is made per row. Python keys are converted by
:mod:`millstream.ring.keys`.
"""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ring.key_types import (
    BOOL,
    DATE,
    FLOAT64,
    INSTANT,
    INT64,
    LOCAL,
    KeyTypeError,
    canonical_type,
    describe,
)
from millstream.times import FIRST, LAST, LOCAL_EPOCH

_FIRST_DAY = (dt.date.min - LOCAL_EPOCH.date()).days
_LAST_DAY = (dt.date.max - LOCAL_EPOCH.date()).days


def canonical_column(array: pa.Array) -> pa.Array:
    """Cast a column of keys to its canonical type, exactly, or raise :class:`KeyTypeError`."""
    target = canonical_type(array.type)
    if pa.types.is_struct(array.type):
        return _canonical_struct(array, target)
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        return canonical_column(array.dictionary_decode())
    if array.type != target:
        try:
            array = array.cast(target)
        except pa.ArrowInvalid as error:
            raise KeyTypeError("column", describe(target), f"not exact: {error}") from None
    if target == FLOAT64:
        return canonical_floats(array)
    if target in (INSTANT, LOCAL):
        _check_range(array.view(INT64), target, FIRST, LAST)
    elif target == DATE:
        _check_range(array.view(pa.int32()), target, _FIRST_DAY, _LAST_DAY)
    return array


def canonical_floats(array: pa.Array) -> pa.Array:
    """Replace -0.0 by 0.0, and every NaN by the NaN of Python and the JVM."""
    positive = pc.add(array, 0.0)
    return pc.if_else(pc.is_nan(positive), pa.scalar(float("nan"), FLOAT64), positive)


def _canonical_struct(array: pa.StructArray, target: pa.DataType) -> pa.Array:
    if target.num_fields == 0:
        return array
    # flatten, unlike field, makes children of null parents null; they may be out of range.
    children = [canonical_column(child) for child in array.flatten()]
    mask = array.is_null().cast(BOOL)
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _check_range(numbers: pa.Array, target: pa.DataType, first: int, last: int) -> None:
    # Python's datetimes cannot hold other years, so such a key could never be decoded.
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and not first <= low <= high <= last:
        raise KeyTypeError("column", describe(target), "outside the years 1 to 9999")

"""Work on dense group ids: dropping nulls, adding floats, ordering rows by group, picking rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Groups = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def present(values: pa.Array, groups: Groups) -> tuple[pa.Array, Groups]:
    """The rows whose value is not null."""
    if values.null_count == 0:
        return values, groups
    return values.drop_null(), groups[valid_mask(values)]


def valid_mask(values: pa.Array) -> Bools:
    """True for every value that is not null."""
    valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def absent_groups(values: pa.Array, groups: Groups, n: int) -> Bools | None:
    """True for every group without a value; None if each is known to have one."""
    if values.null_count == 0:
        return None
    absent: Bools = np.bincount(groups[valid_mask(values)], minlength=n) == 0
    return absent


def add_floats(values: pa.Array, groups: Groups, n: int) -> npt.NDArray[np.float64]:
    """Add numbers up as float64, in the order of the rows; no nulls."""
    sums = np.bincount(groups, weights=values.to_numpy(), minlength=n)
    return np.asarray(sums, np.float64)  # without rows numpy answers in integers


def stable_order(groups: Groups, n: int) -> Ints:
    """The rows ordered by group, and by arrival within a group.

    numpy sorts 16-bit integers by radix, several times faster than wider ones.
    """
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    for shift in range(16, max(n - 1, 0).bit_length(), 16):
        digit = (groups >> shift).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def take_or_null(values: pa.Array, rows: Ints) -> pa.Array:
    """The values in these rows; null where the row is negative."""
    return values.take(pa.array(rows, mask=rows < 0))


def with_nulls(values: pa.Array, nulls: Bools | None) -> pa.Array:
    """The values, made null where the mask is true."""
    if nulls is None or not nulls.any():
        return values
    return take_or_null(values, np.where(nulls, -1, np.arange(len(values))))

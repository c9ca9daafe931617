"""``sum``: int64 for integers, float64 for floats, decimal128(38, scale) for decimals.

Sums of integers and decimals are exact: a total that does not fit raises SumOverflowError, in
a fold or in a merge. Floats are added in the order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from millstream.state.aggregates.errors import SumOverflowError
from millstream.state.aggregates.exact import sum_decimals, sum_integers
from millstream.state.aggregates.grouping import (
    Bools,
    Groups,
    absent_groups,
    add_floats,
    present,
    with_nulls,
)
from millstream.state.aggregates.kinds import NUMBERS, Kind, require


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Adds up the values of each group; null for a group without values."""

    column: str | None = None
    needs_values: ClassVar[bool] = True

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        return [pa.field("sum", self.result_type(value))]

    def fold(
        self, values: pa.Array, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        kind = require("sum", values.type, NUMBERS)
        absent = absent_groups(values, groups, n)
        values, groups = present(values, groups)
        if kind is Kind.FLOAT:
            return [pa.array(add_floats(values, groups, n), mask=absent)]
        if kind is Kind.INTEGER:
            integers, overflow = sum_integers(values.to_numpy(), groups, n)
            self._refuse(overflow, pa.int64())
            return [pa.array(integers, mask=absent)]
        decimals, overflow = sum_decimals(values, groups, n)
        self._refuse(overflow, decimals.type)
        return [with_nulls(decimals, absent)]

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        return self.fold(columns[0], None, groups, n)

    def result(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        kind = require("sum", value, NUMBERS)
        if value is not None and kind is Kind.DECIMAL:
            return pa.decimal128(38, value.scale)
        return pa.float64() if kind is Kind.FLOAT else pa.int64()

    def _refuse(self, overflow: Bools, type: pa.DataType) -> None:
        if overflow.any():
            raise SumOverflowError(self.column or "value", str(type), int(overflow.argmax()))

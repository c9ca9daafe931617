"""``mean``: a float64 sum and a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from millstream.state.aggregates.exact import sum_integers
from millstream.state.aggregates.grouping import Groups, add_floats, present
from millstream.state.aggregates.kinds import NUMBERS, Kind, require


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Averages the values of each group as float64; null for a group without values."""

    column: str | None = None
    needs_values: ClassVar[bool] = True

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        require("mean", value, NUMBERS)
        return [
            pa.field("sum", pa.float64(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
        ]

    def fold(
        self, values: pa.Array, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        kind = require("mean", values.type, NUMBERS)
        values, groups = present(values, groups)
        if kind is Kind.DECIMAL:
            values = values.cast(pa.float64())
        sums = add_floats(values, groups, n)
        return [pa.array(sums), pa.array(np.bincount(groups, minlength=n))]

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        sums = add_floats(columns[0], groups, n)
        counts, _ = sum_integers(columns[1].to_numpy(), groups, n)
        return [pa.array(sums), pa.array(counts)]

    def result(self, columns: list[pa.Array]) -> pa.Array:
        sums, counts = (column.to_numpy() for column in columns)
        return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        require("mean", value, NUMBERS)
        return pa.float64()

"""``count``: how many rows, or how many values that are not null."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.state.aggregates.exact import sum_integers
from millstream.state.aggregates.grouping import Groups, valid_mask


@dataclass(frozen=True, kw_only=True)
class Count:
    """Counts rows; with a column, the rows where it is not null."""

    column: str | None = None

    @property
    def needs_values(self) -> bool:
        return self.column is not None

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        return [pa.field("count", pa.int64(), nullable=False)]

    def fold(
        self, values: pa.Array | None, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        if self.needs_values and values is not None and values.null_count:
            groups = groups[valid_mask(values)]
        return [pa.array(np.bincount(groups, minlength=n))]

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        counts, _ = sum_integers(columns[0].to_numpy(), groups, n)
        return [pa.array(counts)]

    def result(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        return pa.int64()

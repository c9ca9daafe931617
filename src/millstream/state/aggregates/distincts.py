"""``distinct``: how many different values each group has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.state.aggregates.grouping import Groups, present
from millstream.state.aggregates.kinds import SCALARS, Kind, require


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """Keeps each different value of a group once, as a list. NaN equals itself, and 0.0 -0.0."""

    column: str | None = None
    needs_values: ClassVar[bool] = True

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        require("distinct", value, SCALARS)
        return [pa.field("values", pa.list_(value), nullable=False)]

    def fold(
        self, values: pa.Array, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        kind = require("distinct", values.type, SCALARS)
        values, groups = present(values, groups)
        if kind is Kind.FLOAT:
            zero, nan = (pa.scalar(one, values.type) for one in (0.0, math.nan))
            values = pc.case_when(
                pc.make_struct(pc.equal(values, zero), pc.is_nan(values)), zero, nan, values
            )
        coded = values.dictionary_encode()
        width = len(coded.dictionary)
        pairs = np.unique(groups * width + coded.indices.to_numpy())
        owners, codes = np.divmod(pairs, max(width, 1))
        ends = np.cumsum(np.bincount(owners, minlength=n))
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        return [pa.ListArray.from_arrays(offsets, coded.dictionary.take(pa.array(codes)))]

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        lists = columns[0]
        lengths = lists.value_lengths().to_numpy()
        return self.fold(lists.flatten(), None, np.repeat(groups, lengths), n)

    def result(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0].value_lengths().cast(pa.int64())

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        require("distinct", value, SCALARS)
        return pa.int64()

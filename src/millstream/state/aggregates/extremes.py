"""``min`` and ``max`` for everything that has an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from millstream.state.aggregates.grouping import Groups, Ints, absent_groups, present, take_or_null
from millstream.state.aggregates.kinds import FIXED_WIDTH, SCALARS, require
from millstream.state.aggregates.ordering import decode, encode


@dataclass(frozen=True, kw_only=True)
class _Extreme:
    column: str | None = None
    needs_values: ClassVar[bool] = True
    name: ClassVar[str]
    pick: ClassVar[np.ufunc]
    worst: ClassVar[int]  # what every value beats, or ties with

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        return [pa.field(self.name, self.result_type(value))]

    def fold(
        self, values: pa.Array, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        if require(self.name, values.type, SCALARS) in FIXED_WIDTH:
            return [self._by_code(values, groups, n)]
        return [self._by_arrow(values, groups, n)]

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        return self.fold(columns[0], None, groups, n)

    def result(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        require(self.name, value, SCALARS)
        return value

    def _by_code(self, values: pa.Array, groups: Groups, n: int) -> pa.Array:
        absent = absent_groups(values, groups, n)
        values, groups = present(values, groups)
        best = np.full(n, self.worst, np.int64)
        self.pick.at(best, groups, encode(values))
        return decode(best, values.type, absent)

    def _by_arrow(self, values: pa.Array, groups: Groups, n: int) -> pa.Array:
        table = pa.table({"group": groups, "value": values})
        found = table.group_by("group", use_threads=False).aggregate([("value", self.name)])
        rows: Ints = np.full(n, -1, np.int64)
        rows[found["group"].to_numpy()] = np.arange(found.num_rows)
        return take_or_null(found[f"value_{self.name}"].combine_chunks(), rows)


@dataclass(frozen=True, kw_only=True)
class Min(_Extreme):
    """The smallest value of each group; null for a group without values."""

    name: ClassVar[str] = "min"
    pick: ClassVar[np.ufunc] = np.minimum
    worst: ClassVar[int] = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Max(_Extreme):
    """The largest value of each group; null for a group without values."""

    name: ClassVar[str] = "max"
    pick: ClassVar[np.ufunc] = np.maximum
    worst: ClassVar[int] = -(2**63)

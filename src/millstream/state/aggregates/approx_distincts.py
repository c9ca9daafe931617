"""``approx_distinct``: about how many different values each group has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.state.aggregates import sketch
from millstream.state.aggregates.grouping import Groups, present
from millstream.state.aggregates.hashing import hash_values
from millstream.state.aggregates.kinds import SCALARS, require

# Below 7 the estimator is biased (by 7 % at 4), and the error below is no longer true.
_PRECISIONS = range(7, 19)


@dataclass(frozen=True, kw_only=True)
class ApproxDistinct:
    """Counts distinct values by HyperLogLog, with a relative error of 1.04 / 2**(precision / 2).

    Sets of fewer than 2**(precision - 2) values are counted almost exactly, in 4 bytes a value.
    """

    column: str | None = None
    precision: int = 12
    needs_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.precision) is not int or self.precision not in _PRECISIONS:
            raise ConfigError(
                f"precision must be an integer from {_PRECISIONS[0]} to {_PRECISIONS[-1]}, "
                f"got {self.precision!r}"
            )

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        require("approx_distinct", value, SCALARS)
        return [pa.field("sketch", pa.binary(), nullable=False)]

    def fold(
        self, values: pa.Array, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        require("approx_distinct", values.type, SCALARS)
        values, groups = present(values, groups)
        parts = sketch.from_hashes(hash_values(values), groups, self.precision)
        return [sketch.pack(parts, n, self.precision)]

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        return [sketch.pack(sketch.unpack(columns[0], groups, self.precision), n, self.precision)]

    def result(self, columns: list[pa.Array]) -> pa.Array:
        return pa.array(sketch.estimate(columns[0], self.precision))

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        require("approx_distinct", value, SCALARS)
        return pa.int64()

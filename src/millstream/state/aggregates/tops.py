"""``top_k``: the k largest, or smallest, values of each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.state.aggregates.grouping import Groups, present, stable_order
from millstream.state.aggregates.kinds import SCALARS, require
from millstream.state.aggregates.ordering import ascending


@dataclass(frozen=True, kw_only=True)
class TopK:
    """Keeps the k best values of each group as a list, the best first; equal values all count."""

    k: int
    column: str | None = None
    largest: bool = True
    needs_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise ConfigError(f"k must be an integer of at least 1, got {self.k!r}")
        if type(self.largest) is not bool:
            raise ConfigError(f"largest must be True or False, got {self.largest!r}")

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        return [pa.field("top", self.result_type(value), nullable=False)]

    def fold(
        self, values: pa.Array, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        require("top_k", values.type, SCALARS)
        values, groups = present(values, groups)
        order = ascending(values)
        if self.largest:
            order = order[::-1]
        order = order[stable_order(groups[order], n)]
        counts = np.bincount(groups, minlength=n)
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(order)) - np.repeat(starts, counts)
        offsets = np.concatenate(([0], np.cumsum(np.minimum(counts, self.k))))
        best = values.take(pa.array(order[rank < self.k]))
        return [pa.ListArray.from_arrays(offsets.astype(np.int32), best)]

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        lists = columns[0]
        lengths = lists.value_lengths().to_numpy()
        return self.fold(lists.flatten(), None, np.repeat(groups, lengths), n)

    def result(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        require("top_k", value, SCALARS)
        return pa.list_(value)

"""``first`` and ``last``: the value at either end of each group, by event time or by arrival.

The accumulator keeps the time of its value, in microseconds, null if there was none. A value
without a time gives way to one with a time; among equals arrival decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from millstream.state.aggregates.errors import UnsupportedValueError
from millstream.state.aggregates.grouping import Bools, Groups, Ints, take_or_null, valid_mask


@dataclass(frozen=True, kw_only=True)
class _End:
    column: str | None = None
    needs_values: ClassVar[bool] = True
    name: ClassVar[str]
    pick: ClassVar[np.ufunc]
    worst: ClassVar[int]  # the time that gives way to every other

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        return [pa.field("value", self.result_type(value)), pa.field("time", pa.int64())]

    def fold(
        self, values: pa.Array, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        micros = pa.nulls(len(values), pa.int64()) if times is None else _micros(times)
        return self.merge([values, micros], groups, n)

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        values, times = columns
        rows = self._winners(values, times, groups, n)
        return [take_or_null(column, rows) for column in columns]

    def result(self, columns: list[pa.Array]) -> pa.Array:
        return columns[0]

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        if value is None:
            raise UnsupportedValueError(self.name, "None", ("any type",))
        return value

    def _winners(self, values: pa.Array, times: pa.Array, groups: Groups, n: int) -> Ints:
        """The row of each group's end, -1 for a group without values."""
        candidates = np.flatnonzero(valid_mask(values))
        if times.null_count < len(times):
            candidates = self._at_best_time(candidates, times, groups, n)
        # The last row written for a group stays: for first, write backwards.
        if self.pick is np.minimum:
            candidates = candidates[::-1]
        rows = np.full(n, -1, np.int64)
        rows[groups[candidates]] = candidates
        return rows

    def _at_best_time(self, candidates: Ints, times: pa.Array, groups: Groups, n: int) -> Ints:
        micros: Ints = times.fill_null(self.worst).to_numpy()[candidates]
        best = np.full(n, self.worst, np.int64)
        self.pick.at(best, groups[candidates], micros)
        winning: Bools = micros == best[groups[candidates]]
        return candidates[winning]


@dataclass(frozen=True, kw_only=True)
class First(_End):
    """The earliest value of each group; at equal times, the first to arrive."""

    name: ClassVar[str] = "first"
    pick: ClassVar[np.ufunc] = np.minimum
    worst: ClassVar[int] = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Last(_End):
    """The latest value of each group; at equal times, the last to arrive."""

    name: ClassVar[str] = "last"
    pick: ClassVar[np.ufunc] = np.maximum
    worst: ClassVar[int] = -(2**63)


def _micros(times: pa.Array) -> pa.Array:
    micros = pa.timestamp("us", tz=times.type.tz)
    return times.cast(micros, safe=False).view(pa.int64())

"""What an aggregate is: the protocol that the engine runs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

from millstream.state.aggregates.grouping import Groups


@runtime_checkable
class Aggregate(Protocol):
    """A reducer whose partial results, its accumulators, can be merged.

    Implementations are frozen, hashable and safe to pickle. A group is a number from 0 to
    ``n - 1``; every group has at least one row, and rows are in the order of their arrival.
    """

    @property
    def column(self) -> str | None:
        """The value column it reads; None stands for the column called "value"."""
        ...

    @property
    def needs_values(self) -> bool:
        """False if it reads no values, only the presence of rows."""
        ...

    def accumulators(self, value: pa.DataType | None) -> list[pa.Field]:
        """List the accumulator columns for values of this type, or raise UnsupportedValueError.

        Only the columns marked nullable can hold nulls.
        """
        ...

    def fold(
        self, values: pa.Array | None, times: pa.Array | None, groups: Groups, n: int
    ) -> list[pa.Array]:
        """Reduce rows to one accumulator row for each of the n groups."""
        ...

    def merge(self, columns: list[pa.Array], groups: Groups, n: int) -> list[pa.Array]:
        """Reduce accumulator rows to one for each group; earlier rows arrived earlier."""
        ...

    def result(self, columns: list[pa.Array]) -> pa.Array:
        """Turn accumulator rows into results, one for one."""
        ...

    def result_type(self, value: pa.DataType | None) -> pa.DataType:
        """The type of the results for values of this type."""
        ...

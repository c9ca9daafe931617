"""The errors of aggregates: values they cannot read, and sums that do not fit.

Aggregates know neither job nor key; who calls them says so with ``job`` and ``key``.
"""

from __future__ import annotations

from millstream.errors import ConfigError, DataError


class AggregateError(DataError):
    """A built-in reducer cannot go on with the values it is given."""

    job: str | None = None
    key: str | None = None

    def _of(self) -> str:
        job = "" if self.job is None else f"job {self.job!r}: "
        return job if self.key is None else f"{job}key {self.key}: "


class UnsupportedValueError(AggregateError, ConfigError):
    """An aggregate was given a column of a type that it cannot reduce."""

    def __init__(self, aggregate: str, type: str, allowed: tuple[str, ...]) -> None:
        super().__init__(aggregate, type, allowed)
        self.aggregate, self.type, self.allowed = aggregate, type, allowed

    def __str__(self) -> str:
        allowed = ", ".join(self.allowed)
        return (
            f"{self._of()}{self.aggregate} cannot reduce values of type {self.type}; "
            f"cast the column to one of: {allowed}"
        )


class SumOverflowError(AggregateError):
    """A sum left the range of its type."""

    def __init__(self, column: str, type: str, group: int) -> None:
        super().__init__(column, type, group)
        self.column, self.type, self.group = column, type, group

    def __str__(self) -> str:
        return (
            f"{self._of()}the sum of column {self.column!r} does not fit {self.type}; cast the "
            "column to a wider type (float64, or decimal128 for integers) before summing"
        )

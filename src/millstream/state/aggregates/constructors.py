"""The functions by which users name aggregates. Some shadow built-ins, but only in here."""

from __future__ import annotations

from millstream.errors import ConfigError
from millstream.state.aggregates.approx_distincts import ApproxDistinct
from millstream.state.aggregates.counts import Count
from millstream.state.aggregates.distincts import Distinct
from millstream.state.aggregates.ends import First, Last
from millstream.state.aggregates.extremes import Max, Min
from millstream.state.aggregates.means import Mean
from millstream.state.aggregates.protocol import Aggregate
from millstream.state.aggregates.sets import AggregateSet
from millstream.state.aggregates.sums import Sum
from millstream.state.aggregates.tops import TopK


def count(column: str | None = None) -> Aggregate:
    """Count rows; with a column, the rows where it is not null.

    >>> found = orders.key_by("user").reduce("n", ms.count())
    """
    return Count(column=_checked(column))


def sum(column: str | None = None) -> Aggregate:
    """Add up numbers: integers to int64, floats to float64, decimals to 38 digits.

    A sum of integers or decimals that does not fit raises SumOverflowError.

    >>> found = orders.key_by("user").reduce("spent", ms.sum("amount"))
    """
    return Sum(column=_checked(column))


def mean(column: str | None = None) -> Aggregate:
    """Average numbers, as float64.

    >>> found = orders.key_by("user").reduce("average", ms.mean("amount"))
    """
    return Mean(column=_checked(column))


def min(column: str | None = None) -> Aggregate:
    """The smallest value. NaN is larger than any number.

    >>> found = orders.key_by("user").reduce("least", ms.min("amount"))
    """
    return Min(column=_checked(column))


def max(column: str | None = None) -> Aggregate:
    """The largest value. NaN is larger than any number.

    >>> found = orders.key_by("user").reduce("most", ms.max("amount"))
    """
    return Max(column=_checked(column))


def top_k(k: int, column: str | None = None, *, largest: bool = True) -> Aggregate:
    """The k largest values, largest first; or the k smallest, smallest first.

    >>> found = orders.key_by("user").reduce("largest", ms.top_k(3, "amount"))
    """
    return TopK(k=k, column=_checked(column), largest=largest)


def distinct(column: str | None = None) -> Aggregate:
    """How many different values there are. Each of them is kept: for sets that fit in memory.

    >>> found = orders.key_by("user").reduce("different", ms.distinct("amount"))
    """
    return Distinct(column=_checked(column))


def approx_distinct(column: str | None = None, *, precision: int = 12) -> Aggregate:
    """About how many different values there are, to within 1.04 / 2**(precision / 2).

    HyperLogLog: a few kilobytes a key, however many values there are.

    >>> found = orders.key_by("user").reduce("about", ms.approx_distinct("amount"))
    """
    return ApproxDistinct(column=_checked(column), precision=precision)


def first(column: str | None = None) -> Aggregate:
    """The earliest value, by event time if the job has one, else by arrival.

    >>> found = orders.key_by("user").reduce("opening", ms.first("amount"))
    """
    return First(column=_checked(column))


def last(column: str | None = None) -> Aggregate:
    """The latest value, by event time if the job has one, else by arrival.

    >>> found = orders.key_by("user").reduce("newest", ms.last("amount"))
    """
    return Last(column=_checked(column))


def aggregate(**named: Aggregate) -> AggregateSet:
    """Several aggregates over the same rows.

    >>> both = ms.aggregate(n=ms.count(), average=ms.mean("amount"))
    >>> found = orders.key_by("user").reduce("both", both)
    """
    return AggregateSet(tuple(named.items()))


def _checked(column: str | None) -> str | None:
    if column is not None and (not isinstance(column, str) or not column):
        raise ConfigError(f"column must be the name of a value column or None, got {column!r}")
    return column

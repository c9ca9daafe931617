"""The built-in combinable reducers, vectorised over Arrow columns.

``protocol`` says what an aggregate is; ``constructors`` holds the functions that users call.
Each aggregate has its own file (``counts``, ``sums``, ``means``, ``extremes``, ``tops``,
``distincts``, ``approx_distincts``, ``ends``), built on a few shared ones: ``kinds`` (which Arrow
types an aggregate can read), ``grouping`` (work on dense group ids), ``ordering`` (values as
sortable integers), ``exact`` (integer sums that never wrap), ``hashing`` and ``sketch``
(HyperLogLog). ``sets`` runs several aggregates side by side, which is what the engine uses.

An aggregate knows nothing of keys, epochs or windows: it gets a group number for every row.
"""

from __future__ import annotations

from millstream.state.aggregates.constructors import (
    aggregate,
    approx_distinct,
    count,
    distinct,
    first,
    last,
    max,
    mean,
    min,
    sum,
    top_k,
)
from millstream.state.aggregates.errors import SumOverflowError, UnsupportedValueError
from millstream.state.aggregates.protocol import Aggregate
from millstream.state.aggregates.sets import AggregateSet, as_set

__all__ = [
    "Aggregate",
    "AggregateSet",
    "SumOverflowError",
    "UnsupportedValueError",
    "aggregate",
    "approx_distinct",
    "as_set",
    "count",
    "distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
    "top_k",
]

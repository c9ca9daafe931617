"""The operations on the accumulators of each form of reducer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.state.aggregates import AggregateSet
from millstream.state.aggregates.grouping import Groups, stable_order
from millstream.state.blocks import from_bytes, to_bytes
from millstream.state.column_fragments import concat_rows
from millstream.state.immutable import private_copy
from millstream.state.panes.keys import Ids
from millstream.state.pickling import dumps, loads

Objects = npt.NDArray[np.object_]


class TableAlgebra:
    """Raw rows, for functions over tables."""

    merges = False

    def take(self, rows: pa.RecordBatch, at: Ids) -> pa.RecordBatch:
        return rows.take(pa.array(at))

    def concat(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return parts[0] if len(parts) == 1 else concat_rows(list(parts))

    def merge(self, rows: pa.RecordBatch, groups: Groups, n: int) -> pa.RecordBatch:
        raise TypeError("rows of a table are not merged")

    def pack(self, rows: pa.RecordBatch) -> bytes:
        return to_bytes(rows)

    def unpack(self, data: bytes) -> pa.RecordBatch:
        return from_bytes(data)

    def values(self, rows: pa.RecordBatch) -> list[Any]:
        return list(rows.to_pylist())


class AggregateAlgebra(TableAlgebra):
    """Built-in aggregates: accumulators are columns."""

    merges = True

    def __init__(self, aggregates: AggregateSet) -> None:
        self._aggregates = aggregates

    def merge(self, rows: pa.RecordBatch, groups: Groups, n: int) -> pa.RecordBatch:
        return self._aggregates.merge(rows, groups, n)

    def results(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The results, one column for each aggregate."""
        return self._aggregates.result(rows)

    def values(self, rows: pa.RecordBatch) -> list[Any]:
        results = self.results(rows)
        if results.schema.names == ["value"]:
            return list(results.column(0).to_pylist())
        return list(results.to_pylist())


class _ObjectAlgebra:
    """Accumulators that are Python objects."""

    merges = True

    def take(self, rows: Objects, at: Ids) -> Objects:
        return rows[at]

    def concat(self, parts: Sequence[Objects]) -> Objects:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def pack(self, rows: Objects) -> bytes:
        return dumps(rows.tolist())

    def unpack(self, data: bytes) -> Objects:
        return objects(loads(data))


class CombiningAlgebra(_ObjectAlgebra):
    """A user's combinable; its functions get private copies of mutable accumulators."""

    def __init__(self, merge: Callable[[Any, Any], Any], result: Callable[[Any], Any]) -> None:
        self._merge = merge
        self._result = result

    def merge(self, rows: Objects, groups: Groups, n: int) -> Objects:
        order = stable_order(groups, n)
        starts = np.searchsorted(groups[order], np.arange(n))
        found = rows[order[starts]]
        merge, sizes = self._merge, np.diff(np.append(starts, len(order)))
        for group in np.flatnonzero(sizes > 1).tolist():
            members = order[starts[group] : starts[group] + sizes[group]].tolist()
            accumulator = private_copy(rows[members[0]])
            for other in members[1:]:
                accumulator = merge(accumulator, private_copy(rows[other]))
            found[group] = accumulator
        return found

    def values(self, rows: Objects) -> list[Any]:
        return [self._result(private_copy(accumulator)) for accumulator in rows.tolist()]


class ListAlgebra(_ObjectAlgebra):
    """All values of a key with their times, for functions that see whole windows."""

    def merge(self, rows: Objects, groups: Groups, n: int) -> Objects:
        found: list[tuple[list[Any], list[int]]] = [([], []) for _ in range(n)]
        for group, (values, times) in zip(groups.tolist(), rows.tolist(), strict=True):
            found[group][0].extend(values)
            found[group][1].extend(times)
        return objects(found)

    def values(self, rows: Objects) -> list[Any]:
        return [list(values) for values, _ in rows.tolist()]


def objects(values: Sequence[Any]) -> Objects:
    """Objects of any type as an array."""
    return np.fromiter(values, object, len(values))

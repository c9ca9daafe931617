"""Accumulator columns of the built-in aggregates, folded batch-wise.

Without windows a row is a key. With windows, ``placing`` decides which values of a key share a row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.flow.reducers import AggregateReducer
from millstream.flow.vertices import JobVertex
from millstream.ring.key_types import INSTANT
from millstream.state.aggregates.grouping import Ints
from millstream.work.batches import (
    aggregating,
    concat_batches,
    concat_keys,
    concat_times,
    needed_columns,
)
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import Uniform, group, pair_columns
from millstream.work.packers import key_counts
from millstream.work.packers.key_counts import are_countable, count_keys
from millstream.work.packers.placing import Keys, Placed, Placing, block_order, placed_again

FOLD_ROWS = 500_000
FOLD_BYTES = 64 * 2**20
_NO_TIMES = np.zeros(0, np.int64)


class AggregatePacker:
    """Packs accumulators of one job in one map task."""

    def __init__(
        self, job: JobVertex, reducer: AggregateReducer, slots: int, placing: Placing | None = None
    ) -> None:
        self._job = job
        self._slots = slots
        self._placing: Placing = Keys() if placing is None else placing
        self._aggregates = reducer.aggregates
        # First and last go by the times that users gave, unless these are those of windows.
        self._by_users_time = job.windowing is None or job.windowing.processing_time
        self._counts_rows = job.windowing is None and self._aggregates.count_rows
        self._uniform = Uniform(job)
        self._raw: list[KeyedBatch] = []
        self._times: list[Ints] = []
        self._raw_rows = 0
        self._raw_bytes = 0
        self._folded: list[tuple[pa.Array, Placed, pa.RecordBatch]] = []
        self._folded_bytes = 0
        self.rows = 0

    @property
    def bytes(self) -> int:
        """The size of the accumulators, and of the values that are not folded yet."""
        return self._raw_bytes + self._folded_bytes

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        if times is not None and not len(times):
            return
        batch = values
        if isinstance(batch, Pairs):
            pairs = batch if self._by_users_time else Pairs(batch.items, False)
            # Counting reads no values: they may be anything, also what Arrow cannot carry.
            batch = pair_columns(self._job, pairs, with_values=bool(self._aggregates.columns))
        if self._by_users_time:
            self._uniform.checked([], batch.times is not None)
        if not len(batch):
            return
        self._raw.append(batch)
        if times is not None:
            self._times.append(times)
        self._raw_rows += len(batch)
        self._raw_bytes += batch.nbytes
        self.rows += len(batch)
        most = key_counts.FOLD_ROWS if self._counts_rows else FOLD_ROWS
        if self._raw_rows >= most or self._raw_bytes >= FOLD_BYTES:
            self._fold()

    def _fold(self) -> None:
        if not self._raw:
            return
        raw, times = self._raw, np.concatenate(self._times) if self._times else _NO_TIMES
        self._raw, self._times, self._raw_rows, self._raw_bytes = [], [], 0, 0
        keys = [batch.keys for batch in raw]
        if self._counts_rows and are_countable(keys):
            distinct, counts = count_keys(keys)
            placed = self._placing.place_values(np.arange(len(distinct)), times)
            self._add_folded(distinct, placed, self._aggregates.of_counts(counts))
            return
        numbers, distinct = group(concat_keys(self._job, keys))
        placed = self._placing.place_values(numbers, times)
        values = needed_columns(self._job, self._aggregates.columns, raw)
        stamps = concat_times(raw) if self._by_users_time else pa.array(times).view(INSTANT)
        with aggregating(self._job, distinct, placed.keys):
            folded = self._aggregates.fold(values, stamps, placed.groups, len(placed))
        self._add_folded(distinct, placed, folded)

    def _add_folded(self, distinct: pa.Array, placed: Placed, folded: pa.RecordBatch) -> None:
        self._folded.append((distinct, placed, folded))
        self._folded_bytes += distinct.nbytes + folded.nbytes

    def flush(self) -> pa.RecordBatch | None:
        self._fold()
        if not self._folded:
            return None
        folded, self._folded, self._folded_bytes, self.rows = self._folded, [], 0, 0
        distinct, placed, accumulators = folded[0]
        if len(folded) > 1:
            numbers, distinct = group(concat_keys(self._job, [keys for keys, _, _ in folded]))
            of_parts = np.split(numbers, np.cumsum([len(keys) for keys, _, _ in folded[:-1]]))
            parts = [part for _, part, _ in folded]
            keys = [known[part.keys] for known, part in zip(of_parts, parts, strict=True)]
            placed = placed_again(self._placing, keys, parts)
            accumulators = concat_batches(self._job, [batch for _, _, batch in folded])
            if not placed.is_one_to_one:
                with aggregating(self._job, distinct, placed.keys):
                    accumulators = self._aggregates.merge(accumulators, placed.groups, len(placed))
        order, columns = block_order(distinct, placed, self._slots)
        for name, column in zip(accumulators.schema.names, accumulators.columns, strict=True):
            columns[name] = column.take(pa.array(order))
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

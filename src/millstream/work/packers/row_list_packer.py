"""The rows of each key as one list of structs, for reducers of rows; never as Python objects."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.state.aggregates.grouping import Ints, stable_order
from millstream.state.blocks import KEY, NEWEST, SLOT, keys_in_order
from millstream.work.batches import column_names, concat_columns, concat_keys
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import Uniform, group
from millstream.work.packers.value_lists import VALUES


class RowListPacker:
    """Packs the rows of a job in one map task, by key."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._uniform = Uniform(job)
        self._raw: list[KeyedBatch] = []
        self._times: list[Ints] = []
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        assert isinstance(values, KeyedBatch)  # such a job has key columns
        self._uniform.checked([], times is not None)
        if not len(values.keys):
            return
        self._raw.append(values)
        if times is not None:
            self._times.append(times)
        self.rows += len(values.keys)

    def flush(self) -> pa.RecordBatch | None:
        if not self._raw:
            return None
        raw, self._raw, self.rows = self._raw, [], 0
        times, self._times = self._times, []
        groups, distinct = group(concat_keys(self._job, [batch.keys for batch in raw]))
        names = column_names(raw)
        columns = [
            concat_columns(self._job, name, [batch.values.get(name) for batch in raw])
            for name in names
        ]
        keys, slots, order = keys_in_order(distinct, self._slots)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        row_of = place[groups]
        by_key = stable_order(row_of, len(order))
        taken = pa.array(by_key)
        rows = pa.StructArray.from_arrays([column.take(taken) for column in columns], names)
        cuts = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=len(order)))])
        lists = pa.ListArray.from_arrays(pa.array(cuts, pa.int32()), rows)
        made = [keys, slots, lists]
        named = [KEY, SLOT, VALUES]
        if times:
            named.append(NEWEST)
            made.append(pa.array(np.maximum.reduceat(np.concatenate(times)[by_key], cuts[:-1])))
        return pa.RecordBatch.from_arrays(made, names=named)

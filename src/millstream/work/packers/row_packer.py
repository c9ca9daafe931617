"""Raw rows, for reduce functions over tables."""

from __future__ import annotations

import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.flow.windows import pane_start
from millstream.ring.key_types import INSTANT
from millstream.state.aggregates.grouping import Ints
from millstream.state.blocks import EVENT_TIME, KEY, PANE, SLOT, keys_in_order
from millstream.work.batches import column_names, concat_columns, concat_keys, concat_times
from millstream.work.failures import record_error
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import Uniform, pair_columns


class RowPacker:
    """Packs rows of one job in one map task; those of a windowed job with their ``pane``."""

    def __init__(self, job: JobVertex, slots: int, pane: int | None = None) -> None:
        self._job = job
        self._slots = slots
        self._pane = pane
        self._uniform = Uniform(job)
        self._raw: list[KeyedBatch] = []
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        if times is not None and not len(times):
            return
        batch = values if isinstance(values, KeyedBatch) else pair_columns(self._job, values)
        if times is not None:
            batch = KeyedBatch(batch.keys, batch.values, pa.array(times).view(INSTANT))
        self._uniform.checked([], batch.times is not None)
        if not len(batch.keys):
            return
        self._raw.append(batch)
        self.rows += len(batch.keys)

    def flush(self) -> pa.RecordBatch | None:
        if not self._raw:
            return None
        raw, self._raw, self.rows = self._raw, [], 0
        keys = concat_keys(self._job, [batch.keys for batch in raw])
        names = column_names(raw)
        times = concat_times(raw)
        if self._job.key == KEY:  # the same column, kept among the values of a keyed stream
            names = [name for name in names if name != KEY]
        for taken in (KEY, *([] if times is None else [EVENT_TIME])):
            if taken in names:
                raise record_error(
                    f"input of job {self._job.name!r}",
                    None,
                    f"has a value column {taken!r}, the name that an Arrow reducer is given the "
                    f"{taken} of each row under",
                    "rename the column in a map",
                )
        columns = [
            concat_columns(self._job, name, [batch.values.get(name) for batch in raw])
            for name in names
        ]
        if times is not None:
            names.append(EVENT_TIME)
            columns.append(times)
        if self._pane is not None:
            assert times is not None
            found = times.view(pa.int64()).to_numpy()
            names.append(PANE)
            columns.append(pa.array(pane_start(found, self._pane)))
        keys, slots, order = keys_in_order(keys, self._slots)
        at = pa.array(order)
        return pa.RecordBatch.from_arrays(
            [keys, slots, *(column.take(at) for column in columns)], names=[KEY, SLOT, *names]
        )

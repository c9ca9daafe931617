"""The operator of reducers of rows: that of their functions, told of each epoch.

In the first epoch of a checkpoint it also reduces the initial rows of its slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.flow.row_reducer import RowReducer
from millstream.flow.vertices import JobVertex
from millstream.state.blocks import SLOT
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment
from millstream.times import END
from millstream.work.job_clock import JobClock
from millstream.work.keyed_values import from_batch
from millstream.work.packers.row_list_packer import RowListPacker
from millstream.work.row_values import as_initial
from millstream.work.unit import Reduced, ReduceOperator, UnitContext


class RowOperator:
    """Runs the operator of a reducer of rows."""

    def __init__(
        self,
        job: JobVertex,
        reducer: RowReducer,
        inner: ReduceOperator[KeyedFragment],
        slots: int,
    ) -> None:
        self._job = job
        self._reducer = reducer
        self._inner = inner
        self._slots = slots
        self._packed: list[pa.RecordBatch] | None = None

    @property
    def state(self) -> KeyedState:
        assert isinstance(self._inner.state, KeyedState)
        return self._inner.state

    def reduce(self, blocks: Sequence[pa.RecordBatch], unit: UnitContext) -> Reduced[KeyedFragment]:
        self._reducer.begin(unit.epoch, unit.time, _watermark(unit.clock or JobClock()))
        if unit.epoch == 0 and self._reducer.initial is not None:
            if self._packed is None:  # once for all units of the epoch
                self._packed = self._pack(self._reducer.initial)
            blocks = [*_of_slots(self._packed, unit.slots), *blocks]
        else:
            self._packed = None
        return self._inner.reduce(blocks, unit)

    def _pack(self, rows: pa.Table) -> list[pa.RecordBatch]:
        """The initial rows as a block, if there are any."""
        packer = RowListPacker(self._job, self._slots)
        for batch in rows.to_batches():
            packer.add(from_batch(self._job, batch, timed=False))
        block = packer.flush()
        return [] if block is None else [as_initial(block)]


def _of_slots(blocks: Sequence[pa.RecordBatch], slots: range) -> list[pa.RecordBatch]:
    """The rows of some slots."""
    found = []
    for block in blocks:
        at = block.column(SLOT).to_numpy()
        start, stop = (int(at.searchsorted(slot)) for slot in (slots.start, slots.stop))
        if stop > start:
            found.append(block.slice(start, stop - start))
    return found


def _watermark(clock: JobClock) -> int:
    """The watermark, or the one before it: the end of a bounded stream is no time."""
    return clock.closed if clock.watermark >= END else clock.watermark

"""Packers: they collect the keyed values of one job in one map task, and combine what they can.

A packer takes keyed values as they come, and gives, for each flush, one record batch in canonical
order; ``cut`` divides it among the partitions. Those of windowed jobs have event times. Built-in
aggregates and Arrow rows have one packer with and without windows; users' combinables and reduce
functions have two, because without windows values need not be numbered and sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from millstream.flow.reducers import AggregateReducer, ArrowReducer, CombiningReducer
from millstream.flow.vertices import JobVertex
from millstream.state.aggregates.grouping import Ints
from millstream.state.blocks import slices
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.packers.aggregate_packer import AggregatePacker
from millstream.work.packers.combining_packers import CombiningPacker, WindowCombiningPacker
from millstream.work.packers.placing import Placing, placing_of
from millstream.work.packers.row_list_packer import RowListPacker
from millstream.work.packers.row_packer import RowPacker
from millstream.work.packers.value_packers import ValuePacker, WindowValuePacker

FLUSH_ROWS = 4_000_000


class Packer(Protocol):
    """Collects keyed values of one job in one map task."""

    @property
    def rows(self) -> int:
        """The number of values that were added since the last flush."""

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        """Take some keyed values; those of a windowed job with their event times."""

    def flush(self) -> pa.RecordBatch | None:
        """Give all that was added since the last flush, ordered by slot and hash."""


def packer_for(
    job: JobVertex, slots: int, *, folding: bool = True, placing: Placing | None = None
) -> Packer:
    """Choose the packer for a job's reducer; ``folding`` says whether panes are made here.

    Values of a windowed job share a row as its windows have it, unless ``placing`` is given.
    """
    reducer, windowing = job.reducer, job.windowing
    if windowing is not None and placing is None:
        placing = placing_of(job, folding)
    if isinstance(reducer, AggregateReducer):
        return AggregatePacker(job, reducer, slots, placing)
    if isinstance(reducer, ArrowReducer):
        return RowPacker(job, slots, None if windowing is None else windowing.pane)
    if isinstance(reducer, CombiningReducer):
        if placing is None:
            return CombiningPacker(job, reducer, slots)
        return WindowCombiningPacker(job, reducer, slots, placing)
    if job.row_reducer is not None:
        return RowListPacker(job, slots)
    return ValuePacker(job, slots) if placing is None else WindowValuePacker(job, slots, placing)


def cut(
    batch: pa.RecordBatch, slots: int, partitions: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide an ordered batch among the shuffle partitions, which begin at these slots."""
    yield from slices(batch, [*partitions, slots])

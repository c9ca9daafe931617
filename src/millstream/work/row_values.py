"""The rows of each key of a unit, gathered from blocks, for reducers of rows.

Rows are put in the order of their keys, and then converted all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.flow.row_reducer import RowReducer
from millstream.flow.vertices import JobVertex
from millstream.ring.keys import decode_keys
from millstream.state.aggregates.grouping import stable_order
from millstream.state.blocks import KEY, SLOT
from millstream.times import BEGINNING
from millstream.work.batches import concat_columns
from millstream.work.keyed_values import time_column
from millstream.work.packers.value_lists import VALUES
from millstream.work.unit_values import Groups, gather

_INITIAL = b"millstream.initial"
_Numbers = npt.NDArray[np.int64]


class InitialValues(NamedTuple):
    """The initial rows of a key, and its other rows, if it has any."""

    initial: Any
    values: Any


def as_initial(block: pa.RecordBatch) -> pa.RecordBatch:
    """Mark a block as one of initial rows."""
    return block.replace_schema_metadata({_INITIAL: b""})


def _is_initial(block: pa.RecordBatch) -> bool:
    return _INITIAL in (block.schema.metadata or {})


class _Gathered:
    """Rows with the number of the key of each."""

    def __init__(
        self,
        job: JobVertex,
        blocks: Sequence[pa.RecordBatch],
        index: dict[Any, int],
        slots: list[int],
    ) -> None:
        """``index`` gets a number for each key that it does not have yet, ``slots`` its slot."""
        parts: list[pa.StructArray] = []
        numbers: list[_Numbers] = []
        for block in blocks:
            keys = decode_keys(block.column(KEY))
            before = len(index)
            of_keys = [index.setdefault(key, len(index)) for key in keys]
            of_block = block.column(SLOT).to_pylist()
            if len(index) - before == len(keys):
                slots += of_block
            else:
                news = dict(zip(of_keys, of_block, strict=True))
                slots += [news[number] for number in range(before, len(index))]
            column = block.column(VALUES)
            offsets = column.offsets.to_numpy()
            parts.append(column.values.slice(offsets[0], offsets[-1] - offsets[0]))
            numbers.append(np.repeat(np.array(of_keys, np.int64), np.diff(offsets)))
        self.rows = _concatenated(job, parts)
        self.numbers = np.concatenate(numbers)

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the rows where a mask is false."""
        self.rows = self.rows.filter(pa.array(mask))
        self.numbers = self.numbers[mask]

    def by_key(self, keys: int) -> tuple[pa.RecordBatch, list[int], npt.NDArray[np.bool_]]:
        """The rows in the order of keys, where those of each key begin, and which have any."""
        if np.any(self.numbers[1:] < self.numbers[:-1]):
            order = stable_order(self.numbers, keys)
            self.rows = self.rows.take(pa.array(order))
        counts = np.bincount(self.numbers, minlength=keys)
        return self.rows, [0, *np.cumsum(counts).tolist()], counts > 0


def _concatenated(job: JobVertex, parts: Sequence[pa.StructArray]) -> pa.RecordBatch:
    batches = [pa.RecordBatch.from_struct_array(part) for part in parts]
    if len(batches) == 1:
        return batches[0]
    names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
    columns = [
        concat_columns(
            job, name, [b.column(name) if name in b.schema.names else None for b in batches]
        )
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


def gather_values(
    job: JobVertex, blocks: Sequence[pa.RecordBatch], late: int = BEGINNING
) -> tuple[Groups, list[int]]:
    """The values of each key of a share, and the keys' slots; rows for a reducer of rows.

    Rows whose event time is ``late`` or earlier are dropped, if the reducer drops late ones.
    """
    reducer = job.row_reducer
    return gather(blocks) if reducer is None else _gather_rows(job, reducer, blocks, late)


def _gather_rows(
    job: JobVertex, reducer: RowReducer, blocks: Sequence[pa.RecordBatch], late: int
) -> tuple[dict[Any, Any], list[int]]:
    index: dict[Any, int] = {}
    slots: list[int] = []
    initial = [block for block in blocks if _is_initial(block)]
    others = [block for block in blocks if not _is_initial(block)]
    first = _Gathered(job, initial, index, slots) if initial else None
    rest = _Gathered(job, others, index, slots) if others else None
    if rest is not None and reducer.drops_late and job.time is not None and late > BEGINNING:
        times = time_column(job, rest.rows.column(job.time)).view(pa.int64())
        rest.keep(~(times.fill_null(late + 1).to_numpy(zero_copy_only=False) <= late))
    keys = list(index)
    values: list[Any] = [None] * len(index)
    present = np.zeros(len(index), bool)
    if rest is not None:
        rows, cuts, present = rest.by_key(len(index))
        values = reducer.read(rows, cuts)
    if first is not None:
        rows, cuts, given = first.by_key(len(index))
        made = reducer.read_initial(rows, cuts)
        values = [
            InitialValues(made[at], value if has else None) if given[at] else value
            for at, (value, has) in enumerate(zip(values, present.tolist(), strict=True))
        ]
        present = present | given
    if not present.all():
        kept = np.flatnonzero(present).tolist()
        keys, values = [keys[at] for at in kept], [values[at] for at in kept]
        slots = [slots[at] for at in kept]
    return dict(zip(keys, values, strict=True)), slots

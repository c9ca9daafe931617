"""Packing keyed values into blocks on the map side, combining them where the reducer allows.

One packer for each form of reducer. A packer takes keyed values as they come, and gives, for
each flush, one record batch in canonical order; ``cut`` divides it among the partitions.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
)
from millstream.flow.workflow import JobVertex
from millstream.ring.keys import decode_keys
from millstream.ring.ring import partition_slots
from millstream.state.blocks import KEY, SLOT, place_rows, slices
from millstream.state.pickling import dumps
from millstream.state.values import PICKLED, encode_column, shown
from millstream.work.failures import calling, record_error, user_error
from millstream.work.keying import (
    KeyedBatch,
    Pairs,
    column_values,
    encode_job_keys,
    encode_times,
    group,
    pair_columns,
)

FLUSH_ROWS = 4_000_000
_FOLD_ROWS = 500_000


class Packer(Protocol):
    """Collects keyed values of one job in one map task."""

    rows: int

    def add(self, values: Pairs | KeyedBatch) -> None:
        """Take some keyed values."""

    def flush(self) -> pa.RecordBatch | None:
        """Give all that was taken since the last flush, ordered by slot and hash."""


def packer_for(job: JobVertex, slots: int) -> Packer:
    """Choose the packer for a job's reducer."""
    if isinstance(job.reducer, AggregateReducer):
        return AggregatePacker(job, job.reducer, slots)
    if isinstance(job.reducer, ArrowReducer):
        return RowPacker(job, slots)
    if isinstance(job.reducer, CombiningReducer):
        return CombiningPacker(job, job.reducer, slots)
    return ValuePacker(job, slots)


def cut(batch: pa.RecordBatch, slots: int, partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide an ordered batch among the shuffle partitions that hold its slots."""
    ranges = partition_slots(slots, partitions)
    yield from slices(batch, [part.start for part in ranges] + [slots])


def _ordered(keys: pa.Array, count: int) -> tuple[pa.Array, pa.Array, np.ndarray[Any, Any]]:
    slots, order = place_rows(keys, count)
    return keys.take(pa.array(order)), pa.array(slots[order], pa.int32()), order


class ValuePacker:
    """All values of a key as one list, for reduce functions."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._combine = job.combine
        self._groups: dict[Any, list[Any]] = defaultdict(list)
        self._times: dict[Any, list[Any]] | None = None
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch) -> None:
        if isinstance(values, KeyedBatch):
            keys = decode_keys(values.keys)
            times = values.times.to_pylist() if values.times is not None else None
            items = zip(keys, column_values(values), strict=True)
            self._add(items, times)
            self.rows += len(keys)
            return
        self.rows += len(values.items)
        try:
            if values.timed:
                self._add(((k, v) for k, v, _ in values.items), [t for _, _, t in values.items])
            else:
                self._add(values.items, None)
        except TypeError:  # a key that cannot be hashed is no key: say which
            encode_job_keys(self._job, [item[0] for item in values.items])
            raise

    def _add(self, items: Any, times: list[Any] | None) -> None:
        groups = self._groups
        if times is None:
            for key, value in items:
                groups[key].append(value)
            return
        if self._times is None:
            self._times = defaultdict(list)
        for (key, value), time in zip(items, times, strict=True):
            groups[key].append(value)
            self._times[key].append(time)

    def flush(self) -> pa.RecordBatch | None:
        if not self._groups:
            return None
        groups, times = self._groups, self._times
        self._groups, self._times, self.rows = defaultdict(list), None, 0
        if self._combine is not None:
            groups, times = _combined(self._job, groups), None
        keys, slots, order = _ordered(encode_job_keys(self._job, list(groups)), self._slots)
        lists = list(groups.values())
        lists = [lists[at] for at in order.tolist()]
        field, column = encode_lists("values", lists)
        fields = [pa.field(KEY, keys.type), pa.field(SLOT, pa.int32()), field]
        columns = [keys, slots, column]
        if times is not None:
            stamps = [times[key] for key in groups]
            stamps = [stamps[at] for at in order.tolist()]
            flat = encode_times(list(chain.from_iterable(stamps)))
            columns.append(pa.ListArray.from_arrays(_offsets(stamps), flat))
            fields.append(pa.field("times", columns[-1].type))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _offsets(lists: list[list[Any]]) -> pa.Array:
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def encode_lists(name: str, lists: list[list[Any]]) -> tuple[pa.Field, pa.Array]:
    """Encode a list of values for every key: flat Arrow where exact, else pickled by key."""
    flat = list(chain.from_iterable(lists))
    kinds = set(map(type, flat))
    if len(kinds) == 1 and next(iter(kinds)) in (int, float, str, bytes, bool):
        field, column = encode_column(name, flat)
        if not field.metadata:
            lists_column = pa.ListArray.from_arrays(_offsets(lists), column)
            return pa.field(name, lists_column.type), lists_column
    blobs = pa.array([dumps(values) for values in lists], pa.binary())
    return pa.field(name, pa.binary(), metadata=PICKLED), blobs


def _combined(job: JobVertex, groups: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    combine = job.combine
    assert combine is not None
    several = inspect.isgeneratorfunction(combine)
    found: dict[Any, list[Any]] = {}
    for key, values in groups.items():
        try:
            result = combine(key, values)
            found[key] = list(result) if several else [result]
        except Exception as problem:
            raise user_error(
                f"combine of job {job.name!r}", combine, problem, shown(key)
            ) from problem
    return found


class CombiningPacker:
    """One accumulator of the user's own for every key."""

    def __init__(self, job: JobVertex, reducer: CombiningReducer, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._combinable = reducer.combinable
        self._accumulators: dict[Any, Any] = {}
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch) -> None:
        if isinstance(values, KeyedBatch):
            items = list(zip(decode_keys(values.keys), column_values(values), strict=True))
        else:
            items = [(item[0], item[1]) for item in values.items]
        self.rows += len(items)
        found, add, zero = self._accumulators, self._combinable.add, self._combinable.zero
        with calling(f"add of the reducer of job {self._job.name!r}", add):
            for key, value in items:
                found[key] = add(found[key] if key in found else zero(), value)

    def flush(self) -> pa.RecordBatch | None:
        if not self._accumulators:
            return None
        found, self._accumulators, self.rows = self._accumulators, {}, 0
        keys, slots, order = _ordered(encode_job_keys(self._job, list(found)), self._slots)
        values = list(found.values())
        field, column = encode_lists("values", [[values[at]] for at in order.tolist()])
        fields = [pa.field(KEY, keys.type), pa.field(SLOT, pa.int32()), field]
        return pa.RecordBatch.from_arrays([keys, slots, column], schema=pa.schema(fields))


class AggregatePacker:
    """Accumulator columns of the built-in aggregates, folded batch-wise."""

    def __init__(self, job: JobVertex, reducer: AggregateReducer, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._aggregates = reducer.aggregates
        self._raw: list[KeyedBatch] = []
        self._raw_rows = 0
        self._folded: list[tuple[pa.Array, pa.RecordBatch]] = []
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch) -> None:
        batch = values if isinstance(values, KeyedBatch) else pair_columns(self._job, values)
        self._raw.append(batch)
        self._raw_rows += len(batch.keys)
        self.rows += len(batch.keys)
        if self._raw_rows >= _FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        if not self._raw:
            return
        raw, self._raw, self._raw_rows = self._raw, [], 0
        groups, distinct = group(concat_keys(self._job, [batch.keys for batch in raw]))
        names = list(raw[0].values)
        values = {
            name: _concat_values(self._job, name, [batch.values.get(name) for batch in raw])
            for name in names
        }
        times = None
        if all(batch.times is not None for batch in raw):
            times = pa.concat_arrays([batch.times for batch in raw])
        with _aggregating(self._job):
            folded = self._aggregates.fold(values, times, groups, len(distinct))
        self._folded.append((distinct, folded))

    def flush(self) -> pa.RecordBatch | None:
        self._fold()
        if not self._folded:
            return None
        folded, self._folded, self.rows = self._folded, [], 0
        keys, accumulators = folded[0]
        if len(folded) > 1:
            groups, keys = group(concat_keys(self._job, [distinct for distinct, _ in folded]))
            together = concat_batches(self._job, [batch for _, batch in folded])
            with _aggregating(self._job):
                accumulators = self._aggregates.merge(together, groups, len(keys))
        keys, slots, order = _ordered(keys, self._slots)
        accumulators = accumulators.take(pa.array(order))
        return pa.RecordBatch.from_arrays(
            [keys, slots, *accumulators.columns], names=[KEY, SLOT, *accumulators.schema.names]
        )


class RowPacker:
    """The rows as they are, for Arrow reducers."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._raw: list[KeyedBatch] = []
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch) -> None:
        batch = values if isinstance(values, KeyedBatch) else pair_columns(self._job, values)
        self._raw.append(batch)
        self.rows += len(batch.keys)

    def flush(self) -> pa.RecordBatch | None:
        if not self._raw:
            return None
        raw, self._raw, self.rows = self._raw, [], 0
        keys = concat_keys(self._job, [batch.keys for batch in raw])
        names = [name for name in raw[0].values if name != KEY]
        columns = [
            _concat_values(self._job, name, [batch.values.get(name) for batch in raw])
            for name in names
        ]
        if all(batch.times is not None for batch in raw):
            names.append("time")
            columns.append(pa.concat_arrays([batch.times for batch in raw]))
        keys, slots, order = _ordered(keys, self._slots)
        at = pa.array(order)
        return pa.RecordBatch.from_arrays(
            [keys, slots, *(column.take(at) for column in columns)], names=[KEY, SLOT, *names]
        )


def _aggregating(job: JobVertex) -> Any:
    return calling(f"reducer of job {job.name!r}", type(job.reducer))


def concat_keys(job: JobVertex, parts: list[pa.Array]) -> pa.Array:
    """Join key columns; they must be of one type, null aside."""
    return _concat_values(job, KEY, parts)


def _concat_values(job: JobVertex, name: str, parts: list[pa.Array | None]) -> pa.Array:
    if any(part is None for part in parts):
        raise record_error(
            f"map of job {job.name!r}",
            None,
            f"gave the column {name!r} in some batches only",
            "give the same columns in every batch",
        )
    arrays = [part for part in parts if part is not None]
    kinds = {array.type for array in arrays if not pa.types.is_null(array.type)}
    if len(kinds) > 1:
        names = " and ".join(sorted(map(str, kinds)))
        raise record_error(
            f"input of job {job.name!r}",
            None,
            f"has {name} values of types {names}",
            "give one type (declare key_type= for keys, cast values in the map)",
        )
    kind = kinds.pop() if kinds else pa.null()
    return pa.concat_arrays([array.cast(kind) for array in arrays])


def concat_batches(job: JobVertex, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of the same columns, whose types may differ only by null."""
    if len(batches) == 1:
        return batches[0]
    names = batches[0].schema.names
    columns = [
        _concat_values(job, name, [batch.column(name) for batch in batches]) for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)



"""Packing keyed values into blocks on the map side, combining them where the reducer allows.

One packer for each form of reducer. A packer takes keyed values as they come, and gives, for
each flush, one record batch in canonical order; ``cut`` divides it among the partitions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
)
from millstream.flow.vertices import JobVertex
from millstream.ring.key_types import shown_key
from millstream.ring.keys import decode_keys
from millstream.ring.ring import partition_slots
from millstream.state.aggregates.errors import AggregateError, SumOverflowError
from millstream.state.aggregates.grouping import Ints
from millstream.state.blocks import KEY, SLOT, place_rows, slices
from millstream.state.values import shown, unify
from millstream.work.failures import RecordError, calling, record_error, user_error
from millstream.work.keyed_values import (
    KeyedBatch,
    Pairs,
    Uniform,
    column_values,
    encode_job_keys,
    encode_times,
    group,
    one_key_type,
    pair_columns,
)
from millstream.work.value_lists import encode_lists, encode_repeated, offsets_of, only_value

FLUSH_ROWS = 4_000_000
FOLD_ROWS = 500_000
FOLD_BYTES = 64 * 2**20
TIME = "time"


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
        self._uniform = Uniform(job)
        self._groups: dict[Any, list[Any]] = defaultdict(list)
        self._times: dict[Any, list[Any]] = defaultdict(list)
        self._counts: Counter[Any] = Counter()
        self._repeated: Any = None
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch) -> None:
        items, times = _items(values)
        items = self._uniform.checked(items, times is not None)
        self.rows += len(items)
        try:
            if times is None and self._add_repeated(items):
                return
            self._add(items)
        except TypeError:  # a key that cannot be hashed is no key: say which
            encode_job_keys(self._job, [key for key, _ in items])
            raise
        if times is not None:
            for (key, _), time in zip(items, times, strict=True):
                self._times[key].append(time)

    def _add(self, items: Iterable[tuple[Any, ...]]) -> None:
        groups = self._groups
        if self._counts:
            # The values before these were all one; from now on lists are kept.
            for key, number in self._counts.items():
                groups[key].extend([self._repeated] * number)
            self._counts = Counter()
        for key, value in items:
            groups[key].append(value)

    def _add_repeated(self, items: Sequence[tuple[Any, ...]]) -> bool:
        """Count the keys while all values are the same one: twice as fast as lists of it."""
        if self._groups or not items:
            return False
        values = list(map(itemgetter(1), items))
        if not only_value(values):
            return False
        if self._counts and not only_value([self._repeated, values[0]]):
            return False
        self._repeated = values[0]
        self._counts.update(map(itemgetter(0), items))
        return True

    def flush(self) -> pa.RecordBatch | None:
        if self._counts and self._combine is not None:
            self._add(())
        if self._counts:
            return self._flush_counts()
        if not self._groups:
            return None
        groups, times = self._groups, self._times
        self._groups, self._times, self.rows = defaultdict(list), defaultdict(list), 0
        if self._combine is not None:
            groups, times = _combined(self._job, groups), {}
        if not groups:
            return None
        keys, slots, order = _ordered(encode_job_keys(self._job, list(groups)), self._slots)
        lists = list(groups.values())
        lists = [lists[at] for at in order.tolist()]
        batch = _block(keys, slots, *encode_lists(self._job, lists))
        if times:
            stamps = [times[key] for key in groups]
            stamps = [stamps[at] for at in order.tolist()]
            flat = encode_times(self._job, list(chain.from_iterable(stamps)))
            column = pa.ListArray.from_arrays(offsets_of(stamps), flat)
            batch = batch.append_column("times", column)
        return batch

    def _flush_counts(self) -> pa.RecordBatch:
        counts, self._counts, self.rows = self._counts, Counter(), 0
        keys, slots, order = _ordered(encode_job_keys(self._job, list(counts)), self._slots)
        numbers = np.fromiter(counts.values(), np.int64, len(counts))[order]
        return _block(keys, slots, *encode_repeated(numbers.tolist(), self._repeated))


def _block(keys: pa.Array, slots: pa.Array, field: pa.Field, column: pa.Array) -> pa.RecordBatch:
    fields = [pa.field(KEY, keys.type), pa.field(SLOT, pa.int32()), field]
    return pa.RecordBatch.from_arrays([keys, slots, column], schema=pa.schema(fields))


def _items(values: Pairs | KeyedBatch) -> tuple[Sequence[Any], list[Any] | None]:
    """Pairs of key and value as Python objects, and their times if they have any."""
    if isinstance(values, KeyedBatch):
        times = None if values.times is None else values.times.to_pylist()
        return list(zip(decode_keys(values.keys), column_values(values), strict=True)), times
    if values.timed:
        return [(k, v) for k, v, _ in values.items], [time for _, _, time in values.items]
    return values.items, None


def _combined(job: JobVertex, groups: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
    combine = job.combine
    assert combine is not None
    found: dict[Any, list[Any]] = {}
    for key, values in groups.items():
        try:
            result = combine(key, values)
            kept = list(result) if hasattr(result, "__next__") else [result]
            if kept:
                found[key] = kept
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
        self._uniform = Uniform(job)
        self._accumulators: dict[Any, Any] = {}
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch) -> None:
        items, times = _items(values)
        items = self._uniform.checked(items, times is not None)
        self.rows += len(items)
        found, add, zero = self._accumulators, self._combinable.add, self._combinable.zero
        key: Any = None
        try:
            for key, value in items:
                found[key] = add(found[key] if key in found else zero(), value)
        except Exception as problem:
            encode_job_keys(self._job, [key])  # a key that cannot be hashed is no key: say which
            raise user_error(
                f"add of the reducer of job {self._job.name!r}", add, problem, shown(key)
            ) from problem

    def flush(self) -> pa.RecordBatch | None:
        if not self._accumulators:
            return None
        found, self._accumulators, self.rows = self._accumulators, {}, 0
        keys, slots, order = _ordered(encode_job_keys(self._job, list(found)), self._slots)
        values = list(found.values())
        field, column = encode_lists(self._job, [[values[at]] for at in order.tolist()])
        fields = [pa.field(KEY, keys.type), pa.field(SLOT, pa.int32()), field]
        return pa.RecordBatch.from_arrays([keys, slots, column], schema=pa.schema(fields))


class AggregatePacker:
    """Accumulator columns of the built-in aggregates, folded batch-wise."""

    def __init__(self, job: JobVertex, reducer: AggregateReducer, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._aggregates = reducer.aggregates
        self._uniform = Uniform(job)
        self._raw: list[KeyedBatch] = []
        self._raw_rows = 0
        self._raw_bytes = 0
        self._folded: list[tuple[pa.Array, pa.RecordBatch]] = []
        self._folded_bytes = 0
        self.rows = 0

    @property
    def bytes(self) -> int:
        """What is held: accumulators, and values that are not folded yet."""
        return self._raw_bytes + self._folded_bytes

    def add(self, values: Pairs | KeyedBatch) -> None:
        batch = values
        if isinstance(batch, Pairs):
            # Counting reads no values: they may be anything, also what Arrow cannot carry.
            needed = bool(self._aggregates.columns)
            batch = pair_columns(self._job, batch, with_values=needed)
        self._uniform.checked([], batch.times is not None)
        if not len(batch.keys):
            return
        self._raw.append(batch)
        self._raw_rows += len(batch.keys)
        self._raw_bytes += batch.nbytes
        self.rows += len(batch.keys)
        if self._raw_rows >= FOLD_ROWS or self._raw_bytes >= FOLD_BYTES:
            self._fold()

    def _fold(self) -> None:
        if not self._raw:
            return
        raw, self._raw, self._raw_rows, self._raw_bytes = self._raw, [], 0, 0
        groups, distinct = group(concat_keys(self._job, [batch.keys for batch in raw]))
        values = needed_columns(self._job, self._aggregates.columns, raw)
        times = concat_times(raw)
        with aggregating(self._job, distinct):
            folded = self._aggregates.fold(values, times, groups, len(distinct))
        self._folded.append((distinct, folded))
        self._folded_bytes += distinct.nbytes + folded.nbytes

    def flush(self) -> pa.RecordBatch | None:
        self._fold()
        if not self._folded:
            return None
        folded, self._folded, self._folded_bytes, self.rows = self._folded, [], 0, 0
        keys, accumulators = folded[0]
        if len(folded) > 1:
            groups, keys = group(concat_keys(self._job, [distinct for distinct, _ in folded]))
            together = concat_batches(self._job, [batch for _, batch in folded])
            with aggregating(self._job, keys):
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
        self._uniform = Uniform(job)
        self._raw: list[KeyedBatch] = []
        self.rows = 0

    def add(self, values: Pairs | KeyedBatch) -> None:
        batch = values if isinstance(values, KeyedBatch) else pair_columns(self._job, values)
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
        names = _names(raw)
        times = concat_times(raw)
        if self._job.key == KEY:  # the same column, kept among the values of a keyed stream
            names = [name for name in names if name != KEY]
        for taken in (KEY, *([] if times is None else [TIME])):
            if taken in names:
                raise record_error(
                    f"input of job {self._job.name!r}",
                    None,
                    f"has a value column {taken!r}, the name that an Arrow reducer is given the "
                    f"{taken} of each row under",
                    "rename the column in a map",
                )
        columns = [
            _concat(self._job, name, [batch.values.get(name) for batch in raw]) for name in names
        ]
        if times is not None:
            names.append(TIME)
            columns.append(times)
        keys, slots, order = _ordered(keys, self._slots)
        at = pa.array(order)
        return pa.RecordBatch.from_arrays(
            [keys, slots, *(column.take(at) for column in columns)], names=[KEY, SLOT, *names]
        )


@contextmanager
def aggregating(
    job: JobVertex, keys: pa.Array | None = None, of_groups: Ints | None = None
) -> Iterator[None]:
    """Say what built-in aggregates find wrong as the job's reducer does.

    ``keys`` has the key of each group, if they are at hand; or the groups say where it is there.
    """
    try:
        with calling(f"reducer of job {job.name!r}", type(job.reducer)):
            yield
    except AggregateError as problem:
        problem.job = job.name
        if keys is not None and isinstance(problem, SumOverflowError):
            at = problem.group if of_groups is None else int(of_groups[problem.group])
            problem.key = shown_key(decode_keys(keys.slice(at, 1))[0])
        raise


def needed_columns(
    job: JobVertex, needed: Collection[str], batches: list[KeyedBatch]
) -> dict[str, pa.Array]:
    """The value columns that aggregates read, over all batches."""
    names = _names(batches)
    if set(needed) <= set(names):  # else the aggregates say which column they miss
        names = [name for name in names if name in needed]
    return {name: _concat(job, name, [b.values.get(name) for b in batches]) for name in names}


def _names(batches: list[KeyedBatch]) -> list[str]:
    """The value columns that any of the batches has."""
    return list(dict.fromkeys(name for batch in batches for name in batch.values))


def concat_times(batches: list[KeyedBatch]) -> pa.Array | None:
    """The event times of all batches, if they have any."""
    times = [batch.times for batch in batches if batch.times is not None]
    return pa.concat_arrays(times) if times else None


def concat_keys(job: JobVertex, parts: list[pa.Array]) -> pa.Array:
    """Join key columns; they must be of one type, null aside."""
    kind = one_key_type(job, parts)
    return pa.concat_arrays([part if part.type == kind else part.cast(kind) for part in parts])


def _concat(job: JobVertex, name: str, parts: Sequence[pa.Array | None]) -> pa.Array:
    arrays = [part for part in parts if part is not None]
    if len(arrays) < len(parts):
        raise record_error(
            f"map of job {job.name!r}",
            None,
            f"gave the column {name!r} in some batches only",
            "give the same columns in every batch",
        )
    kind = unify(array.type for array in arrays)
    fix = "give one type (cast values in the map)"
    if kind is None:
        raise _several_types(job, name, [array.type for array in arrays], fix)
    try:
        return pa.concat_arrays([a if a.type == kind else a.cast(kind) for a in arrays])
    except pa.ArrowInvalid:  # an integer that no float equals
        raise _several_types(job, name, [array.type for array in arrays], fix) from None


def _several_types(
    job: JobVertex, name: str, kinds: Sequence[pa.DataType], fix: str
) -> RecordError:
    names = " and ".join(sorted({str(kind) for kind in kinds if not pa.types.is_null(kind)}))
    return record_error(
        f"input of job {job.name!r}", None, f"has {name} values of types {names}", fix
    )


def concat_batches(job: JobVertex, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of the same columns, whose types may differ by null, or as numbers."""
    if len(batches) == 1:
        return batches[0]
    names = list(dict.fromkeys(name for batch in batches for name in batch.schema.names))
    columns = []
    for name in names:
        parts = [b.column(name) if name in b.schema.names else None for b in batches]
        if name == KEY:
            columns.append(concat_keys(job, [part for part in parts if part is not None]))
        else:
            columns.append(_concat(job, name, parts))
    return pa.RecordBatch.from_arrays(columns, names=names)

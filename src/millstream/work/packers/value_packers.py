"""All values of a key as a list, for reduce functions.

Without windows, values are only counted while all are equal, and grouped in columns while all are
plain and of one type; others are grouped by key as they come: that is faster than numbering and
sorting them, which windows need.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.ring.keys import canonical_type, decode_keys
from millstream.state.aggregates.grouping import Ints, stable_order
from millstream.state.blocks import KEY, NEWEST, SLOT, keys_in_order
from millstream.state.values import value_text
from millstream.times import BEGINNING
from millstream.work.failures import user_error
from millstream.work.keyed_batches import KeyedBatch, Pairs
from millstream.work.keyed_values import Uniform, encode_job_keys, encode_times
from millstream.work.packers.block_weight import LARGEST_BYTES
from millstream.work.packers.collected_values import CollectedValues, as_items
from millstream.work.packers.key_counts import KeyCounts, key_column
from millstream.work.packers.placing import Placing, block_order
from millstream.work.packers.value_columns import ValueColumns, value_column
from millstream.work.packers.value_lists import (
    TIMES,
    encode_lists,
    encode_repeated,
    offsets_of,
    only_value,
    with_lists,
)

_key, _value = itemgetter(0), itemgetter(1)


class ValuePacker:
    """Packs all values of a key as one list; for timers, also the newest of their event times."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        self._job = job
        self._slots = slots
        self._combine = job.combine
        self._uniform = Uniform(job)
        self._groups: dict[Any, list[Any]] = defaultdict(list)
        self._times: dict[Any, list[Any]] = defaultdict(list)
        self._newest: dict[Any, int] | None = None  # of each key with a time, if values have any
        self._counts: Counter[Any] = Counter()
        self._repeats = KeyCounts()
        self._columns = ValueColumns()
        self._repeated: Any = None
        self.rows = 0

    def add_columns(self, values: Pairs | KeyedBatch, limit: int = LARGEST_BYTES) -> int | None:
        """Take plain values of one type in columns, and return their size; else take nothing."""
        if not isinstance(values, Pairs) or values.timed or self._groups or self._counts:
            return None
        if self._combine is not None or not values.items:
            return None
        of_pairs, given, *_ = values.columns
        keys = key_column(of_pairs)
        if keys is None or keys.nbytes > limit or keys.type != (self._repeats.kind or keys.type):
            return None
        if self._job.key_type is not None and canonical_type(self._job.key_type) != keys.type:
            return None
        self._uniform.checked(values.items[:1], False)  # all keys of a column have one type
        if not self._columns and self._is_repeated(given):
            weight = int(keys.nbytes)
            self._repeated = given[0]
            self._repeats.add(keys)
        else:
            column = value_column(given)
            if column is None or keys.nbytes + column.nbytes > limit:
                return None
            before = value_column((self._repeated,)) if self._repeats else column
            if before is None or before.type != column.type or not self._columns.fits(keys, column):
                return None
            weight = int(keys.nbytes + column.nbytes)
            if self._repeats:
                self._columns.add_repeated(*self._repeats.take(), before)
            self._columns.add(keys, column)
        self.rows += len(keys)
        return weight

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        if times is None and self.add_columns(values) is not None:
            return
        items, stamps = as_items(values)
        items = self._uniform.checked(items, stamps is not None)
        self.rows += len(items)
        if times is not None:
            stamps = None
            self._note_newest(items, times)
        try:
            if stamps is None and self._add_repeated(items):
                return
            self._add(items)
        except TypeError:  # report the key that cannot be hashed
            encode_job_keys(self._job, [key for key, _ in items])
            raise
        if stamps is not None:
            for (key, _), stamp in zip(items, stamps, strict=True):
                self._times[key].append(stamp)

    def _note_newest(self, items: Iterable[tuple[Any, ...]], times: Ints) -> None:
        newest = {} if self._newest is None else self._newest
        self._newest = newest
        try:
            for (key, _), time in zip(items, times.tolist(), strict=True):
                if time > newest.get(key, BEGINNING):
                    newest[key] = time
        except TypeError:  # a key that cannot be hashed; grouping reports it
            return

    def _add(self, items: Iterable[tuple[Any, ...]]) -> None:
        groups = self._groups
        self._decode_columns()
        if self._counts:
            # The values so far were all equal; from now on they are collected in lists.
            for key, number in self._counts.items():
                groups[key].extend([self._repeated] * number)
            self._counts = Counter()
        for key, value in items:
            groups[key].append(value)

    def _add_repeated(self, items: Sequence[tuple[Any, ...]]) -> bool:
        """Count keys while all values are equal: twice as fast as collecting them in lists."""
        if self._groups or self._columns or not items:
            return False
        if not self._is_repeated(tuple(map(_value, items))):
            return False
        self._decode_columns()
        self._repeated = items[0][1]
        self._counts.update(map(_key, items))
        return True

    def _is_repeated(self, values: tuple[Any, ...]) -> bool:
        """Whether all values are equal, and equal to those before."""
        if not only_value(values):
            return False
        known = self._counts or self._repeats
        return not known or only_value((self._repeated, values[0]))

    def _decode_columns(self) -> None:
        """Take what is in columns out of them, because it has to be grouped with other values."""
        if self._repeats:
            keys, numbers = self._repeats.take()
            self._counts.update(dict(zip(decode_keys(keys), numbers.tolist(), strict=True)))
        if self._columns:
            keys, values = self._columns.take()
            for key, value in zip(decode_keys(keys), values.to_pylist(), strict=True):
                self._groups[key].append(value)

    def flush(self) -> pa.RecordBatch | None:
        newest, self._newest = self._newest, None
        batch = self._flush()
        if batch is None or newest is None:
            return batch
        keys = decode_keys(batch.column(KEY))
        column = np.fromiter((newest.get(key, BEGINNING) for key in keys), np.int64, len(keys))
        return batch.append_column(NEWEST, pa.array(column))

    def _flush(self) -> pa.RecordBatch | None:
        if self._counts and self._combine is not None:
            self._add(())
        if self._columns:
            self.rows = 0
            return self._columns.flush(self._slots)
        if self._repeats:
            self.rows = 0
            return self._counted(*self._repeats.take())
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
        keys, slots, order = keys_in_order(encode_job_keys(self._job, list(groups)), self._slots)
        lists = list(groups.values())
        lists = [lists[at] for at in order.tolist()]
        batch = with_lists({KEY: keys, SLOT: slots}, *encode_lists(self._job, lists))
        if times:
            stamps = [times[key] for key in groups]
            stamps = [stamps[at] for at in order.tolist()]
            flat = encode_times(self._job, list(chain.from_iterable(stamps)))
            column = pa.ListArray.from_arrays(offsets_of(stamps), flat)
            batch = batch.append_column("times", column)
        return batch

    def _flush_counts(self) -> pa.RecordBatch:
        counts, self._counts, self.rows = self._counts, Counter(), 0
        numbers = np.fromiter(counts.values(), np.int64, len(counts))
        return self._counted(encode_job_keys(self._job, list(counts)), numbers)

    def _counted(self, keys: pa.Array, numbers: Ints) -> pa.RecordBatch:
        keys, slots, order = keys_in_order(keys, self._slots)
        return with_lists(
            {KEY: keys, SLOT: slots}, *encode_repeated(numbers[order], self._repeated)
        )


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
                f"combine of job {job.name!r}", combine, problem, value_text(key)
            ) from problem
    return found


class WindowValuePacker:
    """Packs the values of a windowed job and their times as lists."""

    def __init__(self, job: JobVertex, slots: int, placing: Placing) -> None:
        self._job = job
        self._slots = slots
        self._placing = placing
        self._collected = CollectedValues(job)

    @property
    def rows(self) -> int:
        return len(self._collected)

    def add(self, values: Pairs | KeyedBatch, times: Ints | None = None) -> None:
        assert times is not None
        if len(times):
            self._collected.add(values, times)

    def flush(self) -> pa.RecordBatch | None:
        if not self.rows:
            return None
        numbers, times, values = self._collected.take()
        distinct = encode_job_keys(self._job, self._collected.take_keys())
        placed = self._placing.place_values(numbers, times)
        order, columns = block_order(distinct, placed, self._slots)
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        rows = row_of[placed.groups]
        by_row = stable_order(rows, len(order))
        cuts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(order)))])
        values = list(map(values.__getitem__, by_row.tolist()))
        lists = [values[start:stop] for start, stop in pairwise(cuts.tolist())]
        field, column = encode_lists(self._job, lists)
        stamps = pa.ListArray.from_arrays(pa.array(cuts, pa.int32()), pa.array(times[by_row]))
        return with_lists(columns, field, column).append_column(TIMES, stamps)

"""Packing the values of windowed jobs into blocks on the map side.

One packer for each form of reducer; ``placing.py`` says which values share a row. Built-in
aggregates are folded in columns, a user's own combinable value by value, and the values for a
reduce function are kept as lists with their times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
    JoinReducer,
)
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, SessionWindow, TimeWindow
from millstream.ring.key_types import INSTANT
from millstream.ring.keys import decode_keys
from millstream.state.aggregates.grouping import Ints, stable_order
from millstream.state.blocks import KEY, PANE, SLOT, place_rows
from millstream.state.values import shown
from millstream.work.event_time_gate import Timed
from millstream.work.failures import user_error
from millstream.work.keyed_values import (
    KeyedBatch,
    Pairs,
    Uniform,
    column_values,
    encode_job_keys,
    group,
    pair_columns,
)
from millstream.work.packers import (
    FOLD_BYTES,
    FOLD_ROWS,
    TIME,
    RowPacker,
    aggregating,
    concat_batches,
    concat_keys,
    concat_times,
    needed_columns,
)
from millstream.work.value_lists import TIMES, encode_lists
from millstream.work.window_rows import (
    Bursts,
    Columns,
    Each,
    Keys,
    PaneOfEach,
    Panes,
    Placed,
    Placing,
    Totals,
)


class WindowPacker(Protocol):
    """Collects the values of one windowed job in one map task."""

    @property
    def rows(self) -> int:
        """How many values were taken since the last flush."""

    def add(self, values: Timed) -> None:
        """Take some values that windows take."""

    def flush(self) -> pa.RecordBatch | None:
        """Give all that was taken since the last flush, ordered by slot and hash."""


def window_packer_for(
    job: JobVertex, slots: int, *, folding: bool = True, placing: Placing | None = None
) -> WindowPacker:
    """Choose the packer for a windowed job; ``folding`` says whether panes are made here.

    Values share a row as their window has it, unless a ``placing`` says otherwise.
    """
    placing = placing or _placing(job, folding)
    if isinstance(job.reducer, AggregateReducer):
        return WindowAggregatePacker(job, job.reducer, slots, placing)
    if isinstance(job.reducer, CombiningReducer):
        return WindowCombiningPacker(job, job.reducer, slots, placing)
    if isinstance(job.reducer, ArrowReducer):
        assert job.windowing is not None
        return WindowRowPacker(job, slots, job.windowing.pane)
    return WindowValuePacker(job, slots, placing)


def _placing(job: JobVertex, folding: bool) -> Placing:
    assert job.windowing is not None
    if isinstance(job.reducer, JoinReducer):
        return Panes(job.reducer.pane)
    merges = isinstance(job.reducer, AggregateReducer | CombiningReducer)
    window = job.windowing.windows[0]
    if isinstance(window, TimeWindow):
        pane = job.windowing.pane
        return PaneOfEach(pane) if merges and not folding else Panes(pane)
    if isinstance(window, SessionWindow):
        return Bursts(window.gap)
    if isinstance(window, CountWindow):
        return Each() if merges else Keys()
    return Totals()


class WindowAggregatePacker:
    """Accumulator columns of the built-in aggregates."""

    def __init__(
        self, job: JobVertex, reducer: AggregateReducer, slots: int, placing: Placing
    ) -> None:
        assert job.windowing is not None
        self._job = job
        self._slots = slots
        self._placing = placing
        self._aggregates = reducer.aggregates
        self._by_arrival = job.windowing.processing_time
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
        """What is held: accumulators, and values that are not folded yet."""
        return self._raw_bytes + self._folded_bytes

    def add(self, values: Timed) -> None:
        if not len(values.times):
            return
        batch = values.values
        if isinstance(batch, Pairs):
            # Counting reads no values; and times are known, but for those of processing time.
            pairs = Pairs(batch.items, batch.timed and self._by_arrival)
            needed = bool(self._aggregates.columns)
            batch = pair_columns(self._job, pairs, with_values=needed)
        if self._by_arrival:
            self._uniform.checked([], batch.times is not None)
        self._raw.append(batch)
        self._times.append(values.times)
        self._raw_rows += len(values.times)
        self._raw_bytes += batch.nbytes
        self.rows += len(values.times)
        if self._raw_rows >= FOLD_ROWS or self._raw_bytes >= FOLD_BYTES:
            self._fold()

    def _fold(self) -> None:
        if not self._raw:
            return
        raw, times = self._raw, np.concatenate(self._times)
        self._raw, self._times, self._raw_rows, self._raw_bytes = [], [], 0, 0
        keys, distinct = group(concat_keys(self._job, [batch.keys for batch in raw]))
        placed = self._placing.place_values(keys, times)
        values = needed_columns(self._job, self._aggregates.columns, raw)
        # First and last go by what users said of time, also where windows do not.
        stamps = concat_times(raw) if self._by_arrival else pa.array(times).view(INSTANT)
        with aggregating(self._job, distinct, placed.keys):
            folded = self._aggregates.fold(values, stamps, placed.groups, len(placed))
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
            placed = _together(self._placing, keys, parts)
            accumulators = concat_batches(self._job, [batch for _, _, batch in folded])
            if not _is_apart(placed):
                with aggregating(self._job, distinct, placed.keys):
                    accumulators = self._aggregates.merge(accumulators, placed.groups, len(placed))
        order, columns = _ordered(distinct, placed, self._slots)
        for name, column in zip(accumulators.schema.names, accumulators.columns, strict=True):
            columns[name] = column.take(pa.array(order))
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class _Collected:
    """Values as Python objects, with numbers for their keys."""

    def __init__(self, job: JobVertex) -> None:
        self._job = job
        self._uniform = Uniform(job)
        self._ids: defaultdict[Any, int] = _numbering()
        self._numbers: list[Ints] = []
        self._times: list[Ints] = []
        self._values: list[Any] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, values: Timed) -> None:
        batch = values.values
        if isinstance(batch, KeyedBatch):
            groups, distinct = group(batch.keys)
            self._numbers.append(self._number(decode_keys(distinct))[groups])
            self._values.extend(column_values(batch))
        else:
            self._numbers.append(self._number(list(map(itemgetter(0), batch.items))))
            self._values.extend(map(itemgetter(1), batch.items))
        self._times.append(values.times)

    def _number(self, keys: Sequence[Any]) -> Ints:
        keys = self._uniform.keys(keys)
        try:
            return np.fromiter(map(self._ids.__getitem__, keys), np.int64, len(keys))
        except TypeError:  # a key that cannot be hashed is no key: say which
            encode_job_keys(self._job, keys)
            raise

    def take(self) -> tuple[Ints, Ints, list[Any]]:
        """The numbers of the keys, the times and the values since the last time."""
        found = np.concatenate(self._numbers), np.concatenate(self._times), self._values
        self._numbers, self._times, self._values = [], [], []
        return found

    def key(self, number: int) -> Any:
        """The key with a number."""
        return list(self._ids)[number]

    def take_keys(self) -> list[Any]:
        """The keys by their numbers; from here on, others get these numbers."""
        keys, self._ids = list(self._ids), _numbering()
        return keys


def _numbering() -> defaultdict[Any, int]:
    ids: defaultdict[Any, int] = defaultdict()
    ids.default_factory = ids.__len__
    return ids


class WindowValuePacker:
    """The values and their times as lists, for reduce functions."""

    def __init__(self, job: JobVertex, slots: int, placing: Placing) -> None:
        self._job = job
        self._slots = slots
        self._placing = placing
        self._collected = _Collected(job)

    @property
    def rows(self) -> int:
        return len(self._collected)

    def add(self, values: Timed) -> None:
        if len(values.times):
            self._collected.add(values)

    def flush(self) -> pa.RecordBatch | None:
        if not self.rows:
            return None
        numbers, times, values = self._collected.take()
        distinct = encode_job_keys(self._job, self._collected.take_keys())
        placed = self._placing.place_values(numbers, times)
        order, columns = _ordered(distinct, placed, self._slots)
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        rows = row_of[placed.groups]
        by_row = stable_order(rows, len(order))
        cuts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(order)))])
        values = list(map(values.__getitem__, by_row.tolist()))
        lists = [values[start:stop] for start, stop in pairwise(cuts.tolist())]
        field, column = encode_lists(self._job, lists)
        stamps = pa.ListArray.from_arrays(pa.array(cuts, pa.int32()), pa.array(times[by_row]))
        return _with_lists(columns, field, column).append_column(TIMES, stamps)


class WindowRowPacker:
    """The rows as they are, each with its pane and time, for functions over tables."""

    def __init__(self, job: JobVertex, slots: int, pane: int) -> None:
        self._job = job
        self._pane = pane
        self._packer = RowPacker(job, slots)

    @property
    def rows(self) -> int:
        return self._packer.rows

    def add(self, values: Timed) -> None:
        batch = values.values
        if isinstance(batch, Pairs):
            if not batch.items:
                return
            batch = pair_columns(self._job, batch)
        times = pa.array(values.times).view(INSTANT)
        self._packer.add(KeyedBatch(batch.keys, batch.values, times))

    def flush(self) -> pa.RecordBatch | None:
        block = self._packer.flush()
        if block is None:
            return None
        times = block.column(TIME).view(pa.int64()).to_numpy()
        return block.append_column(PANE, pa.array(times // self._pane * self._pane))


class WindowCombiningPacker:
    """Accumulators of the user's own."""

    def __init__(
        self, job: JobVertex, reducer: CombiningReducer, slots: int, placing: Placing
    ) -> None:
        self._job = job
        self._slots = slots
        self._placing = placing
        self._combinable = reducer.combinable
        self._collected = _Collected(job)
        self._folded: list[tuple[Placed, list[Any]]] = []
        self.rows = 0

    def add(self, values: Timed) -> None:
        if not len(values.times):
            return
        self._collected.add(values)
        self.rows += len(values.times)
        if len(self._collected) >= FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        if not len(self._collected):
            return
        numbers, times, values = self._collected.take()
        placed = self._placing.place_values(numbers, times)
        add, zero = self._combinable.add, self._combinable.zero
        row = 0
        try:
            found = [zero() for _ in range(len(placed))]
            for row, value in zip(placed.groups.tolist(), values, strict=True):
                found[row] = add(found[row], value)
        except Exception as problem:
            raise self._error("add", add, problem, int(placed.keys[row])) from problem
        self._folded.append((placed, found))

    def _merged(self) -> tuple[Placed, list[Any]]:
        folded, self._folded = self._folded, []
        if len(folded) == 1:
            return folded[0]
        parts = [part for part, _ in folded]
        placed = _together(self._placing, [part.keys for part in parts], parts)
        accumulators = [accumulator for _, found in folded for accumulator in found]
        if _is_apart(placed):
            return placed, accumulators
        merge = self._combinable.merge
        merged: dict[int, Any] = {}
        row = 0
        try:
            for row, accumulator in zip(placed.groups.tolist(), accumulators, strict=True):
                merged[row] = merge(merged[row], accumulator) if row in merged else accumulator
        except Exception as problem:
            raise self._error("merge", merge, problem, int(placed.keys[row])) from problem
        return placed, [merged[row] for row in range(len(placed))]

    def flush(self) -> pa.RecordBatch | None:
        self._fold()
        if not self._folded:
            return None
        placed, accumulators = self._merged()
        self.rows = 0
        distinct = encode_job_keys(self._job, self._collected.take_keys())
        order, columns = _ordered(distinct, placed, self._slots)
        lists = [[accumulators[at]] for at in order.tolist()]
        return _with_lists(columns, *encode_lists(self._job, lists))

    def _error(self, part: str, function: object, problem: Exception, number: int) -> Exception:
        key = self._collected.key(number)
        role = f"{part} of the reducer of job {self._job.name!r}"
        return user_error(role, function, problem, shown(key))


def _together(placing: Placing, keys: Sequence[Ints], parts: Sequence[Placed]) -> Placed:
    """Place the rows of several parts anew."""
    columns: Columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    return placing.place(np.concatenate(keys), columns)


def _is_apart(placed: Placed) -> bool:
    """Whether every row is a group of its own, in the same order."""
    return len(placed) == len(placed.groups) and bool(
        (placed.groups == np.arange(len(placed))).all()
    )


def _ordered(distinct: pa.Array, placed: Placed, slots: int) -> tuple[Ints, dict[str, pa.Array]]:
    """Groups by slot and hash of their keys, and the columns of a block that say where they are."""
    slot, by_hash = place_rows(distinct, slots)
    rank = np.empty(len(distinct), np.int64)
    rank[by_hash] = np.arange(len(distinct))
    order = stable_order(rank[placed.keys], len(distinct))
    keys = placed.keys[order]
    columns = {
        KEY: distinct.take(pa.array(keys)),
        SLOT: pa.array(slot[keys], pa.int32()),
        **{name: pa.array(column[order]) for name, column in placed.columns.items()},
    }
    return order, columns


def _with_lists(columns: dict[str, pa.Array], field: pa.Field, lists: pa.Array) -> pa.RecordBatch:
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    arrays = [*columns.values(), lists]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*fields, field]))

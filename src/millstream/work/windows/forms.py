"""The forms of a windowed reducer: how blocks are read, and how windows become results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.flow.reducers import (
    AggregateReducer,
    ArrowReducer,
    CombiningReducer,
    WindowReducer,
)
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, GlobalWindow, Timing
from millstream.ring.key_types import INSTANT
from millstream.state.aggregates.grouping import Ints
from millstream.state.blocks import EVENT_TIME, INTERNAL, KEY, TIME, WINDOW
from millstream.state.immutable import private_copy
from millstream.state.panes.algebras import (
    AggregateAlgebra,
    CombiningAlgebra,
    ListAlgebra,
    Objects,
    TableAlgebra,
    objects,
)
from millstream.state.panes.keys import KeyIds
from millstream.state.panes.tables import Algebra, Table
from millstream.state.values import ValueTypeError, encode_column, value_text
from millstream.times import instant
from millstream.work.batches import aggregating, as_batch, concat_batches
from millstream.work.failures import calling, record_error, user_error
from millstream.work.function_outputs import encode_outputs, extend_outputs
from millstream.work.packers.value_lists import TIMES, decode_lists
from millstream.work.typed_state import StateTypeError, with_typed_state

A = TypeVar("A")


class Window(NamedTuple):
    """The window of time that a reduce function is called for."""

    start: datetime
    end: datetime
    timing: Timing


class CountedWindow(NamedTuple):
    """The values of a key, numbered from 0, that a reduce function is called for."""

    start: int
    end: int
    timing: Timing


class EndlessWindow(NamedTuple):
    """A reduce function is called for all values of a key so far."""

    start: None
    end: None
    timing: Timing


AnyWindow = Window | CountedWindow | EndlessWindow


@dataclass(frozen=True)
class Closed(Generic[A]):
    """Closed windows with the rows of their keys; ``at`` is their number among the job's.

    There is one bound for all rows, or one for each; those of global windows are None. The event
    ``time`` of results is the microsecond before the end, if it is None.
    """

    at: int
    start: int | Ints | None
    end: int | Ints | None
    timing: Timing
    table: Table[A]
    time: int | Ints | None = None

    @property
    def starts(self) -> Ints:
        """The start for each row."""
        return self._of_each(self.start)

    @property
    def ends(self) -> Ints:
        """The end for each row."""
        return self._of_each(self.end)

    @property
    def times(self) -> Ints:
        """The event time for each row."""
        return self.ends - 1 if self.time is None else self._of_each(self.time)

    def _of_each(self, given: int | Ints | None) -> Ints:
        return np.broadcast_to(np.asarray(0 if given is None else given, np.int64), len(self.table))


class Form(Protocol[A]):
    """How a reducer reads blocks and computes results."""

    @property
    def algebra(self) -> Algebra[A]: ...

    @property
    def folds(self) -> bool:
        """Whether values can be aggregated before their window is complete."""

    def read(self, block: pa.RecordBatch) -> A:
        """The rows of a block, without keys and internal columns."""

    def outputs(
        self, closed: Sequence[Closed[A]], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        """The results of windows, in one batch."""


def form_of(job: JobVertex) -> Form[Any]:
    """The form of a job's reducer."""
    if isinstance(job.reducer, AggregateReducer):
        return AggregateForm(job, job.reducer)
    if isinstance(job.reducer, CombiningReducer):
        return CombiningForm(job, job.reducer)
    if isinstance(job.reducer, ArrowReducer):
        return TableForm(job, job.reducer)
    assert isinstance(job.reducer, WindowReducer)
    return FunctionForm(job, job.reducer)


def _columns_of(block: pa.RecordBatch) -> pa.RecordBatch:
    names = [n for n in block.schema.names if n != KEY and not n.startswith(INTERNAL)]
    return block.select(names)


class AggregateForm:
    """Built-in aggregates."""

    folds = True

    def __init__(self, job: JobVertex, reducer: AggregateReducer) -> None:
        self._job = job
        self.algebra = _Aggregating(job, reducer)

    def read(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return _columns_of(block)

    def outputs(
        self, closed: Sequence[Closed[pa.RecordBatch]], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        rows = self.algebra.concat([one.table.rows for one in closed])
        results = self.algebra.results(rows)
        return [_rows(self._job, closed, keys, list(results.schema), results.columns)]


class _Aggregating(AggregateAlgebra):
    """Built-in aggregates, with errors that name the job."""

    def __init__(self, job: JobVertex, reducer: AggregateReducer) -> None:
        super().__init__(reducer.aggregates)
        self._job = job

    def concat(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        try:
            return super().concat(parts)
        except ValueTypeError as misfit:
            raise record_error(
                f"input of job {self._job.name!r}",
                None,
                f"changed its type: {misfit}",
                "give values of one type (cast them in the map)",
            ) from None

    def merge(self, rows: pa.RecordBatch, groups: Any, n: int) -> pa.RecordBatch:
        with aggregating(self._job):
            return super().merge(rows, groups, n)

    def results(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        with aggregating(self._job):
            return super().results(rows)


class CombiningForm:
    """A user's combinable."""

    folds = True

    def __init__(self, job: JobVertex, reducer: CombiningReducer) -> None:
        self._job = job
        self._result = reducer.combinable.result
        self.algebra = _Combining(job, reducer)

    def read(self, block: pa.RecordBatch) -> Objects:
        return objects([accumulator for [accumulator] in decode_lists(block)])

    def outputs(
        self, closed: Sequence[Closed[Objects]], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        rows = self.algebra.concat([one.table.rows for one in closed])
        field, column = encode_column("value", self.algebra.values(rows))
        return [_rows(self._job, closed, keys, [field], [column])]


class _Combining(CombiningAlgebra):
    """A user's combinable, with errors that name it."""

    def __init__(self, job: JobVertex, reducer: CombiningReducer) -> None:
        super().__init__(reducer.combinable.merge, reducer.combinable.result)
        self._job = job
        self._reducer = reducer.combinable

    def merge(self, rows: Objects, groups: Any, n: int) -> Objects:
        with calling(f"merge of the reducer of job {self._job.name!r}", self._reducer.merge):
            return super().merge(rows, groups, n)

    def values(self, rows: Objects) -> list[Any]:
        with calling(f"result of the reducer of job {self._job.name!r}", self._reducer.result):
            return super().values(rows)


class TableForm:
    """A function over tables that sees the rows of all keys at once: ``reduce(rows)``."""

    folds = False

    def __init__(self, job: JobVertex, reducer: ArrowReducer) -> None:
        self._job = job
        self._function = reducer.function
        self._takes_window = reducer.takes_window
        self._role = f"reducer of job {job.name!r}"
        assert job.windowing is not None
        self._ordered = job.windowing.ordered
        self.algebra = _Tables(job)

    def read(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return _columns_of(block)

    def outputs(
        self, closed: Sequence[Closed[pa.RecordBatch]], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        for one in closed:
            given = self._called(one, keys)
            if given is not None and given.num_rows:
                windows = pa.array(np.full(given.num_rows, one.at, np.int32))
                times = pa.array(np.full(given.num_rows, one.times[0]))
                found.append(_marked(given, windows, times))
        return [concat_batches(self._job, found)] if found else []

    def _called(self, one: Closed[pa.RecordBatch], keys: KeyIds) -> pa.RecordBatch | None:
        rows, key = one.table.rows, keys.column(one.table.ids)
        table = pa.Table.from_arrays([key, *rows.columns], names=[KEY, *rows.schema.names])
        if self._ordered:
            table = table.take(pc.sort_indices(table, sort_keys=[(EVENT_TIME, "ascending")]))
        named = {}
        if self._takes_window:
            assert isinstance(one.start, int) and isinstance(one.end, int)
            named["window"] = Window(instant(one.start), instant(one.end), one.timing)
        with calling(self._role, self._function):
            result = self._function(table, **named)
        batch = as_batch(result)
        if batch is None and result is not None:
            raise record_error(
                self._role,
                self._function,
                f"returned {value_text(result)}",
                "return the outputs of the window as a pyarrow.Table or RecordBatch, or None",
            )
        return batch


class _Tables(TableAlgebra):
    """Raw rows, with errors that name the job."""

    def __init__(self, job: JobVertex) -> None:
        self._job = job

    def concat(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return concat_batches(self._job, list(parts))


class FunctionForm:
    """A function that sees whole windows: ``reduce(key, values)``."""

    folds = False

    def __init__(self, job: JobVertex, reducer: WindowReducer) -> None:
        self._job = job
        self._function = with_typed_state(reducer.function, reducer.state_type, job.name)
        self._takes_window = reducer.takes_window
        self._role = f"reducer of job {job.name!r}"
        assert job.windowing is not None
        self._ordered = job.windowing.ordered
        self.algebra = ListAlgebra()

    def read(self, block: pa.RecordBatch) -> Objects:
        times = block.column(TIMES).to_pylist()
        return objects(list(zip(decode_lists(block), times, strict=True)))

    def outputs(
        self, closed: Sequence[Closed[Objects]], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        records: list[Any] = []
        ends: list[tuple[Any, int]] = []
        windows: list[int] = []
        stamps: list[int] = []
        for one in closed:
            for key, time in self._call(one, keys, records):
                ends.append((key, len(records)))
                stamps += [time] * (len(records) - len(stamps))
            windows += [one.at] * (len(records) - len(windows))
        if not records:
            return []
        batch = encode_outputs(
            records,
            output,
            lambda _: (self._role, self._function),
            lambda row: next(key for key, end in ends if row < end),
        )
        return [_marked(batch, pa.array(windows, pa.int32()), pa.array(stamps, pa.int64()))]

    def _call(
        self, one: Closed[Objects], keys: KeyIds, records: list[Any]
    ) -> Iterator[tuple[Any, int]]:
        """Call the function for each row; gives its key and the event time of its outputs."""
        function = self._function
        named: Iterator[dict[str, AnyWindow]] = repeat({}, len(one.table))
        if self._takes_window:
            named = ({"window": window} for window in _windows(self._job, one))
        found = zip(
            keys.keys(one.table.ids),
            keys.slots(one.table.ids).tolist(),
            one.table.rows.tolist(),
            named,
            one.times.tolist(),
            strict=True,
        )
        for key, slot, (values, times), window, time in found:
            try:
                more = {**window, **self._arguments(slot, key)}
                extend_outputs(records, function(key, self._in_order(values, times), **more))
            except StateTypeError:
                raise
            except Exception as problem:
                raise user_error(self._role, function, problem, value_text(key)) from problem
            yield key, time

    def _arguments(self, slot: int, key: Any) -> dict[str, Any]:
        """What the function gets by name, beside the window."""
        return {}

    def _in_order(self, values: list[Any], times: list[int]) -> list[Any]:
        if not self._ordered:
            return list(map(private_copy, values))
        order = np.argsort(np.asarray(times, np.int64), kind="stable")
        return [private_copy(values[at]) for at in order.tolist()]


def _windows(job: JobVertex, one: Closed[Any]) -> Iterator[AnyWindow]:
    """The window of each row, as it is passed to functions."""
    assert job.windowing is not None
    kind, timing = job.windowing.windows[0], one.timing
    if isinstance(kind, GlobalWindow):
        return repeat(EndlessWindow(None, None, timing), len(one.table))
    bounds = zip(one.starts.tolist(), one.ends.tolist(), strict=True)
    if isinstance(kind, CountWindow):
        return (CountedWindow(start, end, timing) for start, end in bounds)
    if isinstance(one.start, int) and isinstance(one.end, int):
        return repeat(Window(instant(one.start), instant(one.end), timing), len(one.table))
    return (Window(instant(start), instant(end), timing) for start, end in bounds)


def _bound(job: JobVertex, name: str, found: Ints) -> tuple[pa.Field, pa.Array]:
    """A bound of windows as a column: a time, a number, or null for global windows."""
    assert job.windowing is not None
    kind = job.windowing.windows[0]
    if isinstance(kind, CountWindow):
        return pa.field(name, pa.int64()), pa.array(found)
    if isinstance(kind, GlobalWindow):
        return pa.field(name, INSTANT), pa.nulls(len(found), INSTANT)
    return pa.field(name, INSTANT), pa.array(found).cast(INSTANT)


def _rows(
    job: JobVertex,
    closed: Sequence[Closed[Any]],
    keys: KeyIds,
    fields: list[pa.Field],
    columns: list[pa.Array],
) -> pa.RecordBatch:
    """Results as rows: the key, the results of the reducer, and the window."""
    counts = [len(one.table) for one in closed]
    key = keys.column(np.concatenate([one.table.ids for one in closed]))
    starts = _bound(job, "window_start", np.concatenate([one.starts for one in closed]))
    ends = _bound(job, "window_end", np.concatenate([one.ends for one in closed]))
    timings = np.repeat(np.array([one.timing for one in closed], object), counts)
    windows = np.repeat(np.array([one.at for one in closed], np.int32), counts)
    times = np.concatenate([one.times for one in closed])
    batch = pa.RecordBatch.from_arrays(
        [key, *columns, starts[1], ends[1], pa.array(timings, pa.string())],
        schema=pa.schema(
            [
                pa.field(KEY, key.type),
                *fields,
                starts[0],
                ends[0],
                pa.field("timing", pa.string()),
            ]
        ),
    )
    return _marked(batch, pa.array(windows), pa.array(times))


def _marked(batch: pa.RecordBatch, windows: pa.Array, times: pa.Array) -> pa.RecordBatch:
    """Outputs with the internal columns that the next stage needs."""
    return batch.append_column(WINDOW, windows).append_column(TIME, times)

"""Count windows: the last ``size`` values of a key, after every ``slide`` values.

The values of a key are numbered in the order of their arrival; bounds of windows are these
numbers. A window that begins before the first value is shorter.

Reducers that aggregate have panes, each of as many values as the greatest common divisor of size
and slide, in blocks as long as a window. A window is the end of one block and the beginning of the
next; both are stored as running results, so each pane is merged a fixed number of times, whatever
the size. For functions, the values are stored raw.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow
from millstream.state.aggregates.grouping import Ints
from millstream.state.panes.algebras import Objects, objects
from millstream.state.panes.keys import Ids
from millstream.state.panes.row_fragments import KeyRows, by_id, no_rows, stacked
from millstream.state.panes.scans import prefixes, suffixes
from millstream.state.panes.tables import Algebra, Table
from millstream.times import BEGINNING
from millstream.work.job_clock import JobClock
from millstream.work.packers.placing import LAST
from millstream.work.packers.value_lists import TIMES
from millstream.work.unit import UnitContext
from millstream.work.windows.forms import Closed, Form
from millstream.work.windows.row_windows import RowOperator

A = TypeVar("A")
_ROLE = "role"
_INDEX = "index"
_FILLED = "filled"
_COUNT = "count"
# The role of a row: the merged panes of the last block from one on; a pane of this block; all panes
# of this block merged; or a pane that is not full.
_SUFFIX, _PANE, _PREFIX, _PARTIAL = range(4)


@dataclass(frozen=True)
class _Blocks:
    """Blocks of panes: the panes of a window and of a slide, and the values of a pane."""

    span: int
    slide: int
    pane: int

    def of(self, index: Ints) -> Ints:
        """The block of a pane."""
        return index // self.span

    def begins_late(self, index: Ints) -> Any:
        """Whether some window begins with a pane that is not the first of its block."""
        return ((index + self.span) % self.slide == 0) & (index % self.span != 0)


class CountOperator(RowOperator[A]):
    """A job with count windows, and a reducer that aggregates.

    Each key has the running result of its block, whose ``index`` is the number of its last pane.
    So a key is only removed by a time-to-live. All its rows have the latest event time of the key.
    """

    names = (_ROLE, _INDEX, _FILLED, LAST)

    def __init__(self, job: JobVertex, form: Form[A]) -> None:
        super().__init__(job, form)
        window = _window_of(job)
        pane = gcd(window.size, window.slide)
        self._blocks = _Blocks(window.size // pane, window.slide // pane, pane)

    def _columns(self, block: pa.RecordBatch) -> dict[str, Any]:
        one = np.ones(block.num_rows, np.int64)
        last = block.column(LAST).to_numpy()
        return {_ROLE: one * _PARTIAL, _INDEX: one * 0, _FILLED: one, LAST: last}

    def _step(self, new: KeyRows[A], unit: UnitContext) -> tuple[Ids, KeyRows[A], list[Closed[A]]]:
        algebra, blocks = self._form.algebra, self._blocks
        ids, keys = np.unique(new.ids, return_inverse=True)
        if not len(ids):
            return ids, new, []
        known = self._known(ids, unit)
        old = KeyRows(np.searchsorted(ids, known.ids), known.columns, known.rows)
        done = np.zeros(len(ids), np.int64)
        before = _having(algebra, old, _PREFIX)
        done[before.ids] = before.columns[_INDEX] + 1
        came = stacked(
            algebra, [_having(algebra, old, _PARTIAL), KeyRows(keys, new.columns, new.rows)]
        )
        lasts = _newest(
            np.concatenate([old.ids, keys]),
            np.concatenate([old.columns[LAST], new.columns[LAST]]),
            len(ids),
        )
        panes = self._folded(came, done)
        is_full = panes.columns[_FILLED] == blocks.pane
        full = panes.chosen(algebra, is_full)
        now = done + np.bincount(full.ids, minlength=len(ids))

        running = by_id(algebra, stacked(algebra, [before, _as(_PREFIX, full)]), _INDEX)
        running = self._scanned(prefixes, running)
        raw = stacked(algebra, [_having(algebra, old, _PANE), _as(_PANE, full)])
        block = blocks.of(raw.columns[_INDEX])
        whole = by_id(algebra, raw.chosen(algebra, block < blocks.of(now)[raw.ids]), _INDEX)
        ends = self._scanned(suffixes, whole)
        ends = ends.chosen(algebra, blocks.begins_late(ends.columns[_INDEX]))
        ends = by_id(
            algebra, stacked(algebra, [_having(algebra, old, _SUFFIX), _as(_SUFFIX, ends)]), _INDEX
        )
        closed = self._closed(ids, running, ends, done, _times(lasts, unit))

        index = ends.columns[_INDEX]
        needed = (blocks.of(index) == blocks.of(now)[ends.ids] - 1) & (
            index + blocks.span > now[ends.ids]
        )
        newest = np.append(running.ids[1:] != running.ids[:-1], True)[: len(running)]
        kept = stacked(
            algebra,
            [
                ends.chosen(algebra, needed),
                raw.chosen(algebra, block == blocks.of(now)[raw.ids]),
                running.chosen(algebra, newest),
                panes.chosen(algebra, ~is_full),
            ],
        )
        kept = by_id(algebra, kept)
        columns = {**kept.columns, LAST: lasts[kept.ids]}
        return ids, KeyRows(ids[kept.ids], columns, kept.rows), [closed]

    def _folded(self, came: KeyRows[A], done: Ints) -> KeyRows[A]:
        """Panes of the unfinished one of a key and its new values, after its ``done`` ones."""
        algebra = self._form.algebra
        came = by_id(algebra, came)
        weights = came.columns[_FILLED]
        before = np.cumsum(weights) - weights
        begins = np.ones(len(came), bool)
        begins[1:] = came.ids[1:] != came.ids[:-1]
        at = np.flatnonzero(begins)
        before -= np.repeat(before[at], np.diff(np.append(at, len(came))))
        index = done[came.ids] + before // self._blocks.pane
        begins[1:] |= index[1:] != index[:-1]
        at = np.flatnonzero(begins)
        rows = came.rows
        assert rows is not None
        if len(at) < len(came):
            rows = algebra.merge(rows, np.cumsum(begins) - 1, len(at))
        columns = {
            _ROLE: np.full(len(at), _PARTIAL),
            _INDEX: index[at],
            _FILLED: np.add.reduceat(weights, at),
            LAST: np.maximum.reduceat(came.columns[LAST], at),
        }
        return KeyRows(came.ids[at], columns, rows)

    def _scanned(self, scan: Any, table: KeyRows[A]) -> KeyRows[A]:
        """Running results within each block of each key."""
        if table.rows is None:
            return table
        block = self._blocks.of(table.columns[_INDEX])
        begins = np.ones(len(table), bool)
        begins[1:] = (table.ids[1:] != table.ids[:-1]) | (block[1:] != block[:-1])
        rows = scan(self._form.algebra, table.rows, np.cumsum(begins))
        return KeyRows(table.ids, table.columns, rows)

    def _closed(
        self, ids: Ids, running: KeyRows[A], ends: KeyRows[A], done: Ints, times: Ints
    ) -> Closed[A]:
        """The windows that end with a pane that has become full; ``times`` are those of keys."""
        algebra, blocks = self._form.algebra, self._blocks
        end = running.columns[_INDEX] + 1
        at = np.flatnonzero((end > done[running.ids]) & (end % blocks.slide == 0))
        keys, end = running.ids[at], end[at]
        tails = running.take(algebra, at).rows
        head = np.flatnonzero((end % blocks.span != 0) & (end > blocks.span))
        if len(head):
            assert tails is not None and ends.rows is not None
            # Panes are numbered relative to one before all windows that are still open.
            first = done - 2 * blocks.span
            width = int((running.columns[_INDEX] - first[running.ids]).max()) + 1
            known = ends.ids * width + ends.columns[_INDEX] - first[ends.ids]
            wanted = keys[head] * width + end[head] - blocks.span - first[keys[head]]
            heads = algebra.take(ends.rows, np.searchsorted(known, wanted))
            groups = np.concatenate([head, np.arange(len(at))])
            tails = algebra.merge(algebra.concat([heads, tails]), groups, len(at))
        starts = np.maximum(end - blocks.span, 0) * blocks.pane
        table: Table[Any] = Table(ids[keys], tails)
        return _in_time(algebra, starts, end * blocks.pane, table, times[keys])

    def _read(self, found: KeyRows[A]) -> Any:
        """The result so far of the next window; None if it has no values."""
        algebra, blocks = self._form.algebra, self._blocks
        role, index = found.columns[_ROLE], found.columns[_INDEX]
        done = int(index[role == _PREFIX].max(initial=-1)) + 1
        start = (done // blocks.slide + 1) * blocks.slide - blocks.span
        mask = (role == _SUFFIX) & (index == start)
        mask |= ((role == _PANE) | (role == _PARTIAL)) & (index >= start)
        open_ = by_id(algebra, found.chosen(algebra, mask), _INDEX)
        if open_.rows is None:
            return None
        merged = algebra.merge(open_.rows, np.zeros(len(open_), np.int64), 1)
        [value] = algebra.values(merged)
        return value


def _having(algebra: Algebra[A], table: KeyRows[A], role: int) -> KeyRows[A]:
    return table.chosen(algebra, table.columns[_ROLE] == role)


def _as(role: int, table: KeyRows[A]) -> KeyRows[A]:
    columns = {**table.columns, _ROLE: np.full(len(table), role)}
    return KeyRows(table.ids, columns, table.rows)


def _newest(keys: Ints, lasts: Ints, count: int) -> Ints:
    """The latest event time of each key; keys are numbers below ``count``."""
    found = np.full(count, BEGINNING)
    np.maximum.at(found, keys, lasts)
    return found


def _times(lasts: Ints, unit: UnitContext) -> Ints:
    """The event times of results, by the latest of their keys."""
    # Windows downstream may have closed the time of late values.
    return np.maximum(lasts, (unit.clock or JobClock()).closed)


def _in_time(
    algebra: Algebra[A], starts: Ints, ends: Ints, table: Table[A], times: Ints
) -> Closed[A]:
    """Results in the order of time: those of one time form one chunk."""
    order = np.argsort(times, kind="stable")
    if len(order):
        table = Table(table.ids[order], algebra.take(table.rows, order))
    return Closed(0, starts[order], ends[order], "on_time", table, times[order])


class CountListOperator(RowOperator[Objects]):
    """A job with count windows, and a function that sees all their values.

    A key has one row: the values that later windows need, the number of all its values, and the
    latest of their times.
    """

    names = (_COUNT, LAST)

    def __init__(self, job: JobVertex, form: Form[Objects]) -> None:
        super().__init__(job, form)
        self._window = _window_of(job)

    def _columns(self, block: pa.RecordBatch) -> dict[str, Any]:
        times = block.column(TIMES).to_pylist()  # at least one for each row
        last = np.fromiter(map(max, times), np.int64, len(times))
        return {_COUNT: np.zeros(block.num_rows, np.int64), LAST: last}

    def _step(
        self, new: KeyRows[Objects], unit: UnitContext
    ) -> tuple[Ids, KeyRows[Objects], list[Closed[Objects]]]:
        algebra = self._form.algebra
        ids = np.unique(new.ids)
        if not len(ids):
            return ids, no_rows(self.names), []
        old = self._known(ids, unit)
        given = stacked(algebra, [old, new])
        assert given.rows is not None
        at = np.searchsorted(ids, given.ids)
        rows = algebra.merge(given.rows, at, len(ids))
        lasts = _newest(at, given.columns[LAST], len(ids))
        before = np.zeros(len(ids), np.int64)
        before[np.searchsorted(ids, old.ids)] = old.columns[_COUNT]
        counts = before + np.bincount(np.searchsorted(ids, new.ids), _lengths(new.rows)).astype(
            np.int64
        )
        kept: list[Any] = []
        keys: list[int] = []
        bounds: list[tuple[int, int]] = []
        windows: list[Any] = []
        spans = zip(before.tolist(), counts.tolist(), rows.tolist(), strict=True)
        for key, (had, count, (values, times)) in enumerate(spans):
            first = count - len(values)  # the number of the first stored value
            for start, end in self._window.bounds(had, count):
                part = slice(start - first, end - first)
                windows.append((values[part], times[part]))
                bounds.append((start, end))
                keys.append(key)
            needed = max(self._window.next_end(count) - self._window.size - first, 0)
            kept.append((values[needed:], times[needed:]))
        starts, ends = np.array(bounds, np.int64).reshape(-1, 2).T
        of = np.array(keys, np.int64)
        table = Table(ids[of], objects(windows))
        closed = _in_time(algebra, starts, ends, table, _times(lasts, unit)[of])
        return ids, KeyRows(ids, {_COUNT: counts, LAST: lasts}, objects(kept)), [closed]

    def _read(self, found: KeyRows[Objects]) -> list[Any]:
        """The stored values."""
        assert found.rows is not None
        [values] = self._form.algebra.values(found.rows)
        return list(values)


def _lengths(rows: Objects | None) -> list[int]:
    return [] if rows is None else [len(values) for values, _ in rows.tolist()]


def _window_of(job: JobVertex) -> CountWindow:
    assert job.windowing is not None
    [window] = job.windowing.windows
    assert isinstance(window, CountWindow)
    return window

"""Session windows: the values of a key that follow each other with less than a gap between.

A session ends a gap after its last value; values just a gap apart are in two. New values extend
open sessions, and can merge several. A session closes when the watermark has passed its end. A
value is late if its session, merged with all that it overlaps, was closed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.flow.windows import SessionWindow, Timing
from millstream.state.aggregates.grouping import Bools
from millstream.state.panes.keys import Ids
from millstream.state.panes.row_fragments import KeyRows, stacked
from millstream.state.panes.tables import Table
from millstream.times import instant
from millstream.work.job_clock import JobClock
from millstream.work.maybe_late import LateValues, is_maybe_late, late_values, origins_in
from millstream.work.packers.placing import LAST, START, Bursts
from millstream.work.unit import UnitContext
from millstream.work.windows.forms import Closed, Form
from millstream.work.windows.row_windows import RowOperator

A = TypeVar("A")
_DIRTY = "dirty"


class SessionOperator(RowOperator[A]):
    """A job with session windows: a row for each open session of a key.

    ``dirty`` is 1 for those that have changed since the last early results.
    """

    names = (START, LAST, _DIRTY)

    def __init__(self, job: JobVertex, form: Form[A]) -> None:
        super().__init__(job, form)
        [window] = self._windowing.windows
        assert isinstance(window, SessionWindow)
        self._gap = window.gap

    def _columns(self, block: pa.RecordBatch) -> dict[str, Any]:
        return {
            START: block.column(START).to_numpy(),
            LAST: block.column(LAST).to_numpy(),
            _DIRTY: np.full(block.num_rows, self._windowing.early is not None, np.int64),
        }

    def _without_late(
        self, new: KeyRows[A], blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> tuple[KeyRows[A], LateValues]:
        origins, closed = origins_in(blocks), (unit.clock or JobClock()).closed
        if origins is None:
            return new, LateValues()
        late = self._late(new, is_maybe_late(origins), closed)
        found = late_values(blocks, origins, new.columns[LAST], late, read=unit.read)
        return new.chosen(self._form.algebra, ~late), found

    def _late(self, new: KeyRows[A], maybe_late: Bools, closed: int) -> Bools:
        """Which new rows are in sessions that were closed before, merged with all they overlap."""
        ids = np.unique(new.ids[maybe_late])
        mine = np.isin(new.ids, ids)
        known = self.state.of(ids)
        both = np.concatenate([known.ids, new.ids[mine]])
        columns = {
            name: np.concatenate([known.columns[name], new.columns[name][mine]])
            for name in (START, LAST)
        }
        placed = Bursts(self._gap).place(np.searchsorted(ids, both), columns)
        over = placed.columns[LAST] + self._gap <= closed
        late = np.zeros(len(new), bool)
        late[mine] = over[placed.groups[len(known) :]]
        return late

    def _step(self, new: KeyRows[A], unit: UnitContext) -> tuple[Ids, KeyRows[A], list[Closed[A]]]:
        clock = unit.clock or JobClock()
        algebra = self._form.algebra
        ids = np.union1d(new.ids, self._due(clock, unit.slots))
        sessions = self._merged(stacked(algebra, [self.state.of(ids), new]))
        if not len(sessions):
            return ids, sessions, []
        over = sessions.columns[LAST] + self._gap <= clock.watermark
        early = ~over & (sessions.columns[_DIRTY] > 0) & clock.early
        closed = [self._closed(sessions, over, "on_time"), self._closed(sessions, early, "early")]
        dirty = np.where(early, 0, sessions.columns[_DIRTY])
        open_ = KeyRows(sessions.ids, {**sessions.columns, _DIRTY: dirty}, sessions.rows)
        return ids, open_.chosen(algebra, ~over), closed

    def _due(self, clock: JobClock, slots: range) -> Ids:
        """The keys with sessions that close or have early results, also without new values."""
        ids, [last, dirty] = self.state.where(slots, LAST, _DIRTY)
        return ids[(last + self._gap <= clock.watermark) | ((dirty > 0) & clock.early)]

    def _merged(self, rows: KeyRows[A]) -> KeyRows[A]:
        """Sessions of keys: rows that lie less than the gap apart become one."""
        if rows.rows is None:
            return rows
        ids, keys = np.unique(rows.ids, return_inverse=True)
        placed = Bursts(self._gap).place(keys, rows.columns)
        dirty = np.zeros(len(placed), np.int64)
        np.maximum.at(dirty, placed.groups, rows.columns[_DIRTY])
        columns = {**placed.columns, _DIRTY: dirty}
        merged = self._form.algebra.merge(rows.rows, placed.groups, len(placed))
        return KeyRows(ids[placed.keys], columns, merged)

    def _closed(self, sessions: KeyRows[A], mask: Bools, timing: Timing) -> Closed[A]:
        """Results in the order of time: those of one time form one chunk."""
        at = np.flatnonzero(mask)
        at = at[np.argsort(sessions.columns[LAST][at], kind="stable")]
        assert sessions.rows is not None
        table = Table(sessions.ids[at], self._form.algebra.take(sessions.rows, at))
        starts, ends = sessions.columns[START][at], sessions.columns[LAST][at] + self._gap
        return Closed(0, starts, ends, timing, table)

    def _read(self, found: KeyRows[A]) -> dict[datetime, Any]:
        """The value of each open session, by its start."""
        assert found.rows is not None
        starts = map(instant, found.columns[START].tolist())
        return dict(zip(starts, self._form.algebra.values(found.rows), strict=True))

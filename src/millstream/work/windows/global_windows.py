"""Global windows: all values of a key since the first; a trigger decides when results are emitted.

A key has at most one result in an epoch, and only if it has new values since the last one.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.flow.windows import EveryCount, EveryTime, GlobalWindow
from millstream.state.aggregates.grouping import Bools, Ints
from millstream.state.panes.keys import Ids
from millstream.state.panes.row_fragments import KeyRows, stacked
from millstream.state.panes.tables import Table
from millstream.times import BEGINNING
from millstream.work.job_clock import JobClock
from millstream.work.packers.placing import COUNT, LAST
from millstream.work.unit import UnitContext
from millstream.work.windows.forms import Closed, Form
from millstream.work.windows.row_windows import RowOperator

A = TypeVar("A")


class GlobalOperator(RowOperator[A]):
    """A job with global windows: a row for each key.

    It has the number of values since the last result, and the latest of their times.
    """

    names = (COUNT, LAST)

    def __init__(self, job: JobVertex, form: Form[A]) -> None:
        super().__init__(job, form)
        [window] = self._windowing.windows
        assert isinstance(window, GlobalWindow)
        self._trigger = window.trigger

    def _columns(self, block: pa.RecordBatch) -> dict[str, Any]:
        return {name: block.column(name).to_numpy() for name in self.names}

    def _step(self, new: KeyRows[A], unit: UnitContext) -> tuple[Ids, KeyRows[A], list[Closed[A]]]:
        clock = unit.clock or JobClock()
        due, [counts, lasts] = self.state.where(unit.slots, COUNT, LAST)
        ids = np.union1d(new.ids, due[self._fires(counts, lasts, clock)])
        totals = self._merged(stacked(self._form.algebra, [self._known(ids, unit), new]))
        if totals.rows is None:
            return ids, totals, []
        counts, lasts = totals.columns[COUNT], totals.columns[LAST]
        fires = self._fires(counts, lasts, clock)
        # Windows downstream may have closed the time of late values.
        times = np.maximum(lasts, clock.closed)
        at = np.flatnonzero(fires)
        at = at[np.argsort(times[at], kind="stable")]  # those of one time form one chunk
        table = Table(totals.ids[at], self._form.algebra.take(totals.rows, at))
        closed = Closed(0, None, None, "on_time", table, times[at])
        columns = {COUNT: np.where(fires, 0, counts), LAST: np.where(fires, BEGINNING, lasts)}
        return ids, KeyRows(totals.ids, columns, totals.rows), [closed]

    def _fires(self, counts: Ints, lasts: Ints, clock: JobClock) -> Bools:
        """Which keys emit a result, by the number and the latest time of their new values."""
        if isinstance(self._trigger, EveryCount):
            return counts >= self._trigger.count
        if isinstance(self._trigger, EveryTime):
            return (counts > 0) & clock.early
        return (counts > 0) & (lasts < clock.watermark)

    def _merged(self, rows: KeyRows[A]) -> KeyRows[A]:
        """One row for each key."""
        if rows.rows is None:
            return rows
        ids, groups = np.unique(rows.ids, return_inverse=True)
        counts, lasts = np.zeros(len(ids), np.int64), np.full(len(ids), BEGINNING)
        np.add.at(counts, groups, rows.columns[COUNT])
        np.maximum.at(lasts, groups, rows.columns[LAST])
        merged = self._form.algebra.merge(rows.rows, groups, len(ids))
        return KeyRows(ids, {COUNT: counts, LAST: lasts}, merged)

    def _read(self, found: KeyRows[A]) -> Any:
        """The result so far."""
        assert found.rows is not None
        [value] = self._form.algebra.values(found.rows)
        return value

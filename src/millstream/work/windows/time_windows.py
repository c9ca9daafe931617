"""Sliding and tumbling windows: values are stored in panes, and windows are merged from panes.

Windows close when the watermark has passed their end, after the values of that epoch were added.
All windows of a job share its panes. Reducers that aggregate have one row for each key and pane,
and slide by two stacks; others, and those for which panes do not pay, store raw values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from millstream.flow.vertices import JobVertex
from millstream.flow.windows import TimeWindow
from millstream.state.blocks import PANE
from millstream.state.panes.fragments import (
    DirtyPanes,
    PaneFragment,
    Stacks,
    same_dirty,
)
from millstream.state.panes.keys import Ids
from millstream.state.panes.sliding import Slider, flipped
from millstream.state.panes.state import PaneState
from millstream.state.panes.tables import (
    Algebra,
    Table,
    aggregated,
    chosen,
    join,
    only,
    ordered,
    overlaid,
)
from millstream.times import BEGINNING
from millstream.work.job_clock import JobClock
from millstream.work.unit import Reduced, UnitContext
from millstream.work.windows.block_keys import key_ids
from millstream.work.windows.forms import Closed, Form

A = TypeVar("A")


class TimeWindowOperator(Generic[A]):
    """A job with sliding or tumbling windows."""

    def __init__(self, job: JobVertex, form: Form[A], slots: int) -> None:
        assert job.windowing is not None
        self._job = job
        self._form = form
        self._windows = job.windowing.time_windows
        self._pane = job.windowing.pane
        self._by_two_stacks = job.windowing.by_two_stacks
        self.state = PaneState(form.algebra, slots)
        self._has_early = job.windowing.early is not None

    def reduce(
        self, blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[PaneFragment[A]]:
        clock = unit.clock or JobClock()
        state, algebra = self.state, self._form.algebra
        state.compact_keys()
        fragment: PaneFragment[A] = PaneFragment()
        view = _View(state, algebra, unit.slots)
        taken = self._taken(blocks)
        folds = clock.folding and self._form.folds
        if folds and state.has_raw(unit.slots):
            view.compact()
            fragment.compacted.append(unit.slots)
        for start, table in taken.items():
            if folds:
                view.fold(start, table)
            else:
                view.add(start, table)
        closed: list[Closed[A]] = []
        before = state.stacks(unit.slots) if folds else None
        sliders: list[Slider[A] | None] = []
        for at, window in enumerate(self._windows):
            slider = None if before is None else before.sliders[at]
            if slider is not None and view.changed:
                slider = slider.amended(algebra, view.changed, view.panes)
            if unit.read:
                slider = self._close(at, window, clock, view, slider, folds, closed)
            sliders.append(slider)
        horizon = min(window.open_from(clock.watermark) for window in self._windows)
        known = state.dirty(unit.slots)
        dirty: DirtyPanes = {}
        if unit.read and self._has_early:
            dirty = self._dirty(known, taken, horizon)
            if clock.early:
                closed.extend(self._early(clock, view, dirty))
                dirty = {}
        if not same_dirty(dirty, known):
            fragment.dirty.append((unit.slots, dirty))
        fragment.stacks = Stacks(unit.slots, state.keys.generation, tuple(sliders))
        view.write(fragment, horizon, unit.epoch)
        if any(start < horizon for start in state.starts):
            fragment.gone.append((unit.slots, horizon))
        outputs = self._form.outputs(closed, state.keys, unit.output) if closed else []
        return Reduced(fragment, outputs, _distinct(taken.values()))

    def _taken(self, blocks: Sequence[pa.RecordBatch]) -> dict[int, Table[A]]:
        """The new rows by pane, in the order of blocks for each key."""
        given = [block for block in blocks if block.num_rows]
        if not given:
            return {}
        algebra = self._form.algebra
        ids = np.concatenate(key_ids(self._job, self.state.keys, given))
        panes = np.concatenate([block.column(PANE).to_numpy() for block in given])
        rows = algebra.concat([self._form.read(block) for block in given])
        self.state.check(rows)  # here, because a committed epoch must not be rejected
        order = np.lexsort((ids, panes))
        starts, cuts = np.unique(panes[order], return_index=True)
        found = {}
        for start, part in zip(starts.tolist(), np.split(order, cuts[1:]), strict=True):
            found[start] = Table(ids[part], algebra.take(rows, part))
        return found

    def _close(
        self,
        at: int,
        window: TimeWindow,
        clock: JobClock,
        view: _View[A],
        slider: Slider[A] | None,
        folds: bool,
        closed: list[Closed[A]],
    ) -> Slider[A] | None:
        """Add the windows that close now; returns the stacks for later ones."""
        algebra, size = self._form.algebra, window.size
        slides = folds and window in self._by_two_stacks
        ends = window.ends_within(clock.closed, clock.watermark, view.starts, self._pane)
        end: int | None = None
        for end in ends:
            if slides:
                slider = (
                    flipped(algebra, end - size, end, view.panes)
                    if slider is None
                    else slider.slide(algebra, end - size, end, view.panes)
                )
                table = slider.window(algebra)
            else:
                table = view.window(end - size, end)
            if table is not None:
                closed.append(Closed(at, end - size, end, "on_time", table))
        if slider is None or not slides:
            return None
        # Panes that no later window needs are removed from the stacks, as from the state.
        return slider.without_before(algebra, window.open_from(clock.watermark))

    def _dirty(self, known: DirtyPanes, taken: Mapping[int, Table[A]], horizon: int) -> DirtyPanes:
        """The panes that have changed since the last early results, and are still needed."""
        dirty = dict(known)
        for start, table in taken.items():
            slots = self.state.keys.slots(table.ids)
            dirty[start] = np.union1d(dirty[start], slots) if start in dirty else np.unique(slots)
        return {start: slots for start, slots in dirty.items() if start >= horizon}

    def _early(self, clock: JobClock, view: _View[A], dirty: DirtyPanes) -> Iterator[Closed[A]]:
        """The open windows that include dirty panes."""
        for at, window in enumerate(self._windows if dirty else ()):
            last = max(dirty) + window.size + window.slide
            for end in window.ends_within(clock.watermark, last, sorted(dirty), self._pane):
                start = end - window.size
                table = view.window(start, end)
                if table is None:
                    continue
                touched = np.concatenate([dirty[pane] for pane in dirty if start <= pane < end])
                has_dirty = np.isin(self.state.keys.slots(table.ids), touched)
                table = chosen(self._form.algebra, table, has_dirty)
                if table is not None:
                    yield Closed(at, start, end, "early", table)


def _distinct(tables: Any) -> int:
    found = [table.ids for table in tables]
    return len(np.unique(np.concatenate(found))) if found else 0


class _View(Generic[A]):
    """The panes of a unit's slots: the committed ones, with the changes of the epoch."""

    def __init__(self, state: PaneState[A], algebra: Algebra[A], slots: range) -> None:
        self._state = state
        self._algebra = algebra
        self._slots = slots
        self._touched: dict[int, Table[A]] = {}
        self._added: dict[int, Table[A]] = {}
        self._tight = False
        self._seen: dict[int, Table[A] | None] = {}
        self.changed: dict[int, Ids] = {}

    def fold(self, start: int, new: Table[A]) -> None:
        """Aggregate rows into a pane."""
        rows = aggregated(self._algebra, new.ids, new.rows)
        old = only(self._algebra, self._pane(start), rows.ids)
        merged = join(self._algebra, [old, rows])
        assert merged is not None
        self._touched[start] = self._over(self._touched.get(start), merged)
        self._note(start, rows.ids)

    def add(self, start: int, new: Table[A]) -> None:
        """Add raw rows to a pane."""
        self._added[start] = ordered(self._algebra, new.ids, new.rows)
        self._note(start, np.unique(new.ids))

    def compact(self) -> None:
        """Aggregate all raw rows."""
        self._tight = True
        for start in sorted(self._state.starts):
            for table in self._state.raw(start, self._slots):
                self.fold(start, table)

    def _note(self, start: int, ids: Ids) -> None:
        known = self.changed.get(start)
        self.changed[start] = ids if known is None else np.union1d(known, ids)
        self._seen.pop(start, None)
        self.__dict__.pop("starts", None)

    def _over(self, old: Table[A] | None, new: Table[A]) -> Table[A]:
        found = overlaid(self._algebra, old, new)
        assert found is not None
        return found

    @cached_property
    def starts(self) -> list[int]:
        """The panes that may have rows, in order."""
        return sorted(self._state.starts | self.changed.keys())

    def _pane(self, start: int) -> Table[A] | None:
        if start not in self._seen:
            committed = self._state.pane(start, self._slots)
            self._seen[start] = overlaid(self._algebra, committed, self._touched.get(start))
        return self._seen[start]

    def panes(self, start: int, end: int) -> list[tuple[int, Table[A]]]:
        """The aggregated panes that start in [start, end), in order."""
        found = ((at, self._pane(at)) for at in self._between(start, end))
        return [(at, table) for at, table in found if table is not None]

    def _between(self, start: int, end: int) -> list[int]:
        return self.starts[bisect_left(self.starts, start) : bisect_left(self.starts, end)]

    def window(self, start: int, end: int) -> Table[A] | None:
        """All rows of a window, merged by key if possible."""
        tables: list[Table[A]] = []
        for at in self._between(start, end):
            pane = self._pane(at)
            raw = [] if self._tight else self._state.raw(at, self._slots)
            tables += [t for t in (pane, *raw, self._added.get(at)) if t is not None]
        if not tables:
            return None
        ids = np.concatenate([table.ids for table in tables])
        rows = self._algebra.concat([table.rows for table in tables])
        gather = aggregated if self._algebra.merges else ordered
        return gather(self._algebra, ids, rows)

    def write(self, fragment: PaneFragment[A], horizon: int, epoch: int) -> None:
        """Write the rows that later windows need to a fragment."""
        for start, table in self._touched.items():
            if start >= horizon or horizon <= BEGINNING:
                fragment.panes[start] = self._state.as_part(table)
        for start, table in self._added.items():
            if start >= horizon or horizon <= BEGINNING:
                fragment.raw[start, epoch] = self._state.as_part(table)

"""The operator of joins: values of both sides are stored in panes while others may match them.

In each epoch the new values are matched with each other and with the stored ones, so that a pair
is emitted once, when the later of both has arrived. A value of an outer side that has no match when
the watermark has passed is found by matching it again with all stored values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.flow.reducers import JoinReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import TimeWindow, WithinWindow, pane_start
from millstream.state.panes.algebras import objects
from millstream.state.panes.fragments import PaneFragment
from millstream.state.panes.joined import LEFT, JoinState, SideAlgebra, SideRows
from millstream.state.panes.keys import Ids
from millstream.state.panes.runs import Runs
from millstream.state.panes.tables import Table, chosen, ordered
from millstream.times import BEGINNING, END
from millstream.work.job_clock import JobClock
from millstream.work.packers.value_lists import TIMES, decode_lists
from millstream.work.unit import Reduced, UnitContext
from millstream.work.windows.block_keys import key_ids
from millstream.work.windows.join_matching import Index
from millstream.work.windows.join_results import Found, JoinResults

Side = Table[SideRows]


class JoinOperator:
    """A job that joins two streams."""

    def __init__(self, job: JobVertex, slots: int) -> None:
        assert job.windowing is not None and isinstance(job.reducer, JoinReducer)
        (window,) = job.windowing.windows
        self._job = job
        self._kept_sides = job.reducer.kept_sides
        self._pane = job.reducer.pane
        assert isinstance(window, TimeWindow | WithinWindow)
        self._window = window
        # With overlapping windows, a common window may have closed before both values had arrived.
        self._overlap = isinstance(window, TimeWindow) and not window.is_tumbling
        self._algebra = SideAlgebra()
        self.state = JoinState(slots)
        self._runs = Runs(self.state, self._algebra)
        self._results = JoinResults(job, job.reducer.on_match)

    def reduce(
        self, blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[PaneFragment[SideRows]]:
        clock = unit.clock or JobClock()
        self.state.compact_keys()
        self._runs.forget_gone()
        new = self._taken(blocks, clock.closed)
        found: list[Found] = []
        if unit.read and new is not None:
            found += self._pairs(new)
        if unit.read and self._kept_sides and clock.watermark > clock.closed:
            found += self._alone(new, clock, unit.slots)
        fragment: PaneFragment[SideRows] = PaneFragment()
        horizon = self._horizon(clock.watermark)
        if new is not None:
            for start, table in self._by_pane(new):
                if start >= horizon:
                    fragment.raw[start, unit.epoch] = self.state.as_part(table)
        if any(start < horizon for start in self.state.starts):
            fragment.gone.append((unit.slots, horizon))
        outputs = self._results.batches(found, self.state.keys, unit.output)
        return Reduced(fragment, outputs, 0 if new is None else len(np.unique(new.ids)))

    def _taken(self, blocks: Sequence[pa.RecordBatch], closed: int) -> Side | None:
        """The new values, a row for each."""
        given = [block for block in blocks if block.num_rows]
        if not given:
            return None
        ids: list[Ids] = []
        times: list[npt.NDArray[np.int64]] = []
        tagged: list[tuple[str, Any]] = []
        numbered = key_ids(self._job, self.state.keys, given)
        for block, numbers in zip(given, numbered, strict=True):
            lists = list(decode_lists(block))
            ids.append(np.repeat(numbers, list(map(len, lists))))
            times.append(block.column(TIMES).flatten().to_numpy())
            tagged.extend(chain.from_iterable(lists))
        rows = SideRows(
            np.fromiter((side == LEFT for side, _ in tagged), bool, len(tagged)),
            np.concatenate(times),
            np.full(len(tagged), closed, np.int64),
            objects([value for _, value in tagged]),
        )
        return ordered(self._algebra, np.concatenate(ids), rows)

    def _by_pane(self, table: Side) -> Iterator[tuple[int, Side]]:
        panes = pane_start(table.rows.times, self._pane)
        order = np.argsort(panes, kind="stable")
        starts, cuts = np.unique(panes[order], return_index=True)
        for start, part in zip(starts.tolist(), np.split(order, cuts[1:]), strict=True):
            yield start, Table(table.ids[part], self._algebra.take(table.rows, part))

    # -- pairs ---------------------------------------------------------------------------

    def _pairs(self, new: Side) -> Iterator[Found]:
        """The pairs of which at least one value is new."""
        old = self._waiting(new)
        left, right = _only(new, left=True), _only(new, left=False)
        older_left, older_right = _only(old, left=True), _only(old, left=False)
        yield from self._meeting(left, self._joined(older_right, right))
        yield from self._meeting(older_left, right)

    def _meeting(self, left: Side | None, right: Side | None) -> Iterator[Found]:
        if left is None or right is None:
            return
        index = Index(right.ids, right.rows.times)
        spans = index.spans(self._window, left.ids, left.rows.times)
        for one, other in index.pairs(*spans):
            if self._overlap:
                counts = self._is_open(left, right, one, other)
                one, other = one[counts], other[counts]
            if len(one):
                yield Found(
                    left.ids[one],
                    left.rows.values[one],
                    right.rows.values[other],
                    np.maximum(left.rows.times[one], right.rows.times[other]),
                )

    def _is_open(self, left: Side, right: Side, one: Ids, other: Ids) -> npt.NDArray[np.bool_]:
        """Whether pairs had a common window that was open when the later value arrived."""
        earlier = np.minimum(left.rows.times[one], right.rows.times[other])
        closed = np.maximum(left.rows.closed[one], right.rows.closed[other])
        found: npt.NDArray[np.bool_] = self._window.last_match(earlier) >= closed
        return found

    def _alone(self, new: Side | None, clock: JobClock, slots: range) -> Iterator[Found]:
        """The values of outer sides that expire now, without a match."""
        since, until = (self._window.open_from(at) for at in (clock.closed, clock.watermark))
        tables = [
            table for start in self._starts(since, until) for table in self.state.raw(start, slots)
        ]
        every = self._joined(*tables, new)
        if every is None:
            return
        times = every.rows.times
        due = chosen(self._algebra, every, (times >= since) & (times < until))
        for left in self._kept_sides:
            one = _only(due, left=left)
            one = None if one is None else self._unmatched(one, new, left=left)
            if one is not None:
                values, nothing = one.rows.values, np.full(len(one), None, object)
                both = (values, nothing) if left else (nothing, values)
                yield Found(one.ids, both[0], both[1], one.rows.times)

    def _unmatched(self, one: Side, new: Side | None, *, left: bool) -> Side | None:
        """The rows of one side without a match on the other side."""
        other = _only(self._joined(self._waiting(one), new), left=not left)
        alone = np.ones(len(one), bool)
        if other is not None:
            index = Index(other.ids, other.rows.times)
            start, stop = index.spans(self._window, one.ids, one.rows.times)
            alone = start == stop
            if self._overlap:
                alone[:] = True
                for here, there in index.pairs(start, stop):
                    alone[here[self._is_open(one, other, here, there)]] = False
        return chosen(self._algebra, one, alone) if alone.any() else None

    def _waiting(self, table: Side) -> Side | None:
        """The stored values of the same keys, near enough in time to match any of these."""
        times = np.array([table.rows.times.min(), table.rows.times.max()])
        since, until = (
            int(self._window.first_match(times)[0]),
            int(self._window.last_match(times)[1]) + 1,
        )
        ids = np.unique(table.ids)
        found: list[Side | None] = []
        for start in self._starts(since, until):
            for held in self._runs.of(start):
                first = np.searchsorted(held.ids, ids, "left")
                counts = np.searchsorted(held.ids, ids, "right") - first
                at = np.repeat(first, counts) + np.arange(counts.sum())
                at -= np.repeat(np.cumsum(counts) - counts, counts)
                if len(at):
                    found.append(Table(held.ids[at], self._algebra.take(held.rows, at)))
        return self._joined(*found)

    def _starts(self, since: int, until: int) -> list[int]:
        """The panes that overlap [since, until), in order."""
        return sorted(s for s in self.state.starts if s + self._pane > since and s < until)

    def _joined(self, *tables: Side | None) -> Side | None:
        given = [table for table in tables if table is not None]
        if not given:
            return None
        ids = np.concatenate([table.ids for table in given])
        return Table(ids, self._algebra.concat([table.rows for table in given]))

    def _horizon(self, watermark: int) -> int:
        """The start of the first pane that is still needed."""
        needed = self._window.open_from(watermark)
        if needed in (BEGINNING, END):
            return needed
        if self._kept_sides:  # values that expire later may have matched earlier ones
            needed = int(self._window.first_match(np.array([needed]))[0])
        return pane_start(needed, self._pane)


def _only(table: Side | None, *, left: bool) -> Side | None:
    """The rows of one side."""
    if table is None:
        return None
    mask = table.rows.left if left else ~table.rows.left
    return chosen(SideAlgebra(), table, mask) if mask.any() else None

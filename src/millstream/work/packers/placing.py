"""Which values of a job share a row of a block: those of a key, of a pane, of a burst.

The same rule groups single values, and rows that hold several already. Keys are small numbers here,
from 0 on, each with at least one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from millstream.flow.reducers import JoinReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, SessionWindow, TimeWindow, pane_start
from millstream.state.aggregates.grouping import Ints, stable_order
from millstream.state.blocks import KEY, PANE, SLOT, place_rows

START = "millstream.start"
LAST = "millstream.last"
COUNT = "millstream.count"
ROW = "millstream.row"
Columns = Mapping[str, Ints]


@dataclass(frozen=True, slots=True)
class Placed:
    """The group of each row; and the key and further columns of each group."""

    groups: Ints
    keys: Ints
    columns: Columns

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_one_to_one(self) -> bool:
        """Whether every row is a group of its own, in the same order."""
        return len(self) == len(self.groups) and bool((self.groups == np.arange(len(self))).all())


class Placing(Protocol):
    """Decides which values share a row of a block, as a group."""

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        """Group single values; groups are in the order of keys, and of time."""

    def place(self, keys: Ints, columns: Columns) -> Placed:
        """Group rows that hold several values each."""


@dataclass(frozen=True)
class Panes:
    """A group for each key and pane."""

    pane: int

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        return self._place(keys, times // self.pane)

    def place(self, keys: Ints, columns: Columns) -> Placed:
        return self._place(keys, columns[PANE] // self.pane)

    def _place(self, keys: Ints, panes: Ints) -> Placed:
        first = int(panes.min())
        width = int(panes.max()) - first + 1
        starts = None
        if width > len(panes):  # times far apart: number only the panes that have values
            starts, panes = np.unique(panes, return_inverse=True)
            first, width = 0, len(starts)
        codes = keys * width
        codes += panes
        codes -= first
        groups, found = _numbered(codes, (int(keys.max()) + 1) * width)
        panes = found % width
        panes = panes + first if starts is None else starts[panes]
        return Placed(groups, found // width, {PANE: panes * self.pane})


@dataclass(frozen=True)
class PaneOfEach:
    """A group for each value, with its pane."""

    pane: int

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        return self.place(keys, {PANE: pane_start(times, self.pane)})

    def place(self, keys: Ints, columns: Columns) -> Placed:
        return Placed(np.arange(len(keys)), keys, columns)


@dataclass(frozen=True)
class Bursts:
    """A group for each burst of a key: from its first value to its last, without a gap between."""

    gap: int

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        return self.place(keys, {START: times, LAST: times})

    def place(self, keys: Ints, columns: Columns) -> Placed:
        order = np.argsort(columns[START], kind="stable")
        order = order[stable_order(keys[order], int(keys.max()) + 1)]
        key, start, last = keys[order], columns[START][order], columns[LAST][order]
        reach = start if columns[LAST] is columns[START] else _reach(key, last)
        begins = np.ones(len(order), bool)
        begins[1:] = (key[1:] != key[:-1]) | (start[1:] - reach[:-1] >= self.gap)
        groups = np.empty(len(order), np.int64)
        groups[order] = np.cumsum(begins) - 1
        at = np.flatnonzero(begins)
        found = {START: start[at], LAST: np.maximum.reduceat(last, at)}
        return Placed(groups, key[at], found)


@dataclass(frozen=True)
class Totals:
    """A group for each key, with the number of its values and the newest of their times."""

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        return self.place(keys, {COUNT: np.ones(len(times), np.int64), LAST: times})

    def place(self, keys: Ints, columns: Columns) -> Placed:
        n = int(keys.max()) + 1
        counts, newest = np.zeros(n, np.int64), np.full(n, np.iinfo(np.int64).min)
        np.add.at(counts, keys, columns[COUNT])
        np.maximum.at(newest, keys, columns[LAST])
        return Placed(keys, np.arange(n), {COUNT: counts, LAST: newest})


@dataclass(frozen=True)
class Each:
    """A group for each value, with its time."""

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        return self.place(keys, {LAST: times})

    def place(self, keys: Ints, columns: Columns) -> Placed:
        return Placed(np.arange(len(keys)), keys, columns)


class Alone:
    """A group for each value, with its time and its number."""

    def __init__(self) -> None:
        self._rows = 0

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        rows = np.arange(self._rows, self._rows + len(keys))
        self._rows += len(keys)
        return self.place(keys, {START: times, LAST: times, ROW: rows})

    def place(self, keys: Ints, columns: Columns) -> Placed:
        return Placed(np.arange(len(keys)), keys, columns)


@dataclass(frozen=True)
class Keys:
    """A group for each key, without further columns."""

    def place_values(self, keys: Ints, times: Ints) -> Placed:
        return self.place(keys, {})

    def place(self, keys: Ints, columns: Columns) -> Placed:
        return Placed(keys, np.arange(int(keys.max()) + 1), columns)


def placed_again(placing: Placing, keys: Sequence[Ints], parts: Sequence[Placed]) -> Placed:
    """Place the rows of several parts together."""
    columns: Columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    return placing.place(np.concatenate(keys), columns)


def block_order(distinct: pa.Array, placed: Placed, slots: int) -> tuple[Ints, dict[str, pa.Array]]:
    """The order of groups by slot and hash of their keys, and the first columns of their block."""
    slot, order = place_rows(distinct, slots)
    keys = order
    if placed.columns:  # else a group is a key
        rank = np.empty(len(distinct), np.int64)
        rank[order] = np.arange(len(distinct))
        order = stable_order(rank[placed.keys], len(distinct))
        keys = placed.keys[order]
    columns = {
        KEY: distinct.take(pa.array(keys)),
        SLOT: pa.array(slot[keys], pa.int32()),
        **{name: pa.array(column[order]) for name, column in placed.columns.items()},
    }
    return order, columns


def _numbered(codes: Ints, bound: int) -> tuple[Ints, Ints]:
    """Number the distinct codes, which are below a bound: each row's number, and the codes."""
    if bound > 4 * len(codes) + 65536:
        found, groups = np.unique(codes, return_inverse=True)
        return groups, found
    present = np.zeros(bound, bool)
    present[codes] = True
    found = np.flatnonzero(present)
    if len(found) == bound:
        return codes, found
    return (np.cumsum(present) - 1)[codes], found


def _reach(keys: Ints, last: Ints) -> Ints:
    """The largest of the times so far in each run of equal keys."""
    times, ranks = np.unique(last, return_inverse=True)
    # Keys increase from run to run, so the maximum of key and rank in one number restarts there.
    highest = np.maximum.accumulate(keys * len(times) + ranks)
    reach: Ints = times[highest % len(times)]
    return reach


def placing_of(job: JobVertex, folding: bool) -> Placing:
    """How the values of a windowed job share rows."""
    assert job.windowing is not None
    if isinstance(job.reducer, JoinReducer):
        return Panes(job.reducer.pane)
    merges = job.reducer.merges
    window = job.windowing.windows[0]
    if isinstance(window, TimeWindow):
        pane = job.windowing.pane
        return PaneOfEach(pane) if merges and not folding else Panes(pane)
    if isinstance(window, SessionWindow):
        return Bursts(window.gap)
    if isinstance(window, CountWindow):
        return Each() if merges else Keys()
    return Totals()

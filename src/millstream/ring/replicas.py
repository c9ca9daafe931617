"""Replicas: which nodes back up each slot, chosen so that as little as possible is copied.

A node that has the copy of a slot retains it, unless another one shares less with the other
holders, or it has far more copies than one that is as good. New copies go to nodes that share least
with the holders, and of these to the nearest clockwise that has not too many copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import any_in_row
from millstream.ring.placement import NOBODY, NodeTable
from millstream.ring.ring import NodeId, Ring
from millstream.ring.zones import Domain

# How many copies more or less than the mean a node may have: a part of it, and a few slots.
_TOLERANCE = 0.1
_FEW = 4

# How many runs are compared with all nodes at once.
_AT_ONCE = 256

_Costs: TypeAlias = npt.NDArray[np.int32]
_NEVER = np.iinfo(np.int32).max


def choose_replicas(
    owners: npt.NDArray[np.int32],
    nodes: Sequence[NodeId],
    eligible: Mapping[NodeId, Domain],
    replicas: int,
    current: NodeTable,
) -> NodeTable:
    """Return the backups that each slot shall have, as indexes into ``nodes``.

    Only ``eligible`` nodes are chosen. An owner that is not, because it leaves, shares nothing with
    anybody. If nobody has a copy yet, backups are those of ``backups_of``. Otherwise the choice is
    final: made again from its own result, it is the same.
    """
    if not replicas or not eligible:
        return np.full((len(owners), replicas), NOBODY, np.int32)
    choice = _Choice(owners, nodes, eligible, current)
    if (current == NOBODY).all():
        choice.fill_gaps(np.inf)
    else:
        choice.settle()
    return choice.table()


class _Choice:
    """The choice under way, by runs of slots with the same owner and the same backups.

    Eligible nodes are numbered from 0 on. Other owners are ``NOBODY``, which is the last row and
    column of the matrix of costs, and shares nothing.
    """

    def __init__(
        self,
        owners: npt.NDArray[np.int32],
        nodes: Sequence[NodeId],
        eligible: Mapping[NodeId, Domain],
        current: NodeTable,
    ) -> None:
        self._owners, self._nodes = owners, nodes
        self._able = np.array([at for at, node in enumerate(nodes) if node in eligible])
        domains = [eligible[nodes[at]] for at in self._able.tolist()]
        self._cost, self._least = _costs(tuple(domains), current.shape[1])
        numbers = np.full(len(nodes) + 1, NOBODY)
        numbers[self._able] = np.arange(len(self._able))
        rows, owned = numbers[current], numbers[owners]
        rows[rows == owned[:, None]] = NOBODY
        for column in range(1, rows.shape[1]):
            again = any_in_row(rows[:, :column] == rows[:, column, None])
            rows[again, column] = NOBODY
        self._copies = np.bincount(rows.ravel() + 1, minlength=len(self._able) + 1)[1:]
        change = (owners[1:] != owners[:-1]) | any_in_row(rows[1:] != rows[:-1])
        self._start = np.concatenate([[0], np.flatnonzero(change) + 1])
        self._size = np.diff(self._start, append=len(owners))
        self._owner, self._row = owned[self._start], rows[self._start]
        self._possible = np.minimum(len(self._able) - (self._owner != NOBODY), rows.shape[1])
        self._fair = float((self._possible * self._size).sum()) / len(self._able)
        self._margin = _TOLERANCE * self._fair + _FEW
        self._shared = np.zeros_like(self._row, np.int32)

    def table(self) -> NodeTable:
        """The backups of each slot, as indexes into all nodes."""
        order = np.argsort(self._start)
        rows = np.append(self._able, NOBODY)[self._row[order]]
        return np.repeat(rows.astype(np.int32), self._size[order], axis=0)

    def settle(self) -> None:
        """Fill gaps, and replace backups until nobody is better."""
        self.fill_gaps(self._fair + self._margin)
        # This ends: each step lowers the cost, or leaves it and lowers the spread of copies.
        while self._improve() or self._even_out():
            pass

    def _set(self, run: int, column: int, node: int) -> None:
        before = self._row[run, column]
        if before != NOBODY:
            self._copies[before] -= self._size[run]
        self._copies[node] += self._size[run]
        self._row[run, column] = node

    # -- gaps ----------------------------------------------------------------------------

    def fill_gaps(self, most: float) -> None:
        """Give each run as many backups as can be, and nobody more than so many, if possible."""
        missing = self._possible - (self._row != NOBODY).sum(axis=1)
        for run in np.flatnonzero(missing > 0).tolist():
            gaps = np.flatnonzero(self._row[run] == NOBODY)[: missing[run]]
            for column in gaps.tolist():
                self._set(run, column, self._best(run, self._costs_at(run, column), most))

    def _costs_at(self, run: int, column: int) -> _Costs:
        """What each node would share with the other holders, if it took a place in a run."""
        others = np.append(np.delete(self._row[run], column), self._owner[run])
        costs: _Costs = self._cost[others].sum(axis=0, dtype=np.int32)
        costs[others] = costs[NOBODY] = _NEVER
        return costs

    def _best(self, run: int, costs: _Costs, most: float) -> int:
        """The node that shares least; of these one without many copies, the nearest clockwise."""
        best = np.flatnonzero(costs == costs.min())
        copies = self._copies[best]
        crowd = np.where(copies + self._size[run] > most, copies, 0)
        return int(best[np.lexsort((self._distances(run)[best], crowd))[0]])

    def _distances(self, run: int) -> npt.NDArray[np.int64]:
        """How far clockwise from the owner of a run each node is; one without slots comes last."""
        places, size = self._places
        mine = places[self._owners[self._start[run]]]
        others = places[self._able]
        return np.asarray(np.where(others < size, (others - mine) % size, others))

    @cached_property
    def _places(self) -> tuple[npt.NDArray[np.int64], int]:
        """The place of each node in the ring, or after it, by name; and the size of the ring."""
        ring = Ring.of_table(0, self._nodes, self._owners)
        order = [*ring.nodes, *sorted(set(self._nodes) - set(ring.nodes))]
        place = {node: at for at, node in enumerate(order)}
        return np.array([place[node] for node in self._nodes]), len(ring.nodes)

    # -- what backups share --------------------------------------------------------------

    def _improve(self) -> bool:
        """Replace backups where another node shares less with the other holders."""
        self._shared = self._what_backups_share(slice(None))
        found = self._improvable()
        for run, column in found:
            costs = self._costs_at(run, column)
            if costs.min() < self._what_backups_share(run)[column]:
                self._set(run, column, self._best(run, costs, self._fair + self._margin))
        return bool(found)

    def _improvable(self) -> list[tuple[int, int]]:
        """The places in runs for which another node shares less than the present one."""
        present, shared = self._row != NOBODY, self._shared
        # The best case: with each of the others only what any two nodes share.
        others = present.sum(axis=1) - 1 + (self._owner != NOBODY)
        suspects = np.flatnonzero((shared > (others * self._least)[:, None]).any(axis=1))
        found = []
        for first in range(0, len(suspects), _AT_ONCE):
            runs = suspects[first : first + _AT_ONCE]
            row = self._row[runs]
            holders = np.column_stack([row, self._owner[runs], np.full(len(runs), NOBODY)])
            total = sum(self._cost[column] for column in holders.T)
            for column in range(row.shape[1]):
                costs = total - self._cost[row[:, column]]
                np.put_along_axis(costs, holders, _NEVER, axis=1)
                is_better = present[runs, column] & (costs.min(axis=1) < shared[runs, column])
                found += [(run, column) for run in runs[is_better].tolist()]
        return found

    def _what_backups_share(self, runs: int | slice) -> _Costs:
        """What each backup shares with the owner and the other backups."""
        row = self._row[runs]
        holders = np.concatenate([row, self._owner[runs, None]], axis=-1)
        costs = self._cost[row[..., :, None], holders[..., None, :]]
        return np.asarray(costs.sum(axis=-1, dtype=np.int32))

    # -- as many copies for everybody ----------------------------------------------------

    def _even_out(self) -> bool:
        """Hand copies over from nodes with many to equally good ones with few."""
        is_changed = False
        for node in np.argsort(self._copies, kind="stable").tolist():
            if not self._is_due(self._copies.max(), self._copies[node]):
                break
            while self._take_over(node):
                is_changed = True
        return is_changed

    def _is_due(
        self, many: npt.NDArray[np.int64] | int, few: npt.NDArray[np.int64] | int
    ) -> npt.NDArray[np.bool_]:
        """Whether a node with many copies shall hand some over to one with few."""
        is_out = (many > self._fair + self._margin) | (few < self._fair - self._margin)
        return np.asarray(is_out & (many - few > self._margin))

    def _take_over(self, node: int) -> bool:
        """Hand copies over to a node from those with most; return whether there were any."""
        if not self._is_due(self._copies.max(), self._copies[node]):
            return False
        many, costs = np.append(self._copies, 0)[self._row], self._cost[node]
        due = self._is_due(many, self._copies[node])
        due &= costs[self._owner, None] <= self._shared
        due &= ~(any_in_row(self._row == node) | (self._owner == node))[:, None]
        runs, columns = np.nonzero(due)
        holders = np.column_stack([self._row[runs], self._owner[runs]])
        mine = costs[holders].sum(axis=1) - costs[self._row[runs, columns]]
        fits = np.flatnonzero(mine <= self._shared[runs, columns])
        order = fits[np.argsort(-many[runs[fits], columns[fits]], kind="stable")]
        left: dict[int, int] = {}
        parts: list[_Part] = []
        for run, column in zip(runs[order].tolist(), columns[order].tolist(), strict=True):
            giver = int(self._row[run, column])
            if not self._is_due(many[run, column], self._copies[node]):
                break
            amount = self._amount(giver, node)
            size = min(left.setdefault(giver, amount), amount, int(self._size[run]))
            if size > 0 and node not in self._row[run]:
                if size < self._size[run]:
                    parts.append(self._cut(run, size))
                self._set(run, column, node)
                self._shared[run] = self._what_backups_share(run)
                left[giver] -= size
        self._append(parts)
        return bool(left)

    def _amount(self, giver: int, taker: int) -> int:
        """How many copies to hand over: what one has too many or too few, but not crumbs."""
        many, few = int(self._copies[giver]), int(self._copies[taker])
        crumb = self._margin / 2
        return int(
            min(max(many - self._fair, crumb), max(self._fair - few, crumb), (many - few) / 2)
        )

    def _cut(self, run: int, size: int) -> _Part:
        """Cut a run after so many slots; return the rest."""
        start, rest = int(self._start[run]) + size, int(self._size[run]) - size
        self._size[run] = size
        return _Part(
            start, rest, int(self._owner[run]), self._row[run].copy(), self._shared[run].copy()
        )

    def _append(self, parts: Sequence[_Part]) -> None:
        """Append runs, all at once."""
        if parts:
            starts, sizes, owners, rows, shared = zip(*parts, strict=True)
            self._start = np.append(self._start, starts)
            self._size = np.append(self._size, sizes)
            self._owner = np.append(self._owner, owners)
            self._row = np.concatenate([self._row, rows])
            self._shared = np.concatenate([self._shared, shared])


class _Part(NamedTuple):
    """The rest of a run that was cut."""

    start: int
    size: int
    owner: int
    row: npt.NDArray[np.int64]
    shared: _Costs


@lru_cache(maxsize=2)  # of many nodes it is large, and most choices have the same
def _costs(domains: tuple[Domain, ...], replicas: int) -> tuple[_Costs, int]:
    """What sharing costs each pair of nodes, and the least cost of any pair.

    One shared executor is worse than any number of shared hosts, and so on: sums of costs compare
    like lists of what is shared, worst first. A node shares nothing with itself and ``NOBODY``.
    """
    prices = np.array([0, 1, replicas + 2, (replicas + 2) ** 2], np.int32)
    shared = np.zeros((len(domains), len(domains)), np.int8)
    in_common = 0
    for level in range(3):
        paths: dict[tuple[str, ...], int] = {}
        names = np.array([paths.setdefault(d.path[: level + 1], len(paths)) for d in domains])
        shared += names[:, None] == names
        in_common += len(paths) == 1
    costs = np.zeros((len(domains) + 1, len(domains) + 1), np.int32)
    costs[:-1, :-1] = prices[shared]
    np.fill_diagonal(costs, 0)
    costs.setflags(write=False)
    return costs, int(prices[in_common])

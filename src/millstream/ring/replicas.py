"""Replicas: which nodes back up each slot, chosen so that as little as possible is copied.

A node that has the copy of a slot retains it, unless another one shares less with the other
holders. New copies go to nodes that share least with the holders, and of these to the one with the
fewest copies. Nodes with far more copies than others hand some over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from millstream.ring.placement import NOBODY, NodeTable
from millstream.ring.ring import NodeId, Ring
from millstream.ring.zones import Domain, backups_of, shared

_SLACK = 0.1  # how many more copies than others a node may have, and a few slots
_FEW = 2


def choose_replicas(
    owners: npt.NDArray[np.int32],
    nodes: Sequence[NodeId],
    eligible: Mapping[NodeId, Domain],
    replicas: int,
    current: NodeTable,
) -> NodeTable:
    """Return the backups that each slot shall have, as indexes into ``nodes``.

    Only ``eligible`` nodes are chosen. Where nobody has a copy yet, backups are the nearest nodes
    clockwise that share least.
    """
    if not replicas or not eligible:
        return np.full((len(owners), replicas), NOBODY, np.int32)
    if (current == NOBODY).all():
        return _clockwise(owners, nodes, eligible, replicas)
    return _Choice(owners, nodes, eligible, current).made()


def _clockwise(
    owners: npt.NDArray[np.int32],
    nodes: Sequence[NodeId],
    eligible: Mapping[NodeId, Domain],
    replicas: int,
) -> NodeTable:
    """The backups of the first placement."""
    ring = Ring.of_table(0, nodes, owners)
    numbers = {node: at for at, node in enumerate(nodes)}
    chosen = np.full((len(owners), replicas), NOBODY, np.int32)
    for node, backups in backups_of(ring, eligible, replicas).items():
        chosen[ring.slots_of(node), : len(backups)] = [numbers[backup] for backup in backups]
    return chosen


class _Choice:
    """The choice under way, run by run of slots with the same owner and the same backups."""

    def __init__(
        self,
        owners: npt.NDArray[np.int32],
        nodes: Sequence[NodeId],
        eligible: Mapping[NodeId, Domain],
        current: NodeTable,
    ) -> None:
        self._owners = owners
        self._domains = {at: eligible[node] for at, node in enumerate(nodes) if node in eligible}
        # An owner that is not eligible, because it leaves, shares nothing with anybody.
        able = np.array([*self._domains], np.int32)
        kept = np.isin(current, able) & (current != owners[:, None])
        for column in range(1, current.shape[1]):  # nobody twice
            for other in range(column):
                kept[:, column] &= ~(kept[:, other] & (current[:, other] == current[:, column]))
        self._table: NodeTable = np.where(kept, current, NOBODY).astype(np.int32)
        self._copies = np.bincount(self._table[kept], minlength=len(nodes)).astype(np.int64)
        wanted = len(owners) * min(current.shape[1], len(self._domains))
        self._fair = -(-wanted // len(self._domains))
        self._floor = self._least_shared(1 + current.shape[1])

    def made(self) -> NodeTable:
        for start, stop in self._runs():
            self._fill(start, stop)
        self._even_out()
        return self._table

    def _runs(self) -> list[tuple[int, int]]:
        rows = np.column_stack([self._owners, self._table])
        starts = [0, *(np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1).tolist()]
        return list(zip(starts, [*starts[1:], len(rows)], strict=True))

    def _least_shared(self, holders: int) -> int:
        """What any two of so many holders must share at least, in the best case."""
        domains = self._domains.values()
        for level in range(3):
            if len({domain.path[: level + 1] for domain in domains}) >= holders:
                return level
        return 3

    def _fill(self, start: int, stop: int) -> None:
        """Fill the gaps of a run, and replace a backup where another one shares less."""
        owner, row = int(self._owners[start]), self._table[start].tolist()
        for column, present in enumerate(row):
            others = [owner, *(node for at, node in enumerate(row) if at != column)]
            cost = self._cost(present, others) if present != NOBODY else None
            if cost is not None and cost[0] <= self._floor:
                continue
            found = self._best(owner, others)
            if found is not None and (cost is None or self._cost(found, others) < cost):
                row[column] = found
                self._set(slice(start, stop), column, present, found)

    def _best(self, owner: int, others: list[int], most: int | None = None) -> int | None:
        """The node that shares least, then that with the fewest copies, then the nearest.

        With ``most``, only nodes with fewer copies than that.
        """
        taken = set(others)
        able = [
            at
            for at in self._domains
            if at not in taken and (most is None or self._copies[at] < most)
        ]
        size = len(self._copies)
        return min(
            able,
            key=lambda at: (self._cost(at, others), self._copies[at], (at - owner) % size),
            default=None,
        )

    def _cost(self, node: int, others: list[int]) -> list[int]:
        """What a node shares with others, worst first."""
        mine = self._domains[node]
        found = (shared(mine, self._domains[o]) for o in others if o in self._domains)
        return sorted(found, reverse=True) or [0]

    def _set(self, slots: slice, column: int, before: int, after: int) -> None:
        size = slots.stop - slots.start
        self._table[slots, column] = after
        self._copies[after] += size
        if before != NOBODY:
            self._copies[before] -= size

    def _even_out(self) -> None:
        """Let nodes with far too many copies hand some over to equally good ones with few."""
        limit = self._fair + max(_FEW, int(self._fair * _SLACK))
        if not (self._copies > limit).any():
            return
        for start, stop in self._runs():
            owner, row = int(self._owners[start]), self._table[start].tolist()
            for column, giver in enumerate(row):
                surplus = 0 if giver == NOBODY else int(self._copies[giver]) - self._fair
                if surplus <= limit - self._fair:
                    continue
                others = [owner, *(node for at, node in enumerate(row) if at != column)]
                taker = self._best(owner, others, most=self._fair)
                if taker is None or self._cost(taker, others) > self._cost(giver, others):
                    continue
                room = self._fair - int(self._copies[taker])
                size = min(stop - start, surplus, room)
                self._set(slice(start, start + size), column, giver, taker)
                break  # the run is no longer of one row

"""The holders of each slot under a placement, as a table: arithmetic for all slots at once.

With many nodes a mask of all slots per node is too much for every epoch: a slot has few holders,
so what is known of them is in arrays with a row per slot and a column per holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, expanded
from millstream.ring.placement import NOBODY, NodeTable, Placement
from millstream.ring.ring import NodeId

Slots = npt.NDArray[np.intp]
"""Numbers of slots, in increasing order."""


class Holders:
    """The owner of each slot in column 0, then the nodes that are fed its copies, clockwise."""

    def __init__(self, placement: Placement, numbers: Mapping[NodeId, int]) -> None:
        """``numbers`` has the number of each node, which stands for it in the table."""
        ring, arcs = placement.ring, placement.arcs
        width = max(len(nodes) for _, nodes in arcs)
        rows = [[numbers[n] for n in nodes] + [NOBODY] * (width - len(nodes)) for _, nodes in arcs]
        lengths = np.diff([*(start for start, _ in arcs), ring.slots])
        owners = np.array([numbers[node] for node in ring.nodes], np.int32)
        copies = np.array(rows, np.int32).reshape(len(arcs), width).repeat(lengths, axis=0)
        self.table: NodeTable = np.column_stack([owners[ring.table], copies])

    @property
    def owners(self) -> npt.NDArray[np.int32]:
        """The number of each slot's owner."""
        return self.table[:, 0]

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    def of(self, number: int) -> tuple[Slots, Slots]:
        """The slots that a node holds, and the column in which it stands for each."""
        start, stop = np.searchsorted(self.sorted, [number, number + 1])
        cells = self.order[start:stop]
        return cells // self.width, cells % self.width

    @cached_property
    def holding(self) -> tuple[int, ...]:
        """The numbers of the nodes that hold any slot."""
        return tuple(n for n in np.unique(self.sorted).tolist() if n != NOBODY)

    def found(self, nodes: npt.NDArray[np.int32], where: npt.NDArray[np.bool_]) -> SlotMask:
        """For one node per slot, whether it is a holder whose cell is set."""
        return np.asarray(((self.table == nodes[:, None]) & where).any(axis=1))

    def among(self, numbers: Iterable[int]) -> npt.NDArray[np.bool_]:
        """The cells of some nodes."""
        return np.isin(self.table, list(numbers))

    @cached_property
    def order(self) -> npt.NDArray[np.intp]:
        """The cells, as positions in the table row by row, in the order of nodes and slots."""
        # By runs of equal rows, of which there are far fewer than slots.
        changes = np.flatnonzero((self.table[1:] != self.table[:-1]).any(axis=1)) + 1
        starts, stops = np.append(0, changes), np.append(changes, len(self.table))
        runs, columns = np.divmod(
            np.argsort(self.table[starts], axis=None, kind="stable"), self.width
        )
        lengths = (stops - starts)[runs]
        cells = expanded(starts[runs], stops[runs]) * self.width + np.repeat(columns, lengths)
        return np.asarray(cells, np.intp)

    @cached_property
    def sorted(self) -> npt.NDArray[np.int32]:
        """The node of each cell, in this order."""
        return np.asarray(self.table.ravel()[self.order])

    @cached_property
    def keys(self) -> npt.NDArray[np.int64]:
        """Node and slot of each cell as one number, in this order: ``node * slots + slot``."""
        return self.sorted.astype(np.int64) * len(self.table) + self.order // self.width

"""The holders of each slot under a placement, as a table: arithmetic for all slots at once.

With many nodes a mask of all slots per node is too much for every epoch: a slot has few holders,
so what is known of them is in arrays with a row per slot and a column per holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from millstream.ring.masks import SlotMask, any_in_row, expanded
from millstream.ring.placement import NOBODY, NodeTable, Placement
from millstream.ring.ring import NodeId
from millstream.wire.receipt_tables import REACH, joined

Slots = npt.NDArray[np.intp]
"""Numbers of slots, in increasing order."""


class Holders:
    """The owner of each slot in column 0, then the nodes that are fed its copies, clockwise."""

    def __init__(self, placement: Placement, numbers: Mapping[NodeId, int]) -> None:
        """``numbers`` has the number of each node, which stands for it in the table."""
        ring, arcs = placement.ring, placement.arcs
        counts = np.array([len(nodes) for _, nodes in arcs])
        rows = np.full((len(arcs), counts.max()), NOBODY, np.int32)
        present = np.arange(counts.max()) < counts[:, None]
        rows[present] = [numbers[node] for _, nodes in arcs for node in nodes]
        lengths = np.diff([*(start for start, _ in arcs), ring.slots])
        owners = np.array([numbers[node] for node in ring.nodes], np.int32)
        self.table: NodeTable = np.column_stack([owners[ring.table], rows.repeat(lengths, axis=0)])

    @property
    def owners(self) -> npt.NDArray[np.int32]:
        """The number of each slot's owner."""
        return self.table[:, 0]

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    def of(self, number: int) -> tuple[Slots, Slots]:
        """The slots that a node holds, and the column in which it stands for each."""
        # Of the same type: else the whole array would be converted.
        start, stop = np.searchsorted(self.sorted, np.array([number, number + 1], np.int32))
        cells = self.order[start:stop]
        return cells // self.width, cells % self.width

    @cached_property
    def holding(self) -> tuple[int, ...]:
        """The numbers of the nodes that hold any slot."""
        return tuple(n for n in np.unique(self.sorted).tolist() if n != NOBODY)

    def found(self, nodes: npt.NDArray[np.int32], where: npt.NDArray[np.bool_]) -> SlotMask:
        """For one node per slot, whether it is a holder whose cell is set."""
        return any_in_row((self.table == nodes[:, None]) & where)

    def among(self, numbers: Iterable[int]) -> npt.NDArray[np.bool_]:
        """The cells of some nodes."""
        return np.isin(self.table, list(numbers))

    def reached(self, reaches: Sequence[tuple[int, bytes]], epoch: int) -> npt.NDArray[np.bool_]:
        """The cells, in the order of nodes, that are complete up to an epoch.

        ``reaches`` has rows of ``REACH``, with the number of their node.
        """
        slots = len(self.table)
        table, sources = joined([reach for _, reach in reaches], REACH)
        offsets = np.array([node * slots for node, _ in reaches], np.int64)[sources]
        starts, enough = offsets + table["start"], table["value"] >= epoch
        # A run reaches up to the next one, or to the last slot of its node.
        last = np.append(offsets[1:] != offsets[:-1], True) if len(offsets) else enough
        stops = np.where(last, offsets + slots, np.append(starts[1:], 0))
        first, stop = self.bounds(starts[enough], stops[enough])
        size = len(self.keys) + 1
        edges = np.bincount(first, minlength=size) - np.bincount(stop, minlength=size)
        return np.asarray(np.cumsum(edges[:-1]) > 0)

    def bounds(
        self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
    ) -> tuple[Slots, Slots]:
        """The first cells, and those after the last, of runs of slots, given as ``keys``."""
        return np.searchsorted(self.keys, starts), np.searchsorted(self.keys, stops)

    def cells(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The table of flags that are in the order of nodes."""
        cells = np.zeros(self.table.size, np.bool_)
        cells[self.order] = flags
        return cells.reshape(self.table.shape)

    @cached_property
    def order(self) -> npt.NDArray[np.intp]:
        """The cells, as positions in the table row by row, in the order of nodes and slots."""
        # By runs of equal rows, of which there are far fewer than slots.
        changes = np.flatnonzero(any_in_row(self.table[1:] != self.table[:-1])) + 1
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
    def owning(self) -> npt.NDArray[np.bool_]:
        """Which cells, in this order, are those of owners."""
        return np.asarray(self.order % self.width == 0)

    @cached_property
    def keys(self) -> npt.NDArray[np.int64]:
        """Node and slot of each cell as one number, in this order: ``node * slots + slot``."""
        return self.sorted.astype(np.int64) * len(self.table) + self.order // self.width

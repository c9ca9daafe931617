"""The placement: the owner of each slot and the nodes that receive copies of it, in one version.

A ring alone is not enough: while slots are moved or re-replicated, nodes receive copies that are
nobody's regular backups. Backups are chosen in :mod:`millstream.ring.zones`; the coordinator
decides who receives copies when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millstream.errors import ConfigError
from millstream.ring.masks import SlotMask, any_in_row
from millstream.ring.ring import NodeId, Ring, RingError

NodeTable: TypeAlias = npt.NDArray[np.int32]
"""Nodes by slot, as indexes into a list of nodes; a slot has a row, which ``NOBODY`` fills up."""
NOBODY = -1


@dataclass(frozen=True)
class Share:
    """Adjacent slots with the same owner and the same copies."""

    owner: NodeId
    copies: tuple[NodeId, ...]
    slots: range


@dataclass(frozen=True)
class Placement:
    """The ring, and the nodes that are fed copies, in one version.

    An arc is the slot where a run begins and the nodes that get copies of its slots; the run
    reaches up to the next arc, and the last one up to the last slot. A run does not wrap, and may
    span several owners.
    """

    ring: Ring
    arcs: tuple[tuple[int, tuple[NodeId, ...]], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.arcs]
        if not starts or starts[0] != 0:
            raise ConfigError(f"the first arc must start at slot 0, got {starts[:1]}")
        if any(one >= other for one, other in pairwise(starts)):
            raise ConfigError(f"arcs must be in increasing order, got {starts}")
        if starts[-1] >= self.ring.slots:
            raise ConfigError(f"arcs must start at 0 to {self.ring.slots - 1}, got {starts[-1]}")
        for (_, one), (start, other) in pairwise(self.arcs):
            if one == other:
                raise ConfigError(f"neighbouring arcs must differ, got one again at slot {start}")
        for start, nodes in self.arcs:
            if len(set(nodes)) != len(nodes):
                raise ConfigError(f"copies must be on different nodes, got {nodes} at slot {start}")
        for share in self._all_shares:
            if share.owner in share.copies:
                what = f"got {share.owner!r} as both at slot {share.slots.start}"
                raise ConfigError(f"a slot's owner must not get its copies, {what}")

    @classmethod
    def of(cls, ring: Ring, copies: Mapping[NodeId, SlotMask]) -> Placement:
        """Return the placement where each node gets copies of the slots that its mask names."""
        for node, mask in copies.items():
            if mask.dtype != np.bool_ or mask.shape != (ring.slots,):
                got = f"{mask.dtype} of shape {mask.shape} for {node!r}"
                raise ConfigError(f"a mask must be {ring.slots} booleans, got {got}")
        columns = [np.where(mask, at, NOBODY) for at, mask in enumerate(copies.values())]
        table = np.stack(columns, axis=1) if columns else np.empty((ring.slots, 0))
        return cls.of_table(ring, list(copies), table.astype(np.int32))

    @classmethod
    def of_table(cls, ring: Ring, nodes: Sequence[NodeId], copies: NodeTable) -> Placement:
        """Return the placement where the nodes in the row of a slot get copies of it.

        The table has indexes into ``nodes``, or ``NOBODY``. Slots that a node owns are left out.
        The copies of a slot are in order clockwise from its owner; nodes that are not in the ring
        come last, by name.
        """
        number = {node: at for at, node in enumerate(nodes)}
        owners = np.array([number.get(node, NOBODY) for node in ring.nodes], np.int32)[ring.table]
        # The owner counts as well: the order of the copies depends on it.
        change = any_in_row(copies[1:] != copies[:-1]) | (ring.table[1:] != ring.table[:-1])
        starts = np.concatenate([[0], np.flatnonzero(change) + 1])
        rows = np.where(copies[starts] == owners[starts, None], NOBODY, copies[starts])
        ordered = _without_repeats(_clockwise(ring, nodes, ring.table[starts], rows))
        differs = np.append(True, any_in_row(ordered[1:] != ordered[:-1]))
        arcs = [
            (start, tuple([nodes[at] for at in row if at != NOBODY]))
            for start, row in zip(starts[differs].tolist(), ordered[differs].tolist(), strict=True)
        ]
        return cls._made(ring, tuple(arcs))

    @classmethod
    def _made(cls, ring: Ring, arcs: tuple[tuple[int, tuple[NodeId, ...]], ...]) -> Placement:
        """Return a placement that needs no checks."""
        placement = object.__new__(cls)
        placement.__dict__.update(ring=ring, arcs=arcs)
        return placement

    @classmethod
    def alone(cls, ring: Ring) -> Placement:
        """Return the placement without any copies."""
        return cls(ring, ((0, ()),))

    @property
    def version(self) -> int:
        """The version of the ring."""
        return self.ring.version

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        """All nodes with slots or copies: those of the ring clockwise, then the others by name."""
        copying = {node for _, nodes in self.arcs for node in nodes}
        return (*self.ring.nodes, *sorted(copying - set(self.ring.nodes)))

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The slots at which another owner begins, the first excepted."""
        tokens = self.ring.tokens
        return tuple(
            start
            for (_, before), (start, owner) in pairwise((tokens[-1], *tokens))
            if before != owner and start
        )

    def owner(self, slot: int) -> NodeId:
        """Return the node that owns the slot."""
        return self.ring.owner(slot)

    def copies(self, slot: int) -> tuple[NodeId, ...]:
        """Return the nodes that are fed copies of the slot."""
        if not 0 <= slot < self.ring.slots:
            raise RingError(f"there is no slot {slot}", f"slots are 0 to {self.ring.slots - 1}")
        return self._all_shares[self._share_at(slot)].copies

    def shares(self, slots: range) -> list[Share]:
        """Cut the slots where their owner or their copies change."""
        if not slots:
            return []
        if slots.step != 1 or slots.start < 0 or slots.stop > self.ring.slots:
            what = f"{slots} is no run of slots"
            raise RingError(what, f"give a part of range(0, {self.ring.slots}), without steps")
        first, last = self._share_at(slots.start), self._share_at(slots.stop - 1)
        return [
            Share(
                share.owner,
                share.copies,
                range(max(share.slots.start, slots.start), min(share.slots.stop, slots.stop)),
            )
            for share in self._all_shares[first : last + 1]
        ]

    def fed(self, node: NodeId) -> SlotMask:
        """Return the slots of which the node gets copies."""
        lengths = np.diff([*(start for start, _ in self.arcs), self.ring.slots])
        return np.repeat(np.array([node in nodes for _, nodes in self.arcs], np.bool_), lengths)

    def owned(self, node: NodeId) -> SlotMask:
        """Return the slots that the node owns: none, if it is not in the ring."""
        if node not in self.ring.nodes:
            return np.zeros(self.ring.slots, np.bool_)
        return np.asarray(self.ring.table == self.ring.nodes.index(node))

    def held(self, node: NodeId) -> SlotMask:
        """Return the slots that the node owns or gets copies of."""
        return self.owned(node) | self.fed(node)

    def at(self, version: int) -> Placement:
        """Return the same placement in another version."""
        return self._made(self.ring.at(version), self.arcs)

    def __reduce__(self) -> tuple[type[Placement], tuple[object, ...]]:
        # Placements travel with tasks: leave out the cached shares, which are quickly cut again.
        return Placement, (self.ring, self.arcs)

    @cached_property
    def _all_shares(self) -> tuple[Share, ...]:
        """All slots in shares, computed from tokens and arcs, not from single slots."""
        # Slots before the first token belong to the last one; dict() lets a token at 0 win.
        owners = dict([(0, self.ring.tokens[-1][1]), *self.ring.tokens])
        copies = dict(self.arcs)
        cuts: list[tuple[int, NodeId, tuple[NodeId, ...]]] = []
        owner, nodes = owners[0], copies[0]
        for start in sorted(owners.keys() | copies.keys()):
            owner, nodes = owners.get(start, owner), copies.get(start, nodes)
            # A ring may have two tokens in a row of the same node.
            if not cuts or cuts[-1][1:] != (owner, nodes):
                cuts.append((start, owner, nodes))
        ends = [start for start, _, _ in cuts[1:]] + [self.ring.slots]
        return tuple(
            Share(owner, nodes, range(start, end))
            for (start, owner, nodes), end in zip(cuts, ends, strict=True)
        )

    @cached_property
    def _share_starts(self) -> list[int]:
        return [share.slots.start for share in self._all_shares]

    def _share_at(self, slot: int) -> int:
        return bisect_right(self._share_starts, slot) - 1


def _clockwise(
    ring: Ring, nodes: Sequence[NodeId], owners: npt.NDArray[np.int32], rows: NodeTable
) -> NodeTable:
    """Order each row of nodes clockwise from its owner; those not in the ring last, by name."""
    size = len(ring.nodes)
    others = sorted(set(nodes).difference(ring.nodes))
    place = {node: at for at, node in enumerate((*ring.nodes, *others))}
    places = np.array([*(place[node] for node in nodes), len(place)])  # the last one for NOBODY
    found = places[rows]
    distance = np.where(found < size, (found - owners[:, None]) % size, found)
    return np.asarray(np.take_along_axis(rows, np.argsort(distance, axis=1), axis=1))


def _without_repeats(rows: NodeTable) -> NodeTable:
    """Each row of nodes, in which the same are side by side, with each once and gaps at its end."""
    again = np.zeros(rows.shape, np.bool_)
    again[:, 1:] = rows[:, 1:] == rows[:, :-1]
    once = np.where(again, NOBODY, rows)
    return np.asarray(
        np.take_along_axis(once, np.argsort(once == NOBODY, axis=1, kind="stable"), 1)
    )

"""The roster: which nodes live, who owns and copies each slot, and whose copies are in sync.

It alone mints placements. A copy is *in sync* when it is complete through the newest committed
epoch; only such a copy can be promoted. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millstream.errors import MillstreamError
from millstream.ring.masks import SlotMask, runs_of
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring, RingError
from millstream.ring.zones import Domain, backups_of, interleave
from millstream.wire.receipts import Runs


class StateLostError(MillstreamError):
    """The last complete copies of some slots are lost."""

    def __init__(self, slots: int, of: int, nodes: tuple[str, ...], replicas: int) -> None:
        super().__init__(slots, of, nodes, replicas)
        self.slots, self.of, self.nodes, self.replicas = slots, of, nodes, replicas

    def __str__(self) -> str:
        nodes = ", ".join(node[:8] for node in self.nodes)
        cause = (
            "state had no second copy (replicas=0)"
            if self.replicas == 0
            else f"all copies failed before new ones were made (replicas={self.replicas})"
        )
        return (
            f"the state of {self.slots} of {self.of} slots is lost with the nodes {nodes}: "
            f"{cause}. The epoch under way was not committed. Run the workflow again: with the "
            "same checkpoint= it resumes from the store, without one it starts from scratch. "
            "More replicas, spread over more executors, hosts or zones, survive more failures at "
            "once"
        )


@dataclass(frozen=True)
class MissingCopy:
    """Slots that a node should back up, but has no complete copy of, and a donor for it."""

    donor: NodeId
    to: NodeId
    slots: tuple[range, ...]


class Roster:
    """The nodes of a run and what they hold."""

    def __init__(
        self, domains: Mapping[NodeId, Domain], slots: int, replicas: int, *, empty: bool = True
    ) -> None:
        """Mint the first placement; unless the state is ``empty``, owners restore it."""
        self.replicas = replicas
        self.domains = dict(domains)
        ring = Ring.even(interleave(list(domains), domains), slots)
        self.placement = Placement.of(ring, self._wanted(ring))
        # Before the first commit every slot is empty, and so every copy is complete.
        self._empty = empty
        self._in_sync: dict[NodeId, SlotMask] = {
            node: np.ones(slots, dtype=bool) if empty else self.placement.owned(node)
            for node in domains
        }
        # The version since which owners are as they are; later ones differ in copies alone.
        self.owners_since = 0
        self._moves: list[tuple[SlotMask, NodeId]] = []
        # Whether there is a change that may need another placement.
        self._is_changed = False
        self._dead: list[NodeId] = []

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes that are not declared dead."""
        return tuple(self.domains)

    @property
    def dead_nodes(self) -> tuple[NodeId, ...]:
        """The nodes that were declared dead, in that order."""
        return tuple(self._dead)

    def in_sync(self, node: NodeId) -> SlotMask:
        """The slots of which a node has a complete copy; none if it is dead."""
        mask = self._in_sync.get(node)
        return np.zeros(self.placement.ring.slots, dtype=bool) if mask is None else mask.copy()

    def copy_counts(self) -> npt.NDArray[np.int64]:
        """The number of complete copies of each slot, the owner's included."""
        counts = np.zeros(self.placement.ring.slots, dtype=np.int64)
        for mask in self._in_sync.values():
            counts += mask
        return counts

    def _wanted(self, ring: Ring) -> dict[NodeId, SlotMask]:
        """The slots that each node should back up."""
        wanted = {node: np.zeros(ring.slots, dtype=bool) for node in self.domains}
        for node, backups in backups_of(ring, self.domains, self.replicas).items():
            for backup in backups:
                wanted[backup][ring.slots_of(node)] = True
        return wanted

    # -- copies in sync ------------------------------------------------------------------

    def set_in_sync(self, in_sync: Mapping[NodeId, SlotMask]) -> None:
        """Set whose copies are complete through the epoch that is committed now."""
        self._empty = False
        for node in self.domains:
            complete = in_sync.get(node)
            held = self.placement.held(node)
            now = held & complete if complete is not None else np.zeros_like(held)
            self._is_changed |= not np.array_equal(now, self._in_sync[node])
            self._in_sync[node] = now

    def report_reach(self, node: NodeId, reach: Runs, committed: int) -> None:
        """Update the copies of a node between two commits."""
        if node in self.domains:
            complete = from_runs(reach, self.placement.ring.slots) >= committed
            self._in_sync[node] |= complete & self.placement.held(node)
            self._is_changed = True

    # -- changes -------------------------------------------------------------------------

    def move(self, slots: Iterable[int], to: NodeId) -> None:
        """Make a node the owner of slots at the next epoch at which it is in sync."""
        if to not in self.domains:
            raise RingError(f"node {to!r} does not live", f"it has {', '.join(self.domains)}")
        mask = np.zeros(self.placement.ring.slots, dtype=bool)
        mask[list(slots)] = True
        self._moves.append((mask, to))
        self._is_changed = True

    def survives_without(self, dead: Iterable[NodeId]) -> bool:
        """Whether every slot has a complete copy besides those of some nodes."""
        excluded = set(dead)
        covered = np.zeros(self.placement.ring.slots, dtype=bool)
        for node, mask in self._in_sync.items():
            if node not in excluded:
                covered |= mask
        return bool(covered.all())

    def remove(self, dead: Iterable[NodeId], *, restorable: bool = False) -> None:
        """Remove nodes: each of their slots is reassigned to its first in-sync copy, clockwise.

        Slots without one are lost; if they are ``restorable``, because the store has them, they
        are spread over the living nodes, which restore them before they accept a feed.
        """
        removed = [node for node in dead if node in self.domains]
        if not removed:
            return
        ring = self.placement.ring
        orphans = np.zeros(ring.slots, dtype=bool)
        for node in removed:
            orphans |= self.placement.owned(node)
        for node in removed:
            for heir in self._clockwise(node):
                taken = orphans & self.placement.owned(node) & self._in_sync[heir]
                if heir not in removed and taken.any():
                    ring = ring.moved(np.flatnonzero(taken), heir)
                    orphans &= ~taken
        all_dead = (*self._dead, *removed)
        heirs = [node for node in self._clockwise(removed[0]) if node not in removed]
        if orphans.any() and not (restorable and heirs):
            raise StateLostError(int(orphans.sum()), len(orphans), all_dead, self.replicas)
        if orphans.any():
            shares = np.array_split(np.flatnonzero(orphans), len(heirs))
            for heir, share in zip(heirs, shares, strict=True):
                ring = ring.moved(share, heir) if len(share) else ring
                self._in_sync[heir][share] = True
        self._dead = list(all_dead)
        for node in removed:
            del self.domains[node], self._in_sync[node]
        self._mint(ring)
        self._is_changed = True

    def _clockwise(self, node: NodeId) -> list[NodeId]:
        """The other nodes, nearest clockwise first; those that own nothing come last."""
        ring = self.placement.ring
        near = ring.neighbours(node, len(ring.nodes)) if node in ring.nodes else ()
        return [*near, *(other for other in self.domains if other not in (node, *near))]

    def enact(self, between_epochs: bool) -> bool:
        """Enact pending moves and changes of copies; return whether a placement was minted.

        Owners change here only between epochs, with no unit in flight.
        """
        if not self._is_changed:
            return False
        ring = self.placement.ring
        if between_epochs:
            for mask, to in self._moves:
                if to in self.domains:
                    ready = mask & self._in_sync[to]
                    if ready.any():
                        ring = ring.moved(np.flatnonzero(ready), to)
            self._moves = []
        before = self.placement
        self._mint(ring)
        minted = self.placement is not before
        self._is_changed = minted or bool(self._moves)
        return minted

    def _mint(self, ring: Ring) -> None:
        """Mint the placement of a ring, if it differs from the one in force."""
        after = Placement.of(ring, self._fed(ring))
        version = self.placement.version
        if after.at(version) != self.placement:
            if ring.tokens != self.placement.ring.tokens:
                self.owners_since = version + 1
            self.placement = after.at(version + 1)
            for node, mask in self._in_sync.items() if not self._empty else ():
                mask &= self.placement.held(node)

    def _fed(self, ring: Ring) -> dict[NodeId, SlotMask]:
        """The slots each node is fed: as backup, or as former backup until new ones are in sync."""
        wanted = self._wanted(ring)
        short = np.zeros(ring.slots, dtype=bool)
        for node, mask in wanted.items():
            short |= mask & ~self._in_sync[node] & (self._owned(ring, node) == 0)
        return {
            node: (mask | self._retained(node, short)) & ~self._owned(ring, node)
            for node, mask in wanted.items()
        }

    def _retained(self, node: NodeId, short: SlotMask) -> SlotMask:
        """The complete copies that a node retains until the slot has all its backups."""
        return self._in_sync[node] & short

    @staticmethod
    def _owned(ring: Ring, node: NodeId) -> SlotMask:
        owned = np.zeros(ring.slots, dtype=bool)
        if node in ring.nodes:
            owned[ring.slots_of(node)] = True
        return owned

    @property
    def is_under_replicated(self) -> bool:
        """Whether some node has no complete copy of slots that it should back up."""
        return any(
            bool((self.placement.fed(node) & ~mask).any()) for node, mask in self._in_sync.items()
        )

    def missing_copies(
        self, *, spare_owners: bool, avoid: Container[tuple[NodeId, NodeId]] = ()
    ) -> list[MissingCopy]:
        """The copies to be made, and their donors; owners are spared if a backup has the slot.

        Pairs of a donor and a receiver to ``avoid`` are chosen if there is no other donor.
        """
        missing = []
        for node in self.domains:
            lacking = self.placement.fed(node) & ~self._in_sync[node]
            donors = self._donors(spare_owners)
            donors.sort(key=lambda donor: (donor[0], node) in avoid)
            for donor, able in donors:
                donated = lacking & able
                if donated.any():
                    runs = tuple(runs_of(donated, range(len(donated))))
                    missing.append(MissingCopy(donor, node, runs))
                    lacking &= ~donated
        return missing

    def _donors(self, spare_owners: bool) -> list[tuple[NodeId, SlotMask]]:
        owners = [(node, self.placement.owned(node)) for node in self.domains]
        if not spare_owners:
            return owners
        backups = [(n, self.placement.fed(n) & self._in_sync[n]) for n in self.domains]
        return [*backups, *owners]


def from_runs(runs: Runs, slots: int) -> npt.NDArray[np.int64]:
    """The value of every slot."""
    values = np.zeros(slots, dtype=np.int64)
    for start, value in runs:
        values[start:] = value
    return values

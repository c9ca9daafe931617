"""The roster: the members of a run, who owns and copies each slot, and whose copies are in sync.

It alone mints placements. A copy is *in sync* when it is complete through the newest committed
epoch; only such a copy can be promoted. The *goal* is the owner that each slot shall have. Where it
is not the owner yet, it is fed and gets a copy like any new backup, and becomes the owner between
two epochs, once it is in sync. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from millstream.coordinator.holders import Holders, Slots
from millstream.coordinator.layout import Layout
from millstream.errors import MillstreamError
from millstream.ring.masks import SlotMask, any_in_row
from millstream.ring.placement import NOBODY, NodeTable, Placement
from millstream.ring.replicas import choose_replicas
from millstream.ring.ring import NodeId, Ring, RingError
from millstream.ring.zones import Domain, interleave

Cells = npt.NDArray[np.bool_]
"""A flag for each cell of the table of holders."""
Pair = tuple[NodeId, NodeId]
"""A donor and a receiver of copies."""


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
    """Slots that a node is fed, but has no complete copy of, and a donor for it."""

    donor: NodeId
    to: NodeId
    slots: tuple[range, ...]


@dataclass(frozen=True)
class HeldSlots:
    """How many slots a node owns, and of how many it is fed copies, some of them complete."""

    owned: int
    copies: int
    in_sync: int


class Roster:
    """The members of a run and what they hold."""

    def __init__(
        self,
        domains: Mapping[NodeId, Domain],
        slots: int,
        replicas: int,
        *,
        empty: bool = True,
        layout: Layout | None = None,
    ) -> None:
        """Mint the first placement; unless the state is ``empty``, owners restore it.

        Slots are shared as in the ``layout``, if it is of as many nodes, or evenly.
        """
        self.replicas = replicas
        self.domains = dict(domains)
        self.target = len(domains)  # how many nodes shall be active
        self.standby: set[NodeId] = set()
        self.leaving: set[NodeId] = set()
        self._released: set[NodeId] = set()  # of those that leave: they give up all copies
        self._dead: list[NodeId] = []
        self._members = list(domains)  # also those that are gone: a number is used once
        self._numbers = {node: number for number, node in enumerate(self._members)}
        order = interleave(list(domains), domains)
        ring = (layout and layout.ring(order, slots)) or Ring.even(order, slots)
        owners = np.array([self._numbers[node] for node in ring.nodes], np.int32)[ring.table]
        self._wanted = self._chosen(owners, np.full((slots, replicas), NOBODY, np.int32))
        self.placement = Placement.of_table(ring, self._members, self._wanted)
        holders = Holders(self.placement, self._numbers)
        # Before the first commit every slot is empty, and so every copy is complete.
        self._empty = empty
        synced: Cells = holders.table != NOBODY
        if not empty:
            synced[:, 1:] = False
        # The holders and which of them are in sync, replaced in one step: others read both.
        self._copies = (holders, synced)
        # The version since which owners are as they are; later ones differ in copies alone.
        self.owners_since = 0
        self._goal = owners
        self._layout: tuple[bytes, Layout] | None = None  # and the goal that it is of
        # The former owner of a slot retains it until an epoch has committed under the new one.
        self._former = np.full(slots, NOBODY, np.int32)
        self._is_changed = False  # in a way that may need another placement

    @property
    def holders(self) -> Holders:
        """Who holds each slot under the placement in force."""
        return self._copies[0]

    @property
    def _synced(self) -> Cells:
        return self._copies[1]

    # -- members -------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The members that are not declared dead."""
        return tuple(self.domains)

    @property
    def active(self) -> tuple[NodeId, ...]:
        """The members that shall hold slots: neither on standby nor leaving."""
        # A copy, made in one step: other threads may add members meanwhile.
        members = tuple(self.domains)
        return tuple(n for n in members if n not in self.standby and n not in self.leaving)

    @property
    def holding(self) -> tuple[NodeId, ...]:
        """The living members that hold any slot: an epoch needs their receipts."""
        held = [self._members[number] for number in self.holders.holding]
        return tuple([node for node in held if node in self.domains])

    @property
    def dead_nodes(self) -> tuple[NodeId, ...]:
        """The nodes that were declared dead, in that order."""
        return tuple(self._dead)

    def number_of(self, node: NodeId) -> int:
        """The number that stands for a node in the table of holders."""
        return self._numbers[node]

    def node_at(self, number: int) -> NodeId:
        """The node for which a number stands in the table of holders."""
        return self._members[number]

    def add(self, node: NodeId, domain: Domain) -> None:
        """Add a member, on standby: it holds nothing."""
        if node in self._numbers:
            raise RingError(f"node {node!r} is or was a member", "join a node under a new id")
        self._numbers[node] = len(self._members)
        self._members.append(node)
        self.domains[node] = domain
        self.standby.add(node)

    def activate(self, nodes: Iterable[NodeId]) -> None:
        """Let members hold slots; the goal decides which they own."""
        chosen = set(self._required(nodes))
        self.standby -= chosen
        self.leaving -= chosen
        self._released -= chosen
        self._is_changed = True

    def retire(self, nodes: Iterable[NodeId]) -> None:
        """Let members give up what they hold; ``depart`` removes those that have."""
        chosen = set(self._required(nodes))
        if not set(self.active) - chosen:
            raise RingError("the last active node cannot leave", "add another node first")
        self.leaving |= chosen
        self.standby -= chosen
        self._is_changed = True

    def releasable(self) -> list[NodeId]:
        """The leaving members that own nothing, but hold copies that nobody else can take.

        There are fewer active members than copies. Before such a member is released, the others
        have to prove that they live.
        """
        owners = np.unique(self.holders.owners)
        waiting = self.leaving - self._released
        return [n for n in self.holding if n in waiting and self._numbers[n] not in owners]

    def release(self, nodes: Iterable[NodeId]) -> None:
        """Let leaving members give up copies that nobody else can take."""
        released = self.leaving.intersection(nodes) - self._released
        self._released |= released
        self._is_changed |= bool(released)

    def release_former(self) -> None:
        """Let former owners go of slots whose owner and backups are in sync."""
        complete = ~any_in_row(self._lacking)
        if (self._former[complete] != NOBODY).any():
            self._former[complete] = NOBODY
            self._is_changed = True

    def depart(self) -> list[NodeId]:
        """Remove the leaving members that hold nothing any more."""
        holding = set(self.holding)
        gone = [node for node in self.domains if node in self.leaving and node not in holding]
        for node in gone:
            del self.domains[node]
            self.leaving.discard(node)
            self._released.discard(node)
        return gone

    def _required(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        wanted = list(nodes)
        for node in wanted:
            if node not in self.domains:
                raise RingError(
                    f"node {node!r} is not a living member", f"these are: {', '.join(self.domains)}"
                )
        return wanted

    # -- copies in sync ------------------------------------------------------------------

    def in_sync(self, node: NodeId) -> SlotMask:
        """The slots of which a node has a complete copy; none if it is dead."""
        mask = np.zeros(self.placement.ring.slots, dtype=bool)
        if node in self.domains:
            slots, columns = self.holders.of(self._numbers[node])
            mask[slots] = self._synced[slots, columns]
        return mask

    def held_slots(self) -> dict[NodeId, HeldSlots]:
        """How many slots each member has."""
        size, table, copies = len(self._members), self.holders.table, self.holders.table[:, 1:]
        counts = [
            np.bincount(numbers, minlength=size).tolist()
            for numbers in (table[:, 0], copies[copies != NOBODY], copies[self._synced[:, 1:]])
        ]
        return {
            node: HeldSlots(*(count[self._numbers[node]] for count in counts))
            for node in self.domains
        }

    def wanted(self, node: NodeId) -> SlotMask:
        """The slots that a node shall hold, as owner or as backup; it may hold more for a while."""
        number = self._numbers[node]
        return np.asarray((self.holders.owners == number) | any_in_row(self._wanted == number))

    @property
    def synced(self) -> Cells:
        """The cells of the table of holders whose copies are complete; read-only."""
        return self._synced

    def copy_counts(self) -> npt.NDArray[np.int64]:
        """The number of complete copies of each slot, the owner's included."""
        return np.asarray(self._synced.sum(axis=1))

    def set_in_sync(self, complete: Cells) -> None:
        """Set whose copies are complete through the epoch that is committed now."""
        self._empty = False
        now = complete & (self.holders.table != NOBODY)
        retained = self._former != NOBODY
        self._is_changed |= bool(retained.any()) or not np.array_equal(now, self._synced)
        self._former[:] = NOBODY
        self._copies = (self.holders, now)

    def report_reach(self, reaches: Mapping[NodeId, bytes], committed: int) -> None:
        """Update the copies of nodes between two commits, from rows of ``REACH``."""
        known = [(self._numbers[n], reach) for n, reach in reaches.items() if n in self.domains]
        holders, synced = self._copies
        reached = holders.cells(holders.reached(known, committed)) & ~synced
        if reached.any():
            synced |= reached
            self._is_changed = True

    def survives_without(self, dead: Iterable[NodeId]) -> bool:
        """Whether every slot has a complete copy besides those of some nodes."""
        excluded = set(dead)
        if self._empty:
            return not excluded.issuperset(self.domains)
        holders, synced = self._copies
        dead_cells = holders.among(self._numbers[n] for n in excluded if n in self._numbers)
        return bool(any_in_row(synced & ~dead_cells).all())

    def _cells_of(self, nodes: Iterable[NodeId]) -> Cells:
        return self.holders.among(self._numbers[n] for n in nodes if n in self._numbers)

    # -- goals ---------------------------------------------------------------------------

    @property
    def goal(self) -> Ring:
        """The ring as it shall be when all pending moves are done."""
        return Ring.of_table(self.placement.version, self._members, self._goal)

    def layout(self) -> Layout:
        """The layout of the goal; computed once for each goal."""
        goal = self._goal.tobytes()
        if self._layout is None or self._layout[0] != goal or self._layout[1].nodes != self.target:
            self._layout = goal, Layout.of(self.goal, self.target)
        return self._layout[1]

    @property
    def pending(self) -> int:
        """How many slots have not reached their goal."""
        return int((self._goal != self.holders.owners).sum())

    def aim(self, goal: Ring) -> None:
        """Set the owner that each slot shall have; replaces what was pending."""
        self._check_receivers(goal.nodes)
        self._goal = np.array([self._numbers[n] for n in goal.nodes], np.int32)[goal.table]
        self._is_changed = True

    def move(self, slots: Iterable[int], to: NodeId) -> None:
        """Make a node the owner of slots, between two epochs, when it is in sync."""
        self._check_receivers([to])
        self._goal[list(slots)] = self._numbers[to]
        self._is_changed = True

    @property
    def needs_goal(self) -> bool:
        """Whether slots shall stay with nodes that shall not own any."""
        owners = {self._members[number] for number in np.unique(self._goal).tolist()}
        return not owners.issubset(self.active)

    def give_up(self, node: NodeId) -> None:
        """Abandon the moves to a node; what it owns it retains."""
        self._goal = np.where(
            self._goal == self._numbers[node], self.holders.owners, self._goal
        ).astype(np.int32)
        self._is_changed = True

    def _check_receivers(self, nodes: Iterable[NodeId]) -> None:
        active = self.active
        for node in nodes:
            if node not in active:
                raise RingError(
                    f"node {node!r} is not an active member", f"these are: {', '.join(active)}"
                )

    # -- changes -------------------------------------------------------------------------

    def remove(self, dead: Iterable[NodeId], *, restorable: bool = False) -> None:
        """Remove nodes: each of their slots is reassigned to its first in-sync copy, clockwise.

        Slots without one are lost; if they are ``restorable``, because the store has them, they
        are spread over the living nodes, which restore them before they accept a feed.
        """
        removed = [node for node in dead if node in self.domains]
        if not removed:
            return
        numbers = [self._numbers[node] for node in removed]
        able = self._synced & ~self.holders.among(numbers)
        owners = self.holders.owners.copy()
        orphans = np.isin(owners, numbers)
        heirs = self.holders.table[np.arange(len(owners)), able.argmax(axis=1)]
        at_goal = self.holders.found(self._goal, able)
        heirs = np.where(at_goal, self._goal, heirs)
        inherited = orphans & any_in_row(able)
        owners[inherited] = heirs[inherited]
        lost = orphans & ~inherited
        left = self._heirs(removed)
        if lost.any() and not ((restorable or self._empty) and left):
            raise StateLostError(int(lost.sum()), len(lost), (*self._dead, *removed), self.replicas)
        if lost.any():
            for heir, share in zip(
                left, np.array_split(np.flatnonzero(lost), len(left)), strict=True
            ):
                owners[share] = self._numbers[heir]
        self._dead += removed
        for node in removed:
            del self.domains[node]
        self.standby &= self.domains.keys()
        self.leaving &= self.domains.keys()
        self._released &= self.domains.keys()
        if not self.active:  # whoever is left has to stay
            self.standby, self.leaving, self._released = set(), set(), set()
        for former in (self._goal, self._former):
            former[np.isin(former, numbers)] = NOBODY
        self._goal = np.where(self._goal == NOBODY, owners, self._goal)
        self._mint(owners, restored=lost)
        self._is_changed = True

    def _heirs(self, removed: list[NodeId]) -> list[NodeId]:
        """Who inherits what has no copy: active members, nearest clockwise first, or any left."""
        ring, first = self.placement.ring, removed[0]
        near = ring.neighbours(first, len(ring.nodes)) if first in ring.nodes else ()
        left = [n for n in dict.fromkeys((*near, *self.domains)) if n not in removed]
        active = self.active
        return [n for n in left if n in active] or left

    def enact(self, between_epochs: bool) -> bool:
        """Enact pending moves and changes of copies; return whether a placement was minted.

        Owners change here only between epochs, with no unit in flight.
        """
        if not self._is_changed:
            return False
        owners = self.holders.owners
        if between_epochs:
            ready = (self._goal != owners) & self._is_ready()
            self._former = np.where(ready, owners, self._former)
            owners = np.where(ready, self._goal, owners)
        before = self.placement
        self._mint(owners)
        minted = self.placement is not before
        self._is_changed = minted or (bool(self.pending) and not between_epochs)
        return minted

    def _is_ready(self) -> SlotMask:
        """The slots whose goal has a complete copy."""
        if self._empty:
            return np.ones(len(self._goal), dtype=bool)
        return self.holders.found(self._goal, self._synced)

    def _mint(self, owners: npt.NDArray[np.int32], restored: SlotMask | None = None) -> None:
        """Mint the placement with these owners, if it differs from the one in force.

        The slots that are ``restored`` are complete at their owner, because the store has them.
        """
        ring = Ring.of_table(self.placement.version, self._members, owners)
        # The roles of an owner and its backup swap.
        swapped = np.where(
            self._wanted == owners[:, None], self.holders.owners[:, None], self._wanted
        )
        self._wanted = self._chosen(owners, swapped)
        version = self.placement.version
        after = Placement.of_table(ring, self._members, self._fed(owners))
        if after == self.placement:
            return
        if ring.tokens != self.placement.ring.tokens:
            self.owners_since = version + 1
        placement = after.at(version + 1)
        holders = Holders(placement, self._numbers)
        columns = [self.holders.found(column, self._synced) for column in holders.table.T]
        synced = np.stack(columns, axis=1)
        if restored is not None:
            synced[restored, 0] = True
        if self._empty:
            synced[:] = True
        synced &= holders.table != NOBODY
        self.placement, self._copies = placement, (holders, synced)

    def _chosen(self, owners: npt.NDArray[np.int32], current: NodeTable) -> NodeTable:
        """The backups that each slot shall have."""
        eligible = {node: self.domains[node] for node in self.active}
        return choose_replicas(owners, self._members, eligible, self.replicas, current)

    def _fed(self, owners: npt.NDArray[np.int32]) -> NodeTable:
        """Who is fed each slot: its backups, its goal, and former holders while they are needed.

        A complete copy is retained until the slot has all its backups, a former owner until an
        epoch has committed under the new one.
        """
        columns = [self._wanted, np.where(self._goal != owners, self._goal, NOBODY)[:, None]]
        living = np.isin(self._former, [self._numbers[node] for node in self.domains])
        columns.append(np.where(living, self._former, NOBODY)[:, None])
        short = np.zeros(len(owners), dtype=bool)
        for column in self._wanted.T:
            short |= (column != NOBODY) & ~self.holders.found(column, self._synced)
        columns.append(np.where(self._retained(short), self.holders.table, NOBODY))
        return np.concatenate(columns, axis=1)

    def _retained(self, short: SlotMask) -> Cells:
        """The complete copies that are retained, because their slots are ``short`` of backups."""
        if self._empty:
            return np.zeros_like(self._synced)
        scarce = any_in_row(self._wanted == NOBODY)
        needed = self._cells_of(self.leaving - self._released) & scarce[:, None]
        return np.asarray(self._synced & (short[:, None] | needed) & ~self._cells_of(self._dead))

    # -- copies that are missing ---------------------------------------------------------

    @property
    def _lacking(self) -> Cells:
        """The cells of nodes that are fed a slot and have no complete copy of it."""
        holders, synced = self._copies
        return np.asarray(~synced & (holders.table != NOBODY))

    @property
    def is_under_replicated(self) -> bool:
        """Whether some node has no complete copy of slots that it is fed."""
        return bool(self._lacking.any())

    def missing_copies(
        self,
        *,
        spare_owners: bool,
        avoid: Iterable[Pair] = (),
        without: Iterable[Pair] = (),
    ) -> list[MissingCopy]:
        """The copies to be made, and their donors; owners are spared if a backup has the slot.

        Pairs of a donor and a receiver to ``avoid`` are chosen if there is no other donor. Those of
        the pairs ``without`` which the list shall be are left out.
        """
        table = self.holders.table
        slots, columns = np.nonzero(self._lacking)
        if not len(slots):
            return []
        to = table[slots, columns]
        donors = self._donors(to, slots, spare_owners, avoid)
        pairs = to.astype(np.int64) * len(self._members) + donors
        wanted = (donors != NOBODY) & ~np.isin(pairs, self._codes(without))
        order = np.flatnonzero(wanted)[np.argsort(pairs[wanted], kind="stable")]
        pairs, slots = pairs[order], slots[order]
        if not len(order):
            return []
        begins = np.append(True, pairs[1:] != pairs[:-1])
        firsts = np.flatnonzero(begins | np.append(True, slots[1:] != slots[:-1] + 1))
        lasts = np.append(firsts[1:], len(slots)) - 1
        runs = [
            range(a, b + 1)
            for a, b in zip(slots[firsts].tolist(), slots[lasts].tolist(), strict=True)
        ]
        bounds = np.append(np.flatnonzero(begins[firsts]), len(runs)).tolist()
        receivers, donors = np.divmod(pairs[begins], len(self._members))
        return [
            MissingCopy(self._members[donor], self._members[receiver], tuple(runs[start:stop]))
            for donor, receiver, (start, stop) in zip(
                donors.tolist(), receivers.tolist(), pairwise(bounds), strict=True
            )
        ]

    def _donors(
        self, to: npt.NDArray[np.int32], slots: Slots, spare_owners: bool, avoid: Iterable[Pair]
    ) -> npt.NDArray[np.int32]:
        """For slots that a node lacks, each, the node that copies it: a backup, else the owner."""
        table, able = self.holders.table[slots], self._synced[slots]
        if not spare_owners:
            able[:, 1:] = False
        pairs = to[:, None].astype(np.int64) * len(self._members) + table
        # Backups first, the owner last; those to be avoided after all others.
        width = table.shape[1]
        cost = np.tile([width, *range(1, width)], (len(slots), 1))
        cost += 2 * width * np.isin(pairs, self._codes(avoid)) + 4 * width * ~able
        rows, best = np.arange(len(slots)), cost.argmin(axis=1)
        return np.where(able[rows, best], table[rows, best], NOBODY).astype(np.int32)

    def _codes(self, pairs: Iterable[Pair]) -> list[int]:
        """Pairs of a donor and a receiver as numbers."""
        numbers, members = self._numbers, len(self._members)
        return [numbers[to] * members + numbers[donor] for donor, to in pairs]

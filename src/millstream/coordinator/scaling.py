"""Scaling: members join and leave, and slots move to the owners that they shall have.

It decides nothing by itself: users, policies and the pool of nodes say what they want, and this
part of the coordinator turns it into goals of the roster, which are enacted between two epochs. A
node that died is not special: its slots have other owners already, and whoever joins in its place
gets a fair share.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.coordinator.roster import Roster
from millstream.coordinator.run_context import RunContext
from millstream.elastic.events import EventLog
from millstream.errors import ConfigError
from millstream.ring.balance import Weights, rebalanced
from millstream.ring.ring import NodeId, Ring
from millstream.ring.zones import Domain
from millstream.wire.control import Role
from millstream.wire.membership import Stop

log = logging.getLogger("millstream")

_TOGETHER = 0.2  # seconds in which nodes that join are given slots together


@dataclass(frozen=True)
class Member:
    """A node of the run: where it listens, the fault domain it is in, and its process."""

    node: NodeId
    address: str
    domain: Domain
    pid: int = 0


class Scaling:
    """Changes the members of a run, and the goals of its slots."""

    def __init__(
        self,
        run: RunContext,
        events: EventLog,
        lock: AbstractContextManager[Any],
        changing: AbstractContextManager[Any],
    ) -> None:
        """``changing`` is held by whoever changes the placement."""
        self._run = run
        self._events = events
        self._lock = lock
        self._changing = changing
        self._members: dict[NodeId, Member] = {}
        self._surplus: set[NodeId] = set()  # leave because there were too many
        self._is_due = False  # the goal has to be computed anew
        self._is_joined = False  # members have joined, and will soon be given slots
        self.weights: Weights | None = None

    def begin(self, members: Iterable[Member]) -> None:
        """Register the first members, all of them active."""
        self._members = {member.node: member for member in members}
        self._run.rpc.addresses = {node: m.address for node, m in self._members.items()}

    @property
    def is_due(self) -> bool:
        """Whether the goal will be computed anew between this epoch and the next one."""
        return self._is_due

    def roles(self) -> dict[NodeId, Role]:
        """What each living member is for."""
        roster = self._run.roster
        roles: dict[NodeId, Role] = dict.fromkeys(roster.domains, "active")
        roles |= dict.fromkeys(roster.standby, "standby")
        return roles | dict.fromkeys(roster.leaving, "leaving")

    def pids(self) -> dict[NodeId, int]:
        """The process of each living member, on its host."""
        return {node: self._members[node].pid for node in self._run.roster.domains}

    def addresses(self) -> dict[NodeId, str]:
        """Where the nodes of the placement in force listen."""
        return {n: self._members[n].address for n in self._run.roster.placement.nodes}

    @contextmanager
    def unchanged(self) -> Iterator[Roster]:
        """The roster, while nobody changes it."""
        with self._lock:
            yield self._run.roster

    # -- what users, policies and the pool ask for -----------------------------------------

    def join(self, member: Member) -> None:
        """Add a member; it gets slots from the next epoch on if the run has too few."""
        with self._changing, self._lock:
            # Replaced, never changed: other threads read it without a lock. Before the member is
            # in the roster, because who finds it there calls it.
            self._run.rpc.addresses = {**self._run.rpc.addresses, member.node: member.address}
            self._members[member.node] = member
            self._run.roster.add(member.node, member.domain)
        where = f"{member.domain.host}, executor {member.domain.executor}"
        self._events.add("join", f"node {member.node[:8]} joined ({where})", {"node": member.node})
        self._enact_soon()

    def _enact_soon(self) -> None:
        """Enact changes, if no epoch is under way, together with those of nodes that join soon."""
        with self._lock:
            if self._is_joined:
                return
            self._is_joined = True
        self._run.net.spawn(self._enact_joined, "join")

    def _enact_joined(self) -> None:
        self._run.net.sleep(_TOGETHER)
        self._is_joined = False
        self.enact_if_idle()

    def scale_to(self, nodes: int) -> None:
        """Set how many members shall hold slots."""
        slots = self._run.roster.placement.ring.slots
        if not 1 <= nodes <= slots:
            raise ConfigError(f"nodes must be from 1 to {slots} (slots), got {nodes}")
        with self._changing, self._lock:
            roster = self._run.roster
            before, roster.target = roster.target, nodes
            surplus = len(roster.active) - nodes
            if surplus > 0:
                self._retire_surplus(surplus)
        self._events.add("scale", f"from {before} to {nodes} nodes", {"nodes": nodes})
        self.enact_if_idle()

    def drain(self, nodes: Iterable[NodeId]) -> None:
        """Let members give up their slots and copies, and then leave; they are not replaced."""
        with self._changing, self._lock:
            roster = self._run.roster
            leaving = [node for node in nodes if node not in roster.leaving]
            active = set(roster.active)
            self._retire(leaving)
            roster.target = max(1, roster.target - sum(node in active for node in leaving))
        for node in leaving:
            self._events.add("drain", f"node {node[:8]} is leaving", {"node": node})
        self.enact_if_idle()

    def dismiss(self, nodes: Iterable[NodeId]) -> None:
        """Let members leave that are on standby; those that were activated meanwhile stay."""
        with self._changing, self._lock:
            roster = self._run.roster
            surplus = [node for node in nodes if node in roster.standby]
            if surplus:
                roster.retire(surplus)
        self.enact_if_idle()

    def rebalance(self) -> None:
        """Compute the goal anew from the load."""
        with self._changing, self._lock:
            self._is_due = True
        self.enact_if_idle()

    def move(self, slots: Iterable[int], to: NodeId) -> None:
        """Make a member the owner of slots, as soon as it has a complete copy."""
        with self._changing, self._lock:
            self._run.roster.move(slots, to)
        self.enact_if_idle()

    # -- between two epochs ----------------------------------------------------------------

    def prepare(self) -> None:
        """Update members and goals; the caller holds the locks and enacts them."""
        roster = self._run.roster
        lacking = roster.target - len(roster.active)
        # Those that were to leave because there were too many have their slots still.
        spare = [n for n in roster.domains if n in roster.standby or n in self._surplus]
        if lacking > 0 and spare:
            spare.sort(key=lambda node: node in roster.standby)
            roster.activate(spare[:lacking])
            self._is_due = True
        elif lacking < 0 and not roster.is_under_replicated:  # leavers had to stay for others
            self._retire_surplus(-lacking)
        self._surplus &= roster.leaving
        if self._is_due or roster.needs_goal:
            self._is_due = False
            roster.aim(self.target_ring(roster.active))
        for node in roster.depart():
            self._run.rpc.forget(node)
            self._events.add("leave", f"node {node[:8]} left", {"node": node})
            self._run.rpc.notify([node], Stop())

    def release_copies(self, silent: Collection[NodeId]) -> None:
        """Let former owners, and members that leave, go of copies that are no longer needed.

        Only if no active member is ``silent``. If no epoch commits, because there is no input,
        nothing else releases them.
        """
        with self._changing, self._lock:
            roster = self._run.roster
            if not any(node in silent for node in roster.active):
                roster.release(roster.releasable())
                if self._run.ledger.record is None:
                    roster.release_former()

    def enact_if_idle(self) -> None:
        """Enact changes now if no epoch is under way; else the next admission does."""
        if self._run.ledger.record is None:
            self._run.enact_changes()

    def enact(self, between_epochs: bool) -> bool:
        """Enact what is pending, with the locks held; return whether a placement was minted."""
        roster = self._run.roster
        if between_epochs:
            self.prepare()
        before, owners = roster.pending, roster.holders.owners
        minted = roster.enact(between_epochs=between_epochs)
        if roster.pending < before:
            moved = int((roster.holders.owners != owners).sum())
            text = f"{moved} slots have new owners, {roster.pending} are pending"
            self._events.add("move", text, {"moved": moved, "pending": roster.pending})
        return minted

    def target_ring(self, active: Sequence[NodeId]) -> Ring:
        """The ring in which each of these nodes has a fair share of the load."""
        roster = self._run.roster
        weights = self.weights
        if weights is None:
            weights = np.ones(roster.placement.ring.slots)
        return rebalanced(
            roster.goal,
            weights,
            active,
            in_sync=roster.in_sync,
        )

    def _retire_surplus(self, count: int) -> None:
        surplus = self.least_useful(count)
        self._retire(surplus)
        self._surplus.update(surplus)

    def _retire(self, nodes: list[NodeId]) -> None:
        self._run.roster.retire(nodes)
        self._is_due = True

    def least_useful(self, count: int) -> list[NodeId]:
        """The active members to give up: the newest, of executors with most of them."""
        roster = self._run.roster
        active = {node: roster.domains[node].path for node in roster.active}
        crowds, chosen = Counter(active.values()), list[NodeId]()
        for _ in range(count):
            worst = max(reversed(active), key=lambda node: crowds[active[node]])
            crowds[active.pop(worst)] -= 1
            chosen.append(worst)
        return chosen

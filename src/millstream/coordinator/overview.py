"""The nodes of a run and their slots at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.coordinator.roster import HeldSlots
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId
from millstream.ring.zones import Domain
from millstream.wire.control import NodeStatus, Role


@dataclass(frozen=True)
class Overview:
    """Who owns and copies what; ``durable`` is the newest epoch in the store, if there is one.

    ``target`` is how many nodes shall be active, ``pending`` how many slots have not reached the
    owner that they shall have. While a rebalance ``is_due``, these owners are not known.
    """

    placement: Placement
    domains: Mapping[NodeId, Domain]
    held: Mapping[NodeId, HeldSlots]
    lost: tuple[NodeId, ...]
    committed: int
    incarnation: int
    durable: int | None
    fenced_alive: tuple[NodeId, ...]
    slow: tuple[NodeId, ...]
    waits: tuple[str, ...]
    roles: Mapping[NodeId, Role]
    pids: Mapping[NodeId, int]
    target: int
    pending: int
    is_due: bool

    @property
    def active(self) -> int:
        """How many nodes are active."""
        return list(self.roles.values()).count("active")

    @property
    def is_settled(self) -> bool:
        """Whether no slot is pending or will be, and all nodes are there that shall be."""
        are_there = self.active == self.target and "leaving" not in self.roles.values()
        return are_there and not self.pending and not self.is_due

    def nodes(self) -> list[NodeStatus]:
        """The living members."""
        return [self._status(node, domain) for node, domain in self.domains.items()]

    def _status(self, node: NodeId, domain: Domain) -> NodeStatus:
        held = self.held[node]
        return NodeStatus(
            node,
            domain.host,
            domain.executor,
            domain.zone,
            self.pids[node],
            held.owned,
            held.copies,
            held.in_sync,
            self.roles[node],
        )

"""The limits that policies keep to: how many nodes there may be, and which receive nothing."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many nodes may own slots.

    ``standby`` counts nodes that are ready and wait to be added: they are not part of the load.
    ``draining`` are nodes that are about to leave; they receive nothing and no longer count.
    """

    max_nodes: int
    min_nodes: int = 1
    standby: int = 0
    draining: frozenset[NodeId] = frozenset()

    def __post_init__(self) -> None:
        for option, least in (("min_nodes", 1), ("max_nodes", 1), ("standby", 0)):
            count = getattr(self, option)
            if type(count) is not int or count < least:
                raise ConfigError(f"{option} must be an integer of at least {least}, got {count!r}")
        if self.max_nodes < self.min_nodes:
            raise ConfigError(
                f"max_nodes must be at least min_nodes ({self.min_nodes}), got {self.max_nodes}"
            )

    def staying(self, ring: Ring) -> int:
        """How many nodes own slots and are not about to leave."""
        return len(ring.nodes) - len(self.draining.intersection(ring.nodes))

    def addable(self, ring: Ring, wanted: int) -> int:
        """How many of the wanted nodes may be added now.

        No more than stand by, or one: others would come only after minutes, when the load may be
        another.
        """
        room = self.max_nodes - self.staying(ring)
        return max(0, min(wanted, room, max(1, self.standby)))

    def removable(self, ring: Ring) -> int:
        """How many nodes may be removed now: at most a tenth of them, but one if any."""
        staying = self.staying(ring)
        return max(0, min(staying - self.min_nodes, max(1, staying // 10)))

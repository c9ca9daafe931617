"""The limits that policies keep to: how many nodes there may be."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.ring.ring import Ring


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many nodes may own slots; ``standby`` counts those that are ready to be added."""

    max_nodes: int
    min_nodes: int = 1
    standby: int = 0

    def __post_init__(self) -> None:
        for option, least in (("min_nodes", 1), ("max_nodes", 1), ("standby", 0)):
            count = getattr(self, option)
            if type(count) is not int or count < least:
                raise ConfigError(f"{option} must be an integer of at least {least}, got {count!r}")
        if self.max_nodes < self.min_nodes:
            raise ConfigError(
                f"max_nodes must be at least min_nodes ({self.min_nodes}), got {self.max_nodes}"
            )

    def addable(self, ring: Ring, wanted: int) -> int:
        """How many of the wanted nodes may be added now.

        No more than stand by, or one: others would come only after minutes, when the load may be
        another.
        """
        room = self.max_nodes - len(ring.nodes)
        return max(0, min(wanted, room, max(1, self.standby)))

    def removable(self, ring: Ring) -> int:
        """How many nodes may be removed now: at most a tenth of them, but one if any."""
        nodes = len(ring.nodes)
        return max(0, min(nodes - self.min_nodes, max(1, nodes // 10)))

"""The layout: how slots are shared among nodes, as manifests record it.

Nodes are numbered by their place in the ring, because no node outlives its driver. The layout is
that of the goal: moves that were pending when a driver failed are part of it, and are resumed by a
restart with as many nodes. A restart with another number abandons them, and shares slots evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring


@dataclass(frozen=True)
class Layout:
    """How many nodes shall be active, and where the arc of each begins, clockwise."""

    nodes: int
    arcs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, goal: Ring, nodes: int) -> Layout:
        """The layout of a goal."""
        places = {node: at for at, node in enumerate(goal.nodes)}
        return cls(nodes, tuple((start, places[node]) for start, node in goal.tokens))

    @classmethod
    def from_manifest(cls, recorded: Mapping[str, Any]) -> Layout | None:
        """Read what ``to_manifest`` wrote; None if a manifest has no layout, or a damaged one."""
        try:
            return cls(recorded["nodes"], tuple((start, at) for start, at in recorded["arcs"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_manifest(self) -> dict[str, Any]:
        """The layout as plain values."""
        return {"nodes": self.nodes, "arcs": [list(arc) for arc in self.arcs]}

    def ring(self, nodes: Sequence[NodeId], slots: int) -> Ring | None:
        """The first ring of these nodes in this layout; None if it is of another number."""
        if {at for _, at in self.arcs} != set(range(len(nodes))):
            return None
        try:
            return Ring(0, slots, tuple((start, nodes[at]) for start, at in self.arcs))
        except ConfigError:  # of another number of slots, or damaged: not worth a failed start
            return None

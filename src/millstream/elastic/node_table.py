"""The load of the nodes of a ring as columns, and the thresholds that are read from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from millstream.elastic.load import Load
from millstream.elastic.slot_shares import Values, per_node, weights_of
from millstream.errors import ConfigError
from millstream.ring.ring import NodeId, Ring

Flags = npt.NDArray[np.bool_]

WORTH_IT = 0.95
"""Slots move only if the busiest node they concern has at most this part of its load afterwards."""
HEADROOM = 0.8
"""Nodes are added or removed so that CPU comes to at most this part of the high threshold."""


@dataclass(frozen=True)
class NodeTable:
    """The nodes of a ring, clockwise, with their load.

    ``cpu`` and ``feeds`` are NaN for a node that has not reported: it meets no threshold. ``feeds``
    is the mean number of feeds that wait for a node or are being reduced: seconds of waiting and
    reducing per second (Little's law). ``pressure`` is that of the load, and at least 1, times the
    demand of a backlog: CPU shows what nodes do, and not how much more they would have to do.
    """

    nodes: tuple[NodeId, ...]
    seconds: Values
    cpu: Values
    feeds: Values
    pressure: float = 1.0

    def uneven(self, most: float, min_cpu: float) -> Flags:
        """Nodes with more than ``most`` times the mean seconds, unless they are hardly busy."""
        flags: Flags = (self.seconds > most * self.seconds.mean()) & (self.cpu >= min_cpu)
        return flags

    def missing(self, nodes: list[int], overloaded: int, cpu_high: float) -> int:
        """How many nodes to add for some nodes to come well below the threshold.

        At least one, and at most as many as are overloaded, unless input arrives faster than it is
        processed.
        """
        needed = ceil(float(np.nansum(self.cpu[nodes])) * self.pressure / (HEADROOM * cpu_high))
        missing = max(1, needed - len(nodes))
        return missing if self.pressure > 1 else min(missing, overloaded)


def node_table(load: Load, ring: Ring) -> NodeTable:
    """Return the load of the ring's nodes; seconds follow the slots that they own in this ring."""
    seconds = per_node(weights_of(load), ring)
    reported = [load.nodes.get(node) for node in ring.nodes]
    cpu = np.array([np.nan if node is None else node.cpu for node in reported])
    queue = np.array([np.nan if node is None else node.queue for node in reported])
    length = load.epoch_seconds if load.epoch_seconds > 0 else np.nan
    pressure = max(1.0, load.pressure) * load.demand
    return NodeTable(ring.nodes, seconds, cpu, (queue + seconds) / length, pressure)


def check_thresholds(cpu_low: float, cpu_high: float) -> None:
    """Reject CPU thresholds between which the number of nodes could oscillate."""
    check_between("cpu_high", cpu_high, 0.01, 64)
    check_between("cpu_low", cpu_low, 0, 64)
    # Half of a node that is split is then above low, and two nodes that are merged below high.
    if cpu_low >= cpu_high / 2:
        raise ConfigError(
            f"cpu_low must be less than half of cpu_high ({cpu_high}), got {cpu_low}: otherwise "
            "nodes would be added and removed in turn"
        )


def check_between(option: str, value: float, least: float, most: float) -> None:
    """Reject a number outside of a range."""
    if not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{option} must be between {least} and {most}, got {value!r}")


def percent(part: float) -> str:
    """A part of one core, for a sentence."""
    return f"{part:.0%}".replace("%", " %")


def names(nodes: Iterable[NodeId]) -> str:
    """The first few nodes, for a sentence."""
    listed = list(nodes)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
